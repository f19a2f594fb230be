"""No process is left behind."""

import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from flwr.common.config import parse_config_args
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME

from fedaws.flower.setup import Place
from fedaws.flower.up import Cluster, Processes, _Told, cluster
from fedaws.record.folder import RunFolder
from flower_trial import Trial
from helpers import refusal

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")
sys.path.append(BENCHMARKS)
flower = importlib.import_module("flower")
sys.path.remove(BENCHMARKS)

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


def test_the_number_of_a_process_that_is_gone_is_nobodys(processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program may have it by now."""
    start(processes, "")
    while processes.alive("one"):
        time.sleep(0.05)
    signalled: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda pid, number: signalled.append(pid))
    processes.stop()
    assert signalled == []


def test_no_two_nodes_get_the_same_port(trial: Callable[..., Trial], monkeypatch: pytest.MonkeyPatch) -> None:
    """They bind theirs only seconds later, so the system may give one out twice."""
    ports, started = iter([1, 2, 2, 1, 3]), list[str]()
    monkeypatch.setattr("fedaws.flower.up.free_port", lambda: next(ports))
    monkeypatch.setattr(flower, "free_port", lambda: next(ports))
    monkeypatch.setattr(Processes, "start", lambda self, name, command, home: started.extend(command))
    with cluster(trial(4).place.root, print) as found:
        nodes = flower.Supernodes(found)
        nodes.start("node-0")
        nodes.start("node-1")
        assert found.port == 1
    assert [port for option, port in pairwise(started) if option == "--port"] == ["2", "3"]


def test_a_run_that_has_ended_is_not_started_again(
    trial: Callable[..., Trial], cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = trial(4)
    made.serve()
    monkeypatch.setattr(Processes, "start", lambda *_: pytest.fail("a process was started"))
    code, out, err = cli("flower", "up", made.place.root, "--json")
    assert code == 0
    told = json.loads(out)
    assert (told["method"], told["rounds"]) == ("fedaws", 12)
    assert told["precision@1"] == RunFolder(made.place.run).metrics()[-1]["precision@1"]
    assert "has ended" in err


def test_up_starts_with_a_superlink_that_remembers_no_earlier_run(
    trial: Callable[..., Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that was submitted just before Ctrl-C would be started too, and keep the new one out of the folder."""
    databases: list[str] = []

    def started(self: Processes, name: str, command: list[str], home: Path) -> None:
        if name == "superlink":
            databases.append(command[command.index("--database") + 1])

    def answered(self: Cluster, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(arguments, 0, "", "")

    monkeypatch.setattr(Processes, "start", started)
    monkeypatch.setattr(Cluster, "flwr", answered)
    monkeypatch.setattr("fedaws.flower.up._answers", lambda port: True)
    with cluster(trial(4).place.root, print) as found:
        found.start()
    assert databases == [FLWR_IN_MEMORY_DB_NAME]  # nothing of it is on disk


def test_a_node_that_dies_is_told_of_once(trial: Callable[..., Trial], monkeypatch: pytest.MonkeyPatch) -> None:
    made, said = trial(4), list[str]()
    made.serve()
    answers = iter(["running", "finished:completed"])
    monkeypatch.setattr(Cluster, "status", lambda *_: next(answers))
    with cluster(made.place.root, said.append) as found:
        for name, code in {"superlink": SLEEP, **{f"node-{i}": "" if i == 1 else SLEEP for i in range(4)}}.items():
            found.processes.start(name, [Path(sys.executable).name, "-c", code], made.place.home)
        while found.processes.alive("node-1"):
            time.sleep(0.05)
        found.follow("1")
    assert [line[:16] for line in said if line.startswith("round")] == ["round 12/12  los"]
    assert [line for line in said if "node-" in line] == [f"node-1 has ended; see {made.place.logs / 'node-1.log'}"]


def test_whom_the_server_waits_for_is_said_while_it_waits(trial: Callable[..., Trial]) -> None:
    made, said = trial(4), list[str]()
    made.place.run.mkdir()
    log = made.place.run / "server.log"
    log.write_text("2026-01-01 00:00:00,000 WARNING of an earlier run\n")
    told = _Told(made.place, said.append)
    told.news()
    with log.open("a") as file:
        file.write("2026-01-01 00:00:15,000 INFO waiting for node-1: 3 of 4 online, 285 s left\n")
        file.write("2026-01-01 00:00:15,000 INFO not for everybody\n2026-01-01 00:05:00,000 WARNING going on wi")
    told.news()
    with log.open("a") as file:
        file.write("th 3 of 4 members, without node-1\n")
    told.news()
    told.news()
    assert said == [
        "waiting for node-1: 3 of 4 online, 285 s left",
        "going on with 3 of 4 members, without node-1",
    ]


def test_a_federation_whose_folder_was_moved_runs_from_its_new_place(
    trial: Callable[..., Trial], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The app's own settings have the paths of the old one."""
    moved, asked = trial(4).place.root.rename(tmp_path / "moved"), list[str]()

    def answered(self: Cluster, *arguments: str) -> subprocess.CompletedProcess[str]:
        asked.extend(arguments)
        return subprocess.CompletedProcess(arguments, 0, '{"run-id": 7}', "")

    monkeypatch.setattr(Cluster, "flwr", answered)
    with cluster(moved, print) as found:
        assert found.submit(deadline=5.0) == "7"
    settings = parse_config_args([asked[asked.index("--run-config") + 1]])
    assert settings == {
        "config": str(moved / "server" / "config.toml"),
        "federation": str(moved / "server" / "federation.toml"),
        "folder": str(moved / "run"),
        "deadline": 5.0,
    }


def test_a_run_that_flower_refuses_is_told_in_flowers_words(
    trial: Callable[..., Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = json.dumps({"success": False, "error-message": "Using SuperLink\n\nNo such app."}, indent=2)
    monkeypatch.setattr(Cluster, "flwr", lambda self, *a: subprocess.CompletedProcess(a, 1, answer, ""))
    with cluster(trial(4).place.root, print) as found:
        assert "the run was not started: No such app.; see" in refusal(found.submit)


def test_a_federation_is_up_only_once(trial: Callable[..., Trial]) -> None:
    made = trial(4)
    with cluster(made.place.root, print):
        assert "another process" in refusal(lambda: cluster(made.place.root, print).__enter__())
