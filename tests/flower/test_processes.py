"""No process is left behind."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedaws.flower.setup import Place
from fedaws.flower.up import Processes, cluster
from flower_trial import Trial
from helpers import refusal

SLEEP = "import time; time.sleep(600)"
DETACH = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SLEEP!r}], start_new_session=True); {SLEEP}"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); {SLEEP}"

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="only Linux tells whose a process is")


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    found = Processes(Place(tmp_path))
    yield found
    found.stop()


def start(processes: Processes, code: str) -> None:
    processes.start("one", [Path(sys.executable).name, "-c", code], processes.place.home)


def wait_for_strays(processes: Processes, count: int) -> None:
    end = time.monotonic() + 60
    while len(processes.strays()) != count:
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_child_that_detached_itself_ends_too(processes: Processes) -> None:
    start(processes, DETACH)
    wait_for_strays(processes, 2)
    processes.stop()
    assert processes.strays() == []


def test_a_process_that_does_not_heed_is_killed(processes: Processes) -> None:
    start(processes, STUBBORN)
    end = time.monotonic() + 60
    while "ready" not in (processes.place.logs / "one.log").read_text():
        assert time.monotonic() < end
        time.sleep(0.05)
    processes.stop()
    assert processes.strays() == []


def test_a_kill_takes_the_children_along(processes: Processes) -> None:
    start(processes, DETACH)
    wait_for_strays(processes, 2)
    processes.kill("one")
    wait_for_strays(processes, 0)


def test_what_a_killed_predecessor_left_is_ended_and_nothing_else(processes: Processes, tmp_path: Path) -> None:
    start(processes, DETACH)
    wait_for_strays(processes, 2)
    with subprocess.Popen([sys.executable, "-c", SLEEP], env=dict(os.environ)) as other:
        Processes(Place(tmp_path)).end_strays()
        assert processes.strays() == []
        assert other.poll() is None
        other.kill()


def test_a_federation_is_up_only_once(trial: Callable[..., Trial]) -> None:
    made = trial(4)
    with cluster(made.place.root, print):
        assert "another process" in refusal(lambda: cluster(made.place.root, print).__enter__())
