"""Secure sums over real processes on loopback, with TLS and keys: `make e2e`."""

import json
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

import fedaws
from fedaws import Config
from fedaws.core.methods import method_of
from fedaws.flower.settings import SERVER_LOG
from fedaws.flower.up import Cluster, cluster
from fedaws.privacy.sum_keeper import PEERS_FILE, ROW_FILES, STATE_FILE
from fedaws.record.folder import PARTICIPANTS, RunFolder
from fedaws.tensor_files import read_safetensors
from flower_trial import Trial, make_trial

pytestmark = pytest.mark.e2e

LATE = 3600.0  # seconds, for a machine that is busy with other work
PATIENT = {
    "deadline": 600.0,
    "grace": 600.0,
    "wait": 1800.0,
}  # nobody is late for being slow; of a dead node Flower tells in a minute
UPLOAD = 20.0  # seconds from a node's note of its answer to the answer's arrival


def finish(running: Cluster, run_id: str, look: Callable[[], None] = lambda: None) -> None:
    end = time.monotonic() + LATE
    while not (status := running.status(run_id)).startswith("finished"):
        assert time.monotonic() < end
        for _ in range(50):
            look()
            time.sleep(0.2)
    assert status == "finished:completed", running._why(run_id)


def last_sum(made: Trial, name: str) -> int:
    """The number of the last sum that a node has given its part to."""
    path = made.place.node(name) / STATE_FILE
    return int(json.loads(path.read_text())["number"]) if path.exists() else 0


def first_rows_of(made: Trial, found: dict[int, torch.Tensor]) -> None:
    """Look for the rows that nodes have drawn, as long as they still have them."""
    for member in made.members:
        for path in made.place.node(member.name).glob(ROW_FILES):
            rows, _ = read_safetensors(path)
            found.setdefault(member.client, rows.get("0", torch.zeros(0)))


@pytest.mark.parametrize("rows", ["clear", "private"])
def test_five_nodes_give_the_simulations_model_and_two_may_die_between_the_stages(
    tmp_path_factory: pytest.TempPathFactory, tiny: Config, rows: str
) -> None:
    settings = [
        "data.classes=5",
        "model.hidden=[16]",
        "train.rounds=3",
        "train.runner=serial",
        "train.evaluate_every=1",
        "spread.regularizer=moments",
        f"privacy.rows={rows}",
    ]
    config = tiny.override([*settings, "privacy.secure_sums=true", "privacy.min_cohort=3"])
    made = make_trial(tmp_path_factory.mktemp("secure") / "federation", config, 5)
    for member in made.members:  # two runs, of two and of three rounds
        path = made.place.node(member.name) / PEERS_FILE
        path.write_text(path.read_text().replace('settings = "first"', 'settings = "any"'))
    with cluster(made.place.root, print) as running:
        running.start()
        two, drawn = config.override(["train.rounds=2"]), dict[int, torch.Tensor]()
        first = RunFolder(made.place.root / "first")
        run_id = running.submit(folder=str(first.path), settings="train.rounds=2", **PATIENT)
        finish(running, run_id, lambda: first_rows_of(made, drawn))
        theta, W, *_ = first.load_model()
        method = method_of(two)
        if rows == "private":
            begin = torch.stack([drawn[client] for client in range(5)])
            method = replace(method, start=lambda seeded: begin)
            assert not W.any()
        simulated = fedaws.train(made.data(), config=two, method=method)
        if rows == "clear":
            torch.testing.assert_close(W, simulated.W, atol=1e-6, rtol=0)
        for name, tensor in theta.items():
            torch.testing.assert_close(tensor, simulated.theta[name], atol=1e-6, rtol=0)

        folder = RunFolder(made.place.run)
        # Of another seed: at the θ of the first run nodes would refuse a second sum over fewer of them.
        run_id = running.submit(settings="seed=1", **PATIENT)
        end = time.monotonic() + LATE
        while not folder.checkpoints():
            assert time.monotonic() < end
            time.sleep(0.2)
        before = last_sum(made, "node-1")
        running.processes.kill("node-4")  # in round 2, before it has answered
        while last_sum(made, "node-1") == before:
            assert time.monotonic() < end
            time.sleep(0.2)
        time.sleep(UPLOAD)  # the server is waiting for node-4, until Flower says that it is gone
        running.processes.kill("node-1")  # its vector has arrived, its shares have not
        finish(running, run_id)
    assert [row["round"] for row in folder.metrics()] == [1, 2, 3]
    second = next(
        line for line in map(json.loads, (folder.path / PARTICIPANTS).read_text().splitlines()) if line["round"] == 2
    )
    assert second["answered"] == ["node-0", "node-1", "node-2", "node-3"]
    assert list(second["dropped"]) == ["node-4"]
    if rows == "private":
        assert "round 2: 4 of 5 nodes told of their rows" in (folder.path / SERVER_LOG).read_text()
        files = [path for m in made.members for path in made.place.node(m.name).glob(ROW_FILES)]
        assert len(files) == 5 * 2  # a file for each run
        assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
