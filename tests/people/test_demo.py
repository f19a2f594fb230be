"""The local page's server: what it answers, and whom it does not."""

import json
import threading
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

import fedaws
from fedaws.device import Device
from fedaws.people.demo import Door, server
from helpers import refusal
from people.conftest import Trained


@pytest.fixture
def port(home: Path, tmp_path: Path) -> Iterator[int]:
    """The page is served there, with nobody enrolled."""
    with server(Door(Device.load(home / "phone"), tmp_path / "people", -1.0)) as page:
        thread = threading.Thread(target=page.serve_forever, daemon=True)
        thread.start()
        yield page.server_port
        page.shutdown()
        thread.join()


def asked(port: int, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, Any, Any]:
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        content = response.read()
        is_json = response.headers["Content-Type"].startswith("application/json")
        return response.status, json.loads(content) if is_json else content, response.headers
    finally:
        connection.close()


def test_somebody_is_enrolled_let_in_and_forgotten(port: int) -> None:
    recording = asked(port, "GET", "/voice/100/0.wav")[1]
    assert asked(port, "POST", "/enroll?name=Ada", recording)[1] == {"name": "Ada", "examples": 1}
    assert asked(port, "POST", "/enroll?name=Ada", asked(port, "GET", "/voice/100/1.wav")[1])[1]["examples"] == 2
    found = asked(port, "POST", "/identify", recording)[1]
    assert (found["name"], found["nearest"][0]["name"]) == ("Ada", "Ada")
    assert asked(port, "POST", "/verify?name=Ada", recording)[1]["accepted"]
    assert asked(port, "GET", "/state")[1] == {"people": [{"name": "Ada", "examples": 2}], "threshold": -1.0}
    assert asked(port, "POST", "/remove?name=Ada", b"")[1] == {"removed": "Ada"}
    assert asked(port, "GET", "/state")[1]["people"] == []


def test_mistakes_are_one_line(port: int) -> None:
    for path, body, told in (
        ("/enroll?name=Ada", b"no sound", "is no sound in wav, flac or ogg"),
        ("/remove?name=Eve", b"", "'Eve' is not enrolled"),
        ("/nothing", b"", "nothing is known"),
    ):
        status, answer, _ = asked(port, "POST", path, body)
        assert (status, told in answer["error"]) == (400, True)
    assert asked(port, "GET", "/../../etc/passwd")[0] == 400
    assert asked(port, "GET", "/voice/x/y")[0] == 400
    assert asked(port, "GET", "/state", Origin="http://[")[0] == 400
    assert "at most" in asked(port, "POST", "/identify", b"", **{"Content-Length": "9" * 5000})[1]["error"]
    assert "at most" in asked(port, "POST", "/identify", b"", **{"Content-Length": "999999999"})[1]["error"]


def test_the_page_may_talk_to_its_server_alone(port: int) -> None:
    status, page, headers = asked(port, "GET", "/")
    assert (status, b"A door that opens to voices" in page, b"http" in page) == (200, True, False)
    assert headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self'")
    assert asked(port, "GET", "/demo.js")[0] == 200


def test_other_pages_and_names_are_refused(port: int) -> None:
    own = f"127.0.0.1:{port}"
    assert asked(port, "GET", "/state", Host="evil.example")[0] == 400
    assert asked(port, "POST", "/remove?name=Ada", b"", Origin="http://evil.example", Host=own)[0] == 400
    assert asked(port, "GET", "/state", Origin=f"http://{own}", Host=own)[0] == 200


def test_it_is_for_models_of_sound(trained: Trained, tmp_path: Path) -> None:
    assert "is for models of sound" in refusal(lambda: Door(trained.run, tmp_path / "people", None))


def test_a_run_serves_as_well_as_what_was_exported_from_it(home: Path, tmp_path: Path) -> None:
    door = Door(fedaws.load(home / "run"), tmp_path / "people", 0.0)
    assert door.answer("enroll", "Ada", door.spoken(100, 0))["examples"] == 1
    assert door.answer("identify", "", door.spoken(100, 0))["nearest"][0]["score"] == pytest.approx(1)


def test_a_door_without_a_threshold_is_refused_before_anybody_knocks(home: Path, tmp_path: Path) -> None:
    assert "needs a threshold" in refusal(lambda: Door(fedaws.load(home / "run"), tmp_path / "people", None))


def test_other_demos_are_not_there(refused: Callable[..., str]) -> None:
    assert "wanted voices" in refused("demo", "faces")
