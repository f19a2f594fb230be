"""Everything a federation needs, as files: certificates, keys, who is who, examples, the Flower app.

DIR/ca/               the certificate authority's key, which signs, and belongs on no other machine
DIR/server/           certificates and key of the SuperLink, federation.toml, config.toml, test.npz,
                      the examples of strangers, if there are any
DIR/nodes/node-0/ …   one folder a machine: its key, the authority's certificate, its examples; for secure sums a second
                      key, the other nodes' public ones and the node's terms
DIR/app/              what `flwr run` takes: a pyproject.toml
DIR/flwr/             Flower's own settings: where the SuperLink is
"""

import datetime
import io
import ipaddress
import os
import re
import secrets
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import tomli_w
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from torch import Tensor

from fedaws.config import Config
from fedaws.data.strangers import Part
from fedaws.errors import FedawsError
from fedaws.files import write_bytes, write_text, writing
from fedaws.flower.federation import Federation, Member, write_federation
from fedaws.flower.settings import load_dense, run_settings
from fedaws.flower.strategy import FedAwS
from fedaws.privacy.sum_keeper import Peers, make_key, write_peers
from fedaws.training.protection import noise_in_shares

_DAYS, _YEARS = 365, 10  # of the server's certificate, which is easily renewed, and of the one that all nodes hold
CONNECTION, PORT = "federation", 8000  # Flower's name for the way to the SuperLink, and its own port
_PEM = serialization.Encoding.PEM
_DOMAIN = re.compile(r"(?=.{1,253}$)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*", re.IGNORECASE)


class Place:
    """Where things are below a federation's folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.server = root / "server"  # what belongs on the server's machine
        self.authority = self.server / "ca.crt"  # the certificate that all machines trust
        self.federation = self.server / "federation.toml"  # who is who
        self.app = root / "app"  # the Flower app
        self.home = root / "flwr"  # Flower's settings of the operator
        self.run = root / "run"  # the run folder
        self.logs = root / "logs"  # one file a process

    def node(self, name: str) -> Path:
        """What belongs on a node's machine."""
        return self.root / "nodes" / name

    def connect(self, home: Path, address: str, authority: str) -> None:
        """Tell Flower's command line where the SuperLink is, and whose certificate it must have."""
        connection = {"address": address, "root-certificates": authority}
        tree = {"superlink": {"default": CONNECTION, CONNECTION: connection}}
        write_text(home / "config.toml", tomli_w.dumps(tree))


def create(
    root: Path,
    cfg: Config,
    clients: int,
    classes: int | None = None,
    hosts: Iterable[str] = (),
    example_shape: tuple[int, ...] | None = None,
    example_dtype: str = "float32",
    warn: Callable[[str], None] = lambda message: None,
    **settings: str | float | bool,
) -> Place:
    """Write a new federation of `clients` nodes; `hosts` are further names or addresses of the server.

    With an `example_shape` the examples are on the nodes already, and no data are read or dealt out. Without a number
    of `classes` there are as many as nodes or as the data have, and `warn` is told of those left out.
    """
    place = Place(root.expanduser().absolute())
    if place.federation.exists():
        raise FedawsError(f"{root} already holds a federation; choose another folder")
    data = None if example_shape else load_dense(cfg.with_(data={"clients_per_class": 1}))
    by_class = None if data is None else [data.x[s:e] for s, e in pairwise(data.starts.tolist())]
    members = _members(clients, classes, None if by_class is None else len(by_class))
    if data is not None and data.class_names is not None:
        members = [replace(m, class_name=data.class_names[m.class_id]) for m in members]
    if by_class is not None and classes is None and clients < len(by_class):
        warn(
            f"only the first {clients} of the data's {len(by_class)} classes have a node, the others are left out; "
            f"--clients {len(by_class)} has all, --classes {clients} says that it is meant"
        )
    examples = [] if by_class is None else _dealt_out(by_class, members)
    FedAwS(Federation(tuple(members)), config=cfg)  # refuses what cannot run over Flower
    hosts = list(hosts)
    names = [_host(h) for h in ("127.0.0.1", "localhost", *hosts)]
    _own_folder(place.root)
    ca_key, ca = _authority(place)
    _certify_server(place, ca_key, ca, names)
    registered = []
    for member in members:
        folder = place.node(member.name)
        registered.append(_equip(folder, member))
        write_bytes(folder / "ca.crt", ca.public_bytes(_PEM))
    for member, x in zip(members, examples, strict=data is not None):
        _save(place.node(member.name) / "data.npz", x=x)
    if data is not None:
        seen = data.y_test < 1 + members[-1].class_id
        _save(place.server / "test.npz", x=data.x_test[seen], y=data.y_test[seen])
        for part, strangers in data.apart.items():
            _save(place.server / _file_of(part), x=strangers.x, y=strangers.people)
        example_shape = tuple(data.x.shape[1:])
        example_dtype = str(data.x.dtype).removeprefix("torch.")
    assert example_shape is not None
    test = None if data is None else "test.npz"
    sums = secrets.token_hex(16) if cfg.privacy.secure_sums else None
    if sums is not None:
        registered = _equip_for_sums(place, registered, sums, cfg)
    apart = {} if data is None else {part: _file_of(part) for part in data.apart}
    write_federation(place.federation, registered, example_shape, example_dtype, test, sums, apart)
    write_text(place.server / "config.toml", cfg.to_toml())
    _write_app(place, settings)
    server = hosts[0] if hosts else "127.0.0.1"
    # Relative: the folder is copied to the server, and Flower's commands are given in it.
    address = f"[{server}]:{PORT}" if ":" in server else f"{server}:{PORT}"
    place.connect(place.home, address, place.authority.relative_to(place.root).as_posix())
    return place


