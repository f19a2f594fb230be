"""Everything a federation needs, as files: certificates, keys, who is who, examples, the Flower app.

DIR/ca/               the certificate authority's key, which signs, and belongs on no other machine
DIR/server/           certificates and key of the SuperLink, federation.toml, config.toml, test.npz,
                      the examples of strangers, if there are any
DIR/nodes/node-0/ …   one folder a machine: its key, the authority's certificate, its examples; for secure sums a second
                      key, the other nodes' public ones and the node's terms
DIR/app/              what `flwr run` takes: a pyproject.toml
DIR/flwr/             Flower's own settings: where the SuperLink is
"""

import io
import secrets
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import tomli_w
from torch import Tensor

from fedaws.config import Config
from fedaws.data.strangers import Part
from fedaws.errors import FedawsError
from fedaws.files import write_bytes, write_text, writing
from fedaws.flower.federation import Federation, Member, write_federation
from fedaws.flower.keys import certify, host_name, make_node_key
from fedaws.flower.settings import load_dense, run_settings
from fedaws.flower.strategy import FedAwS
from fedaws.privacy.sum_keeper import Peers, make_key, write_peers
from fedaws.training.protection import noise_in_shares
from fedaws.training.run import dtype_name

CONNECTION, PORT = "federation", 8000  # Flower's name for the way to the SuperLink, and its own port


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
    names = [host_name(h) for h in ("127.0.0.1", "localhost", *hosts)]
    _own_folder(place.root)
    certify(place.root / "ca", place.server, names)
    for member in members:
        write_bytes(place.node(member.name) / "ca.crt", place.authority.read_bytes())
    members = [replace(member, public_key=make_node_key(place.node(member.name))) for member in members]
    for member, x in zip(members, examples, strict=data is not None):
        _save(place.node(member.name) / "data.npz", x=x)
    test, apart = None, dict[Part, str]()
    if data is not None:
        test, apart = "test.npz", {part: f"{part.replace('_', '-')}.npz" for part in data.apart}
        seen = data.y_test < 1 + members[-1].class_id
        _save(place.server / test, x=data.x_test[seen], y=data.y_test[seen])
        for part, strangers in data.apart.items():
            _save(place.server / apart[part], x=strangers.x, y=strangers.people)
        example_shape, example_dtype = data.example_shape, dtype_name(data.x)
    sums = secrets.token_hex(16) if cfg.privacy.secure_sums else None
    if sums is not None:
        members = _equip_for_sums(place, members, sums, cfg)
    write_federation(place.federation, members, example_shape or (), example_dtype, test, sums, apart)
    write_text(place.server / "config.toml", cfg.to_toml())
    _write_app(place, settings)
    server = hosts[0] if hosts else "127.0.0.1"
    # Relative: the folder is copied to the server, and Flower's commands are given in it.
    address = f"[{server}]:{PORT}" if ":" in server else f"{server}:{PORT}"
    place.connect(place.home, address, place.authority.relative_to(place.root).as_posix())
    return place


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
