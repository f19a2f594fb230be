"""Real processes on loopback, with TLS and keys, as short as they can be; `make e2e` has the long ones."""

import time
from pathlib import Path

import pytest
import torch

import fedaws
from fedaws import Config
from fedaws.flower.up import cluster
from fedaws.record.folder import RunFolder
from flower_trial import make_trial

LATE = 600.0  # seconds, for a machine that is busy with other work


# A node answers each question in a new Python, nearly all of whose time are imports: `make e2e` asks the third one.
@pytest.mark.parametrize("settings", [[], pytest.param(["train.enroll=0.5"], marks=pytest.mark.e2e)])
def test_two_nodes_train_two_rounds_over_tls_and_give_the_model_of_fedaws_train(
    tmp_path: Path, tiny: Config, settings: list[str]
) -> None:
    # Wider than tiny's: with eight units one example of these two classes has the embedding 0.
    config = tiny.override(["data.classes=2", "model.hidden=[16]", "train.rounds=2", "train.runner=serial"])
    config = config.override(settings)
    made = make_trial(tmp_path / "federation", config, 2)
    folder = RunFolder(made.place.run)
    end = time.monotonic() + LATE
    with cluster(made.place.root, print) as running:
        running.start()
        running.submit(deadline=LATE, grace=LATE, wait=LATE)
        while not folder.finished:
            assert time.monotonic() < end
            assert all(running.processes.alive(name) for name in ("superlink", "node-0", "node-1"))
            time.sleep(0.2)
    (row,) = folder.metrics()
    assert (row["round"], row["replies"], row["rejected"]) == (2, 2, 0)
    theta, W, *_ = folder.load_model()
    simulated = fedaws.train(made.data(), config=config)
    torch.testing.assert_close(W, simulated.W, atol=1e-5, rtol=0)
    for name, tensor in theta.items():
        torch.testing.assert_close(tensor, simulated.theta[name], atol=1e-5, rtol=0)
