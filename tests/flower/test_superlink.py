"""The guard before Flower's SuperLink, attacked over real sockets."""

import os
import socket
import sqlite3
import threading
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection

import pytest
import uvicorn
from cryptography.hazmat.primitives.asymmetric import ec
from fastapi import FastAPI
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.supercore import sql_mixin
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER, SQLITE_PRAGMAS
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.superlink import extensions
from flwr.superlink.main import create_app

from fedaws.flower.superlink import MEMBERS, STRANGERS, guard, is_own_connection
from fedaws.flower.up import free_port

CONTROL = "/v1/control/list-runs"
NODES = "/v1/fleet/activate-node"
KIND = {"content-type": PROTOBUF_MEDIA_TYPE}

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/net/tcp"), reason="only Linux tells whose a connection is")


@pytest.fixture(scope="module")
def superlink() -> Iterator[tuple[FastAPI, int]]:
    """Flower's own, in this process, guarded; and its port."""
    with pytest.MonkeyPatch.context() as patch:
        undone_later(patch)
        guard()
        app = create_app()
    server = uvicorn.Server(uvicorn.Config(app, "127.0.0.1", free_port(), log_level="warning", ws="none"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.05)
    yield app, server.config.port
    server.should_exit = True
    thread.join()


def undone_later(patch: pytest.MonkeyPatch) -> None:
    """What the guard changes in this process is set back."""
    patch.setattr(extensions, "get_middleware", extensions.get_middleware)
    patch.setattr(sql_mixin, "SQLITE_PRAGMAS", SQLITE_PRAGMAS)


def ask(port: int, path: str, headers: dict[str, str] | None = None, body: bytes = b"") -> int:
    with closing(HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("POST", path, body, KIND | (headers or {}))
        return connection.getresponse().status


def claim(port: int, headers: dict[str, str]) -> int:
    """The answer to a request whose body never comes: whoever waits for it does not answer."""
    with closing(HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.putrequest("POST", NODES)
        for name, value in (KIND | headers).items():
            connection.putheader(name, value)
        connection.endheaders()
        return connection.getresponse().status


def signed(key: ec.EllipticCurvePrivateKey) -> dict[str, str]:
    stamp = now().isoformat()
    return {
        FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(public_key_to_bytes(key.public_key())).decode(),
        TIMESTAMP_HEADER: stamp,
        FLEET_HTTP_SIGNATURE_HEADER: b64encode(sign_message(key, stamp.encode())).decode(),
    }


def test_the_operator_controls_the_superlink(superlink: tuple[FastAPI, int]) -> None:
    assert ask(superlink[1], CONTROL) == 200


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
@pytest.mark.parametrize("path", [CONTROL, "/v1/control/start-run", "/v1/runtime/acquire-task", "/docs", "/"])
def test_another_user_of_the_machine_does_not(superlink: tuple[FastAPI, int], path: str) -> None:
    """Flower itself answers 200: with a key registered and a run started, their code ran as the owner."""
    os.seteuid(65534)
    try:
        stranger = socket.socket()  # whose it is, is decided here
    finally:
        os.seteuid(0)
    with stranger:
        stranger.settimeout(60)
        stranger.connect(("127.0.0.1", superlink[1]))
        request = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: {PROTOBUF_MEDIA_TYPE}\r\ncontent-length: 0\r\n\r\n"
        stranger.sendall(request.encode())
        assert stranger.recv(100).startswith(b"HTTP/1.1 403")


def test_no_header_makes_somebody_else_the_operator(superlink: tuple[FastAPI, int]) -> None:
    """The web server below takes the client's address from it, if the client is on loopback."""
    with socket.create_connection(("127.0.0.1", superlink[1])) as operator:
        mine = operator.getsockname()[1]
        assert ask(superlink[1], CONTROL, {"x-forwarded-for": f"127.0.0.1:{mine}"}) == 403


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_whose_a_connection_is(family: socket.AddressFamily, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        listener = socket.create_server(("::1" if family == socket.AF_INET6 else "127.0.0.1", 0), family=family)
    except OSError:
        pytest.skip("no such addresses here")
    client = socket.create_connection(listener.getsockname()[:2])
    accepted, address = listener.accept()
    ends = address[:2], accepted.getsockname()[:2]
    assert is_own_connection(*ends)
    assert not is_own_connection(("127.0.0.9", ends[0][1]), ends[1])
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: os.geteuid() + 1)
        assert not is_own_connection(*ends)
    client.close()
    assert not is_own_connection(*ends)  # nobody's, though the kernel's table says root's
    accepted.close()
    listener.close()


def test_a_strangers_large_body_is_not_even_waited_for(superlink: tuple[FastAPI, int]) -> None:
    """Six of 256 MB left 1.8 GB in the memory of a SuperLink without a guard."""
    assert claim(superlink[1], {"content-length": str(STRANGERS + 1)}) == 401
    assert claim(superlink[1], {"content-length": str(256 * 2**20)}) == 413
    assert claim(superlink[1], {"transfer-encoding": "chunked"}) == 411


def test_a_registered_node_may_send_more_and_not_without_bound(superlink: tuple[FastAPI, int]) -> None:
    app, port = superlink
    key = ec.generate_private_key(ec.SECP384R1())
    large = bytes(STRANGERS + 1)
    assert ask(port, NODES, signed(key), large) == 401
    app.state.linkstate_factory.state().create_node("", "", public_key_to_bytes(key.public_key()), 0)
    assert ask(port, NODES, signed(key), large) == 400  # let through, and found by Flower to be nonsense
    assert claim(port, signed(key) | {"content-length": str(MEMBERS + 1)}) == 413
    old = signed(key) | {TIMESTAMP_HEADER: "2026-01-01T00:00:00+00:00"}
    assert ask(port, NODES, old, large) == 401
    assert ask(port, NODES, signed(key) | {FLEET_HTTP_SIGNATURE_HEADER: "%"}, large) == 401


def test_sqlite_waits_a_minute_for_its_lock(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    """Under load 21 of 5,677 operations failed at Flower's five seconds, and with each a reply was lost."""
    undone_later(monkeypatch)
    guard()
    with closing(sqlite3.connect(f"{tmp_path}/state.db")) as connection:
        sql_mixin._set_sqlite_pragmas(connection, None)
        assert connection.execute("PRAGMA busy_timeout").fetchone() == (60_000,)
