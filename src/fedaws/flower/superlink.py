"""Flower's SuperLink behind a guard: the operator's routes are the operator's, and no stranger fills its memory.

A SuperLink has no accounts: whoever reaches its control routes runs code as its owner, and whoever reaches its runtime
routes can take a run over (the token for it stands on the process list). So all but the nodes' routes are answered on
connections from processes of the same user on the same machine alone; the kernel says whose a connection is.
"""

import logging
import os
import sys
from base64 import b64decode
from collections import deque
from collections.abc import Iterator
from datetime import datetime
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Any

from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE
from flwr.supercore import sql_mixin
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER, SQLITE_PRAGMAS
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature
from flwr.superlink import extensions
from flwr.superlink.cli import flower_superlink
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from fedaws.flower.setup import PORT, Place

_LOG = logging.getLogger("flwr")
NODES = "/v1/fleet/"  # the routes of nodes
STRANGERS, MEMBERS = 2**16, 2**24  # bytes of a request; Flower cuts arrays into pieces of 5 MB
_LOCKED = 60_000  # milliseconds that SQLite waits for its lock, where Flower's 5 s lost replies under load
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_ESTABLISHED = "01"  # a connection that has been closed counts as root's

Refusal = tuple[int, str]
Address = tuple[IPv4Address | IPv6Address, int]


class Guard:
    """What a request must be before anybody reads its body."""

    def __init__(self, app: ASGIApp, strangers: int = STRANGERS, members: int = MEMBERS) -> None:
        self._app, self._strangers, self._members = app, strangers, members
        # Connections found to be ours. Each has a tuple of its own: the same numbers again are another connection.
        self._ours: deque[tuple[str, int]] = deque(maxlen=64)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer why not."""
        refusal = None if scope["type"] == "lifespan" else await self._refusal(scope)
        if refusal is None:
            await self._app(scope, receive, send)
            return
        status, why = refusal
        _LOG.warning("refused %s of %s: %s", ascii(scope["path"])[:80], scope.get("client"), why)
        if scope["type"] == "http":
            await PlainTextResponse(why, status, {"connection": "close"})(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def _refusal(self, scope: Scope) -> Refusal | None:
        headers = dict[bytes, bytes](scope["headers"])
        if scope["path"].startswith(NODES):
            return await self._oversize(scope, headers)
        return None if self._is_ours(scope, headers) else (403, "for the operator, on this machine")

    async def _oversize(self, scope: Scope, headers: dict[bytes, bytes]) -> Refusal | None:
        length = headers.get(b"content-length", b"0")
        if b"transfer-encoding" in headers or not length.isdigit():
            return 411, "a length is needed"
        if int(length) > self._members:
            return 413, f"more than {self._members} bytes"
        if int(length) <= self._strangers:
            return None
        known = await run_in_threadpool(_is_node, headers, scope["app"].state.linkstate_factory)
        return None if known else (401, f"more than {self._strangers} bytes of a stranger")

    def _is_ours(self, scope: Scope, headers: dict[bytes, bytes]) -> bool:
        client, server = scope.get("client"), scope.get("server")
        # The server below believes this header of anybody on loopback, and then tells a client that is none.
        if client is None or server is None or b"x-forwarded-for" in headers:
            return False
        if any(client is known for known in self._ours):
            return True
        found = is_own_connection(client, server)
        if found:
            self._ours.append(client)
        return found


def is_own_connection(client: tuple[str, int], server: tuple[str, int]) -> bool:
    """Whether the other end of a connection is a process of this user on this machine.

    Only Linux tells whose it is; elsewhere it is enough that it is on this machine, and `guard` warns.
    """
    if not _TABLES[0].exists():
        return _address(*client)[0].is_loopback
    wanted, mark = (_address(*client), _address(*server)), f":{client[1]:04X}"
    return any(
        local.endswith(mark) and uid == str(os.getuid()) and (_spelt(local), _spelt(remote)) == wanted
        for local, remote, state, uid in _connections()
        if state == _ESTABLISHED
    )


def _connections() -> Iterator[tuple[str, str, str, str]]:
    for table in _TABLES:
        with table.open() as lines:
            next(lines)
            for line in lines:
                words = line.split()
                yield words[1], words[2], words[3], words[7]


def _spelt(text: str) -> Address:
    """An address as the kernel's table has it, in words of the machine's order.

    >>> _spelt("0100007F:1F40") if sys.byteorder == "little" else (ip_address("127.0.0.1"), 8000)
    (IPv4Address('127.0.0.1'), 8000)
    """
    host, _, port = text.partition(":")
    words = [bytes.fromhex(host[i : i + 8]) for i in range(0, len(host), 8)]
    parts = [word[::-1] if sys.byteorder == "little" else word for word in words]
    return _plain(ip_address(b"".join(parts))), int(port, 16)


def _address(host: str, port: int) -> Address:
    return _plain(ip_address(host.partition("%")[0])), port


def _plain(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    return getattr(address, "ipv4_mapped", None) or address


def _is_node(headers: dict[bytes, bytes], linkstates: Any) -> bool:
    """Whether a request is signed by a registered node, from its headers; Flower asks again when it has read it all."""
    try:
        key, signature = (
            b64decode(headers[name.lower().encode()], validate=True)
            for name in (FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER)
        )
        signed = headers[TIMESTAMP_HEADER.lower().encode()]
        age = (now() - datetime.fromisoformat(signed.decode("ascii"))).total_seconds()
        if not -SYSTEM_TIME_TOLERANCE < age < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE:
            return False
        if not verify_signature(bytes_to_public_key(key), signed, signature):
            return False
    except (KeyError, ValueError, TypeError):
        return False
    return linkstates.state().get_node_id_by_public_key(key) is not None


def guard() -> None:
    """Put the guard before everything else in the SuperLink that this process will be, and let SQLite wait."""
    if not _TABLES[0].exists():
        _LOG.warning("this system does not tell whose a connection is: every user of this machine can run code as you")
    others = extensions.get_middleware
    extensions.get_middleware = lambda: (Middleware(Guard), *others())
    pragmas = dict(SQLITE_PRAGMAS) | {"busy_timeout": str(_LOCKED)}
    vars(sql_mixin)["SQLITE_PRAGMAS"] = tuple(pragmas.items())


def run_superlink(folder: Path, host: str, port: int = PORT, database: Path | None = None) -> None:
    """Be the SuperLink of a federation's folder, guarded."""
    place = Place(folder.expanduser().absolute())
    server = place.server
    sys.argv = ["flower-superlink", "--host", host, "--port", str(port)]
    sys.argv += ["--ssl-ca-certfile", str(place.authority)]
    sys.argv += ["--ssl-certfile", str(server / "server.pem"), "--ssl-keyfile", str(server / "server.key")]
    sys.argv += ["--enable-supernode-auth", "--database", str(database or server / "state.db")]
    sys.argv += ["--disable-runtime-dependency-installation"]
    # Flower starts its programs by their names, and they stand beside this Python.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    for name, value in {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("FLWR_HOME", str(server / "flwr"))
    guard()
    flower_superlink()
