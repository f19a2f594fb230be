"""One local page that shows a door: voices are enrolled, let in, rejected, forgotten. Nothing leaves the computer."""

import json
import threading
import wave
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
from numpy.typing import NDArray

from fedaws import config as configuration
from fedaws.data.federated import from_arrays
from fedaws.data.sources.made_voices import voice
from fedaws.device import Device
from fedaws.device.sound import sound_of
from fedaws.errors import FedawsError
from fedaws.people.gallery import Gallery, told
from fedaws.people.inputs import Kind, example_kind
from fedaws.training.run import Run
from fedaws.training.session import Reporter
from fedaws.training.train import train

_MOST_BYTES = 1 << 23  # of a recording: a minute and a half at 48,000 samples a second
_FILES = {"/": ("demo.html", "text/html"), "/demo.js": ("demo.js", "text/javascript")}
_POLICY = (  # the page may talk to this server, and to nobody else
    "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; connect-src 'self'; media-src 'self' blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_TRAINED, _MEASURED, _SECONDS = range(0, 30), range(30, 40), 0.5


def made_model(reporter: Reporter | None = None) -> tuple[Run, float]:
    """A small model of thirty voices that nobody has, and the threshold at which one in twenty of ten others passes."""
    config = configuration.load("voices").override(["train.rounds=40", "train.evaluate_every=40"])
    x, y = _made(_TRAINED, range(6), config.model.sample_rate)
    x_test, y_test = _made(_TRAINED, range(6, 8), config.model.sample_rate)
    run = train(from_arrays(x, y, x_test, y_test), config=config, reporter=reporter)
    others, whose = _made(_MEASURED, range(10), config.model.sample_rate)
    return run, Gallery("none", run).threshold_for(others, whose, far=0.05, draws=20).threshold


def _made(people: range, utterances: range, rate: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    x = np.stack([voice(p, u, rate, _SECONDS) for p in people for u in utterances])
    return x, np.repeat(np.arange(len(people)), len(utterances))


class Door:
    """What the page asks for; one question at a time."""

    def __init__(self, model: Run | Device, gallery: Path, threshold: float | None) -> None:
        self.kind: Kind = example_kind(model)
        if self.kind.sample_rate is None:
            raise FedawsError(f"the demo is for models of sound, this one takes {self.kind}; train voices")
        self.gallery = Gallery(gallery, model, threshold)
        self.threshold = model.about.threshold if threshold is None and isinstance(model, Device) else threshold
        if self.threshold is None:
            raise FedawsError("a door needs a threshold and the model has none; measure one by fedaws trials … --far")
        self._one = threading.Lock()

    def answer(self, question: str, name: str, recording: bytes) -> dict[str, Any]:
        """What /state, /enroll, /identify, /verify and /remove give."""
        with self._one, told():
            match question:
                case "state":
                    people = [{"name": each.name, "examples": each.count} for each in self.gallery.people.values()]
                    return {"people": people, "threshold": self.threshold}
                case "enroll":
                    x = self._heard(recording)
                    known = name in self.gallery
                    person = self.gallery.add(name, x) if known else self.gallery.enroll(name, x)
                    return {"name": person.name, "examples": person.count}
                case "identify":
                    x = self._heard(recording)
                    scores = [{"name": who, "score": score} for who, score in self.gallery.nearest(x)]
                    return {"name": self.gallery.identify(x), "nearest": scores}
                case "verify":
                    x = self._heard(recording)
                    return {
                        "name": name,
                        "accepted": self.gallery.verify(name, x),
                        "score": self.gallery.score(name, x),
                    }
                case "remove":
                    self.gallery.remove(name)
                    return {"removed": name}
                case _:
                    raise FedawsError(f"nothing is known of {question!r}")

    def spoken(self, person: int, utterance: int) -> bytes:
        """What somebody who does not exist says, as a wav file."""
        rate = self.kind.sample_rate or 8000
        x = voice(person, utterance, rate, self.kind.shape[0] / rate)
        out = BytesIO()
        with wave.open(out, "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(rate)
            file.writeframes((x * 32767).astype("<i2").tobytes())
        return out.getvalue()

    def _heard(self, recording: bytes) -> NDArray[np.float32]:
        return sound_of(recording, "the recording", self.kind.sample_rate or 8000, *self.kind.shape)


def server(door: Door, port: int = 0) -> ThreadingHTTPServer:
    """A server of the page on this computer alone; `serve_forever` runs it."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._told(self._get)

        def do_POST(self) -> None:
            self._told(self._post)

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def _told(self, work: Callable[[], tuple[str, bytes]]) -> None:
            try:
                self._check_guest()
                kind, content = work()
                status = 200
            except (FedawsError, ValueError) as error:  # ValueError: of an address that is none
                status, kind, content = 400, "application/json", json.dumps({"error": str(error)}).encode()
            self.send_response(status)
            for key, value in {"Content-Type": f"{kind}; charset=utf-8", "Content-Security-Policy": _POLICY}.items():
                self.send_header(key, value)
            self.send_header("X-Content-Type-Options", "nosniff")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def _check_guest(self) -> None:
            """Refuse other pages of the same browser, also those whose name has come to mean this computer."""
            own = {f"{host}:{self.server.server_port}" for host in ("127.0.0.1", "localhost")}  # type: ignore[attr-defined]
            origin = self.headers.get("Origin")
            if self.headers.get("Host") not in own or (origin and urlsplit(origin).netloc not in own):
                raise FedawsError("this page answers itself alone; open it at 127.0.0.1")

        def _get(self) -> tuple[str, bytes]:
            path = urlsplit(self.path).path
            if path in _FILES:
                file, kind = _FILES[path]
                return kind, (resources.files("fedaws.people") / file).read_bytes()
            match path.split("/"):
                case ["", "voice", person, said] if person.isdecimal() and said.removesuffix(".wav").isdecimal():
                    return "audio/wav", door.spoken(int(person[:6]), int(said.removesuffix(".wav")[:6]))
            return "application/json", json.dumps(door.answer(path[1:] if path == "/state" else "", "", b"")).encode()

        def _post(self) -> tuple[str, bytes]:
            length = self.headers.get("Content-Length", "")
            if not length.isdecimal() or len(length) > 20 or int(length) > _MOST_BYTES:
                raise FedawsError(f"a recording of {length[:20] or 'unknown'} bytes; wanted at most {_MOST_BYTES:,}")
            asked = urlsplit(self.path)
            name = parse_qs(asked.query).get("name", [""])[0]
            answer = door.answer(asked.path[1:], name, self.rfile.read(int(length)))
            return "application/json", json.dumps(answer).encode()

    try:
        return ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        raise FedawsError(f"cannot listen at port {port}: {error.strerror or error}; choose another --port") from None