def _file_of(part: Part) -> str:
    return f"{part.replace('_', '-')}.npz"


def _own_folder(path: Path) -> None:
    """A folder for its owner's eyes only: it will hold keys, examples, and the rows of everybody."""
    with writing(path):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        readable = path.stat().st_mode & 0o077
        if readable and any(path.iterdir()):
            raise FedawsError(f"others can look into {path}; choose a new folder, or first: chmod 700 {path}")
        if readable:
            path.chmod(0o700)


def _members(clients: int, classes: int | None, most: int | None) -> list[Member]:
    """Every class to one node, and to a further one while there are nodes left; `most` are the classes of the data."""
    most = clients if most is None else min(clients, most)
    classes = most if classes is None else classes
    if not 2 <= classes <= most:
        raise FedawsError(
            f"{clients} clients and {classes} classes; wanted at least two classes, a client for each, and no "
            f"more than the data has ({most})"
        )
    shares = [clients // classes + (class_id < clients % classes) for class_id in range(classes)]
    class_of = [class_id for class_id, share in enumerate(shares) for _ in range(share)]
    return [Member(i, class_id, f"node-{i}") for i, class_id in enumerate(class_of)]


def _dealt_out(by_class: list[Tensor], members: list[Member]) -> list[Tensor]:
    """The members' examples: each has an equal part of its class's."""
    examples = list[Tensor]()
    for class_id, group in groupby(members, lambda member: member.class_id):
        x = by_class[class_id]
        share = len(list(group))
        if len(x) < share:
            raise FedawsError(f"class {class_id} has {len(x)} examples for {share} clients; lower --clients")
        examples += [x[part::share] for part in range(share)]
    return examples


def _save(path: Path, **arrays: Tensor) -> None:
    buffer, named = io.BytesIO(), {name: t.contiguous().numpy() for name, t in arrays.items()}
    np.savez(buffer, **cast(Any, named))  # its stubs take the names for flags
    write_bytes(path, buffer.getvalue())


# --- keys and certificates ------------------------------------------------------------------------------------------


def _secret(path: Path, content: bytes) -> None:
    """A file for nobody else's eyes, from its first byte on."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    plain = serialization.NoEncryption()
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, plain)


def _authority(place: Place) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    key = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedaws federation")])
    certificate = (
        _certificate(name, name, key.public_key(), _YEARS * _DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )
    _secret(place.root / "ca" / "ca.key", _pem(key))
    write_bytes(place.authority, certificate.public_bytes(_PEM))
    return key, certificate


def _certify_server(
    place: Place, ca_key: ec.EllipticCurvePrivateKey, ca: x509.Certificate, names: Iterable[x509.GeneralName]
) -> None:
    key = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedaws server")])
    certificate = (
        _certificate(name, ca.subject, key.public_key(), _DAYS)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA384())
    )
    _secret(place.server / "server.key", _pem(key))
    write_bytes(place.server / "server.pem", certificate.public_bytes(_PEM))


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # clocks differ
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _usage(signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _host(text: str) -> x509.GeneralName:
    with suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(text))
    if not _DOMAIN.fullmatch(text):
        raise FedawsError(
            f"--host {text!r} is neither an address nor a name; wanted such as 192.0.2.7 or server.example"
        )
    return x509.DNSName(text)


def _equip(folder: Path, member: Member) -> Member:
    """Give a node its key; the member with the public half."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(_PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption())
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    _secret(folder / "key", private)
    write_bytes(folder / "key.pub", public + b"\n")
    return replace(member, public_key=public.decode())


def _equip_for_sums(place: Place, members: list[Member], federation: str, cfg: Config) -> list[Member]:
    """Give each node a key for secure sums, the others' public halves, and its own terms; the members with theirs."""
    members = [replace(member, sums_key=make_key(place.node(member.name))) for member in members]
    keys = {member.name: member.sums_key or "" for member in members}
    terms = cfg.privacy.model_dump(include={"min_cohort", "threshold", "double_masks", "rows", "clip"})
    terms["noise"] = noise_in_shares(cfg, len(members))
    terms["most_sums"] = cfg.train.rounds if cfg.privacy.epsilon is not None else 0
    for name in keys:
        write_peers(place.node(name), Peers(federation=federation, name=name, peers=keys, **terms))
    return members


# --- the Flower app -------------------------------------------------------------------------------------------------


def _write_app(place: Place, settings: dict[str, str | float | bool]) -> None:
    """A project folder that `flwr run` takes as it is: the apps are in the package."""
    paths = {"config": place.server / "config.toml", "federation": place.federation, "folder": place.run}
    texts = {name: str(path) for name, path in paths.items()}
    app_config = run_settings(texts | {"deadline": 120.0, "wait": 300.0} | settings).model_dump(by_alias=True)
    components = {"serverapp": "fedaws.flower.server_app:app", "clientapp": "fedaws.flower.client_app:app"}
    project = {
        "project": {
            "name": "fedaws-federation",
            "version": "1.0.0",
            "description": "FedAwS: federated learning with only positive labels",
            "license": "Apache-2.0",
            "dependencies": ["fedaws[flower]"],
        },
        "tool": {"flwr": {"app": {"publisher": "fedaws", "components": components, "config": app_config}}},
    }
    # Flower packs all JSON and TOML files for the nodes, but not those that git ignores: a run in here stays here.
    write_text(place.app / ".gitignore", "*/\n")
    write_text(place.app / "pyproject.toml", tomli_w.dumps(project))
