"""Keys and certificates: of the authority that all machines trust, of the server, and of each node."""

import datetime
import ipaddress
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedaws.errors import FedawsError
from fedaws.files import write_bytes, writing

_DAYS, _YEARS = 365, 10  # of the server's certificate, which is easily renewed, and of the one that all nodes hold
_DOMAIN = re.compile(r"(?=.{1,253}$)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*", re.IGNORECASE)
_AUTHORITY, _SERVER = (
    x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in ("fedaws federation", "fedaws server")
)

_UNUSED = dict.fromkeys(
    ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only", "decipher_only"),
    False,
)


def certify(authority: Path, server: Path, hosts: Iterable[x509.GeneralName]) -> None:
    """Write the key of a new authority, its certificate, and the key and certificate of a server at these hosts."""
    ca_key, key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    identity = x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key())
    ca = _signed(_AUTHORITY, ca_key, ca_key, _YEARS * _DAYS, identity)
    names, use = x509.SubjectAlternativeName(hosts), x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    certificate = _signed(_SERVER, key, ca_key, _DAYS, names, use, issuer)
    _write_secret(authority / "ca.key", ca_key, PrivateFormat.PKCS8)
    _write_secret(server / "server.key", key, PrivateFormat.PKCS8)
    write_bytes(server / "ca.crt", ca.public_bytes(Encoding.PEM))
    write_bytes(server / "server.pem", certificate.public_bytes(Encoding.PEM))


def _signed(
    subject: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    ca_key: ec.EllipticCurvePrivateKey,
    days: int,
    *extensions: x509.ExtensionType,
) -> x509.Certificate:
    now, is_ca = datetime.datetime.now(datetime.UTC), key is ca_key
    usage = x509.KeyUsage(digital_signature=not is_ca, key_cert_sign=is_ca, crl_sign=is_ca, **_UNUSED)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(_AUTHORITY)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # clocks differ
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=0 if is_ca else None), critical=True)
        .add_extension(usage, critical=True)
    )
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(ca_key, hashes.SHA384())


def host_name(text: str) -> x509.GeneralName:
    """An address or a name, as certificates have it."""
    with suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(text))
    if not _DOMAIN.fullmatch(text):
        raise FedawsError(
            f"--host {text!r} is neither an address nor a name; wanted such as 192.0.2.7 or server.example"
        )
    return x509.DNSName(text)


def make_node_key(folder: Path) -> str:
    """Write a node's key; gives the public half, the line of a .pub file."""
    key = ec.generate_private_key(ec.SECP384R1())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    _write_secret(folder / "key", key, PrivateFormat.OpenSSH)
    write_bytes(folder / "key.pub", public + b"\n")
    return public.decode()


def _write_secret(path: Path, key: ec.EllipticCurvePrivateKey, form: PrivateFormat) -> None:
    """A file for nobody else's eyes, from its first byte on."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(key.private_bytes(Encoding.PEM, form, NoEncryption()))
