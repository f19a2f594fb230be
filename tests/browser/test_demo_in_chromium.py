"""The page of `fedaws demo voices` as people meet it, in headless Chromium: `make browser-test`."""

import threading
import time
from collections.abc import Iterator

import pytest

from devtools import Tab, chromium
from fedaws.people.demo import Door, made_model, server

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    """With the page open."""
    run, threshold = made_model()
    with server(Door(run, tmp_path_factory.mktemp("demo") / "people", threshold)) as page, chromium() as opened:
        threading.Thread(target=page.serve_forever, daemon=True).start()
        opened.send("Page.navigate", url=f"http://127.0.0.1:{page.server_port}/")
        wait_for(opened, "document.querySelectorAll('#voices li').length === 6")
        yield opened
        page.shutdown()


def wait_for(tab: Tab, condition: str) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if tab.run(condition):
            return
        time.sleep(0.1)
    pytest.fail(f"never: {condition}; the door says {tab.run('document.getElementById(`door`).textContent')!r}")


def press(tab: Tab, label: str) -> None:
    tab.run(f"document.querySelector('button[aria-label=\"{label}\"]').click()")


def says(tab: Tab, words: str) -> None:
    wait_for(tab, f"document.getElementById('door').textContent.includes({words!r})")


def test_the_door_opens_stays_shut_and_forgets(tab: Tab) -> None:
    press(tab, "Ada knocks")
    says(tab, "Ada knocks. The door stays shut. (nobody is enrolled)")
    for name in ("Ada", "Bo"):
        press(tab, f"enrol {name}")
        says(tab, f"{name} is enrolled.")
    press(tab, "Ada knocks")
    says(tab, "Come in, Ada!")
    assert tab.run("document.querySelectorAll('#people li').length") == 2
    press(tab, "forget Ada")
    says(tab, "Ada is forgotten.")
    wait_for(tab, "document.querySelectorAll('#people li').length === 1")


def test_it_fits_a_phone_and_asks_nobody_else(tab: Tab) -> None:
    tab.send("Emulation.setDeviceMetricsOverride", width=375, height=800, deviceScaleFactor=1, mobile=False)
    assert tab.run("document.documentElement.scrollWidth") <= 375
    asked = [
        event["params"]["request"]["url"] for event in tab.events if event["method"] == "Network.requestWillBeSent"
    ]
    assert asked
    assert all(url.startswith(("http://127.0.0.1:", "blob:", "about:")) for url in asked)
    errors = [event for event in tab.events if event["method"] in ("Runtime.exceptionThrown", "Log.entryAdded")]
    assert not [event for event in errors if "favicon" not in str(event)]
