"""Headless Chromium over its DevTools protocol, as far as the tests need it."""

import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)


def find_chromium() -> str | None:
    """The program, if it is installed."""
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


@contextmanager
def chromium() -> Iterator["Tab"]:
    """A browser of its own with one tab; gone when the block ends."""
    program = find_chromium()
    if program is None:
        pytest.fail(f"none of {', '.join(_NAMES)} is installed; on Debian: apt-get install chromium")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [program, *_FLAGS, f"--user-data-dir={profile}", "about:blank"]
        browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            port, path = _address(Path(profile) / "DevToolsActivePort", browser)
            with connect(f"ws://127.0.0.1:{port}{path}", max_size=None, open_timeout=60, proxy=None) as socket:
                yield Tab(socket)
        finally:
            browser.kill()
            browser.wait()


def _address(file: Path, browser: subprocess.Popen[bytes]) -> tuple[str, str]:
    end = time.monotonic() + 120
    while time.monotonic() < end and browser.poll() is None:
        lines = file.read_text().splitlines() if file.exists() else []
        if len(lines) == 2:
            return lines[0], lines[1]
        time.sleep(0.1)
    raise RuntimeError(f"chromium did not start (exit code {browser.poll()})")


class Tab:
    """One tab: commands are answered in order, events are kept."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket, self._number, self._session = socket, 0, ""
        self.events: list[dict[str, Any]] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """A command and its answer."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        self._socket.send(json.dumps(message))
        while True:
            answer = json.loads(self._socket.recv(timeout=120))
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return dict(answer["result"])
            self.events.append(answer)

    def open(self, page: Path, width: int = 1440, dark: bool = False) -> None:
        """Show a file in a window of this width."""
        self.events.clear()
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self.send("Page.navigate", url=page.resolve().as_uri())
        end = time.monotonic() + 60
        while self.run("document.readyState") != "complete" or self.run("location.protocol") != "file:":
            assert time.monotonic() < end, "the page did not load"
            time.sleep(0.05)

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, script: str) -> None:
        """Until an expression is true."""
        end = time.monotonic() + 30
        while not self.run(script):
            assert time.monotonic() < end, f"never true: {script}"
            time.sleep(0.05)

    def point_at(self, selector: str, x: float = 0.5, y: float = 0.5, click: bool = False) -> None:
        """Move the mouse to a place in an element, given as parts of its size."""
        find = f"document.querySelector({json.dumps(selector)})"
        self.run(f"{find}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        box = self.run(f"(({{x, y, width, height}}) => ({{x, y, width, height}}))({find}.getBoundingClientRect())")
        place = {"x": box["x"] + x * box["width"], "y": box["y"] + y * box["height"]}
        self.send("Input.dispatchMouseEvent", type="mouseMoved", **place)
        if click:
            for kind in ("mousePressed", "mouseReleased"):
                self.send("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)

    def press(self, key: str) -> None:
        """A key, in the element that has the focus."""
        codes = {"Home": 36, "End": 35, "ArrowLeft": 37, "ArrowRight": 39}
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key])

    @property
    def requests(self) -> list[str]:
        """The addresses that the page asked for beside itself; what it holds in itself is none."""
        asked = [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return [url for url in asked if not url.startswith("data:")][1:]

    @property
    def complaints(self) -> list[Any]:
        """Errors and warnings of the page's script, and what the browser has to say of the page."""
        self.run("0")  # whatever was on its way has come
        found = [e["params"] for e in self.events if e.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded")]
        called = [e["params"] for e in self.events if e.get("method") == "Runtime.consoleAPICalled"]
        return found + [call for call in called if call["type"] in ("error", "warning", "assert")]
