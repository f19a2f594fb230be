"""A download is there whole and checked, or not at all."""

import hashlib
import io
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import Progress

from fedaws.data.sources.download import Archive, cache_folder, fetch
from helpers import refusal
from webserver import Answer, Server, sending

CONTENT = bytes(range(256)) * 4000  # several pieces
MD5 = hashlib.md5(CONTENT).hexdigest()
Get = Callable[[Answer], str]


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "fedaws"


@pytest.fixture
def told(server: Server, cache: Path) -> Get:
    """What is said when the server answers so; nothing may be left in the cache."""

    def get(answer: Answer) -> str:
        archive = Archive(server.give("set.tar.gz", answer), MD5)
        message = refusal(lambda: fetch(archive, cache))
        assert not list(cache.iterdir())
        assert archive.url in message
        assert f"put set.tar.gz into {cache}" in message
        return message

    return get


class Terminal(io.StringIO):
    """What is drawn on it."""

    def isatty(self) -> bool:
        return True


def test_the_file_is_downloaded_whole_and_nothing_else_is_left(server: Server, cache: Path) -> None:
    path = fetch(Archive(server.give("set.tar.gz", sending(CONTENT)), MD5), cache)
    assert path == cache / "set.tar.gz"
    assert path.read_bytes() == CONTENT
    assert list(cache.iterdir()) == [path]


def test_a_server_need_not_say_the_length(server: Server, cache: Path) -> None:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        request.wfile.write(CONTENT)

    assert fetch(Archive(server.give("set.tar.gz", answer), MD5), cache).read_bytes() == CONTENT


def test_a_wrong_checksum_is_refused(told: Get) -> None:
    assert f"has not the checksum {MD5}: it is not the published file" in told(sending(b"other"))


def test_a_transfer_that_breaks_off_is_refused(told: Get) -> None:
    assert "512000 bytes read, 512000 more expected" in told(sending(CONTENT[:512_000], promised=len(CONTENT)))


def test_a_transfer_in_chunks_that_breaks_off_is_refused(told: Get) -> None:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.protocol_version = "HTTP/1.1"
        request.send_response(200)
        request.send_header("Transfer-Encoding", "chunked")
        request.end_headers()
        request.wfile.write(b"FFFF\r\nhalf")
        request.close_connection = True

    assert "cannot download" in told(answer)


def test_a_server_that_is_not_one_is_refused(told: Get) -> None:
    assert "cannot download" in told(lambda request: request.wfile.write(b"what?\n\n") and None)


def test_a_file_that_is_not_there_is_refused(told: Get) -> None:
    assert "404 Not Found" in told(lambda request: request.send_error(404))


def test_a_server_that_falls_silent_is_given_up(server: Server, cache: Path) -> None:
    archive = Archive(server.give("set.tar.gz", lambda _: time.sleep(0.5)), MD5)
    assert "timed out" in refusal(lambda: fetch(archive, cache, timeout=0.1))
    assert not list(cache.iterdir())


def test_no_network_is_told(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    message = refusal(lambda: fetch(Archive(f"http://127.0.0.1:{port}/set.tar.gz", MD5), cache))
    assert f"cannot download http://127.0.0.1:{port}/set.tar.gz: Connection refused; get it by other means" in message
    assert not list(cache.iterdir())


def test_a_cache_that_cannot_be_written_is_told_apart_from_the_network(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    archive = Archive(server.give("set.tar.gz", sending(CONTENT)), MD5)
    message = refusal(lambda: fetch(archive, tmp_path / "file" / "cache"))
    assert f"cannot write {tmp_path / 'file' / 'cache' / 'set.tar.gz'}: Not a directory" in message


def test_an_interrupt_leaves_nothing(server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("requests.Response.iter_content", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fetch(Archive(server.give("set.tar.gz", sending(CONTENT)), MD5), cache)
    assert not list(cache.iterdir())


def test_what_a_killed_download_left_is_removed_by_the_next_but_not_a_live_one(server: Server, cache: Path) -> None:
    dead, live = cache / ".set.tar.gz.1.partial", cache / ".set.tar.gz.2.partial"
    for folder in (dead, live):
        folder.mkdir(parents=True)
        (folder / "half").touch()
    os.utime(dead, (0, 0))
    path = fetch(Archive(server.give("set.tar.gz", sending(CONTENT)), MD5), cache)
    assert set(cache.iterdir()) == {path, live}


def test_two_processes_may_download_at_once(server: Server, cache: Path) -> None:
    both = threading.Barrier(2, timeout=60)

    def answer(request: BaseHTTPRequestHandler) -> None:
        both.wait()  # neither gets a byte before the other has asked
        sending(CONTENT)(request)

    archive = Archive(server.give("set.tar.gz", answer), MD5)
    code = (
        "import pathlib; from fedaws.data.sources.download import Archive, fetch\n"
        f"fetch(Archive({archive.url!r}, {MD5!r}), pathlib.Path({str(cache)!r}))"
    )
    other = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE)
    path = fetch(archive, cache, timeout=60)
    _, errors = other.communicate(timeout=60)
    assert other.returncode == 0, errors
    assert path.read_bytes() == CONTENT
    assert list(cache.iterdir()) == [path]


# --- what is seen of it ---------------------------------------------------------------------------------------------


def test_a_terminal_has_a_bar(server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    fetch(Archive(server.give("set.tar.gz", sending(CONTENT)), MD5), cache)
    assert "━" in terminal.getvalue()
    assert "/1.0 MB" in terminal.getvalue()


def test_a_log_has_one_line_at_the_end(server: Server, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = server.give("set.tar.gz", sending(CONTENT))
    fetch(Archive(url, MD5), cache)
    assert capsys.readouterr() == ("", f"downloaded {url} to {cache}\n")


def test_beside_the_bar_of_a_run_it_draws_none(server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with Progress(console=Console(stderr=True, width=120)) as bar:
        bar.add_task("run")
        fetch(Archive(server.give("set.tar.gz", sending(CONTENT)), MD5), cache)
    assert "set.tar.gz" not in terminal.getvalue().replace("/set.tar.gz to", "")
    assert "downloaded" in terminal.getvalue()


# --- where it goes --------------------------------------------------------------------------------------------------


def test_the_cache_is_where_xdg_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/some/where")
    assert cache_folder() == Path("/some/where/fedaws")


def test_else_it_is_in_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/me")
    assert cache_folder() == Path("/home/me/.cache/fedaws")
