"""Real processes on loopback, with TLS and keys: `make e2e`. Bounded in time, and nothing is left running.

The bounds are for a machine that is busy with other work; on an idle one nothing comes near them.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
import torch

import fedaws
from fedaws import Config
from fedaws.flower.setup import create
from fedaws.flower.up import Cluster, Processes, cluster
from fedaws.record.folder import PARTICIPANTS, RunFolder
from flower_trial import Trial, make_trial

pytestmark = pytest.mark.e2e

ROUNDS = 12  # in fewer, a class that misses two of them has no time to catch up
SOON, LATE = 900.0, 3600.0  # seconds: for a process to start or end; for a run
PATIENT = {
    "deadline": 600.0,
    "grace": 600.0,
    "wait": 1800.0,
}  # nobody is late for being slow; of a dead node Flower tells in a minute


@pytest.fixture(scope="module")
def config() -> Config:
    return fedaws.config.load("digits-flower").override([f"train.rounds={ROUNDS}"])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, config: Config) -> Trial:
    """Three digits on five nodes: two of the classes have two nodes."""
    return make_trial(tmp_path_factory.mktemp("e2e") / "federation", config, 5, 3)


@pytest.fixture(scope="module")
def running(made: Trial) -> Iterator[Cluster]:
    with cluster(made.place.root, print) as found:
        found.database = made.place.root / "superlink.db"  # it will be killed, and must know its nodes again
        found.start()
        yield found


def wait_for(name: str, what: Callable[[], Any], seconds: float, pause: float = 0.5) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, f"waited {seconds:g} s in vain for {name}"
        time.sleep(pause)


def rounds_done(folder: RunFolder) -> int:
    files = folder.checkpoints()
    return int(files[-1].stem.removeprefix("round-")) if files else 0


def log_of(made: Trial, name: str) -> str:
    return (made.place.logs / f"{name}.log").read_text(errors="replace")


def finish(running: Cluster, run_id: str, folder: RunFolder) -> None:
    """Wait for the end of a run, which must be a good one."""
    status = "unknown"

    def ended() -> bool:
        nonlocal status
        status = running.status(run_id)
        return status.startswith("finished")

    # Asking starts a Python, so not too often.
    wait_for(f"the end of run {run_id}", ended, LATE, pause=15)
    assert status == "finished:completed", running._why(run_id)
    assert folder.finished


def test_a_run_over_tls_gives_the_model_of_fedaws_train(running: Cluster, made: Trial) -> None:
    folder = RunFolder(made.place.run)
    finish(running, running.submit(**PATIENT), folder)
    theta, W, *_ = folder.load_model()
    serial = fedaws.train(made.data(), config=made.config.override(["train.runner=serial"]))  # what a node runs
    torch.testing.assert_close(W, serial.W, atol=1e-6, rtol=0)
    for name, tensor in theta.items():
        torch.testing.assert_close(tensor, serial.theta[name], atol=1e-6, rtol=0)
    # Other runners round otherwise. Once the loss is nearly 0 that is all there is of a gradient, and Muon gives it its
    # full length: θ then differs where no example tells, in the third decimal, but not what it says of the digits.
    usual = fedaws.train(made.data(), config=made.config)
    torch.testing.assert_close(W, usual.W, atol=1e-4, rtol=0)
    last = folder.metrics()[-1]
    assert last["precision@1"] == pytest.approx(usual.metrics[-1]["precision@1"], abs=0.005)
    assert last["rejected"] == 0


def test_an_unregistered_key_is_refused(running: Cluster, made: Trial, tmp_path: Path, config: Config) -> None:
    stranger = create(tmp_path / "stranger", config, 2, 2)
    running.start_node("node-0", key=stranger.node("node-1") / "key", process="stranger")
    wait_for("the stranger's end", lambda: not running.processes.alive("stranger"), SOON)
    assert "Failed to activate SuperNode" in log_of(made, "stranger")


def test_kills_of_a_node_and_of_the_superlink_cost_only_the_round_in_flight(running: Cluster, made: Trial) -> None:
    folder = RunFolder(made.place.root / "disturbed")
    running.submit(folder=str(folder.path), **PATIENT)
    wait_for("round 1", lambda: rounds_done(folder) >= 1, LATE)
    time.sleep(2)  # into the next round
    running.processes.kill("node-4")
    wait_for("round 3, without node-4", lambda: rounds_done(folder) >= 3, LATE)
    assert any("node-4" in dropped for dropped in dropped_in(folder, 2, 3))
    running.processes.kill("superlink")
    kept = rounds_done(folder)
    running.start_superlink()
    # Flower takes a node for online until a minute after its last sign of life.
    wait_for("node-4 to be let in again", lambda: joined(running, made, "node-4"), SOON)
    finish(running, running.submit(folder=str(folder.path), **PATIENT), folder)
    assert kept >= 3
    assert [row["round"] for row in folder.metrics()] == list(range(1, ROUNDS + 1))
    assert folder.metrics()[-1]["replies"] == 5
    undisturbed = fedaws.train(made.data(), config=made.config).metrics[-1]["precision@1"]
    assert undisturbed >= 0.95
    assert folder.metrics()[-1]["precision@1"] >= undisturbed - 0.02  # some rounds had no node-4


def dropped_in(folder: RunFolder, *rounds: int) -> list[dict[str, str]]:
    lines = map(json.loads, (folder.path / PARTICIPANTS).read_text().splitlines())
    return [line["dropped"] for line in lines if line["round"] in rounds]


def joined(running: Cluster, made: Trial, name: str, class_id: int | None = None) -> bool:
    """Try to start a node again; it exits as long as its old self counts as online."""
    before = len(log_of(made, name))
    running.start_node(name, class_id=class_id)
    wait_for(
        f"{name} to be let in or refused",
        lambda: not running.processes.alive(name) or "SuperNode ID" in log_of(made, name)[before:],
        SOON,
    )
    return running.processes.alive(name)


def test_a_registered_node_that_claims_another_class_gets_nothing_of_it(running: Cluster, made: Trial) -> None:
    folder = RunFolder(made.place.root / "claimed")
    running.processes.kill("node-1")
    # It is registered with class 0.
    wait_for("node-1 to be let in again", lambda: joined(running, made, "node-1", 2), SOON)
    finish(running, running.submit(folder=str(folder.path), settings="train.rounds=1", **PATIENT), folder)
    last = folder.metrics()[-1]
    assert (last["replies"], last["rejected"]) == (4, 1)
    assert "this node has class 2, the server takes it for class 0" in log_of(made, "node-1")


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGHUP], ids=["ctrl-c", "a closed terminal"])
def test_what_up_has_started_ends_with_it(tmp_path: Path, config: Config, ending: signal.Signals) -> None:
    place = create(tmp_path / "trial", config, 2, 2)
    command = [sys.executable, "-m", "fedaws", "flower", "up", str(place.root)]
    # A shell's background job ignores Ctrl-C, and so would all that it starts.
    old = signal.signal(ending, signal.SIG_DFL)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        signal.signal(ending, old)
        assert process.stderr is not None
        watchdog, said = Timer(SOON, process.kill), [""]
        watchdog.start()
        try:
            while "nodes started" not in said[-1]:
                said.append(process.stderr.readline())
                assert said[-1], f"up ended, or took longer than {SOON:g} s, after saying {said}"
            time.sleep(5)
            process.send_signal(ending)
            assert process.wait(SOON) == 130
        finally:
            watchdog.cancel()
            process.kill()
            left = [pid for pid in os.listdir("/proc") if pid.isdigit() and str(place.root) in environment(pid)]
            Processes(place).end_strays()
    assert left == []


def environment(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/environ").read_text(errors="replace")
    except OSError:
        return ""
