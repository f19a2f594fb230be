"""What the server remembers between rounds is part of the run: it is kept, and resumed from."""

from pathlib import Path

import pytest
import torch

import fedaws
from fedaws.training.session import Interrupted, Reporter

SETTINGS = [
    "data.name=synthetic",
    "data.classes=60",
    "data.features=8",
    "model.embedding_dim=8",
    "clients.per_round=10",
    "spread.regularizer=nearest",
    "spread.neighbors=3",
    "spread.candidates=12",
    "spread.center=true",
    "spread.whiten=true",
    "train.rounds=9",
    "train.evaluate_every=9",
    "train.checkpoint_every=4",
]


def configured(*more: str) -> fedaws.Config:
    return fedaws.Config().override([*SETTINGS, *more])


def test_a_stopped_run_that_remembers_neighbours_ends_with_the_same_bits(tmp_path: Path) -> None:
    cfg, rounds = configured("spread.remember=true", "spread.every=3"), []

    def count(round_num: int, loss: float) -> None:
        rounds.append(round_num)

    stopping = Reporter(on_round=count, should_stop=lambda: len(rounds) == 5)
    with pytest.raises(Interrupted):
        fedaws.train(config=cfg, folder=tmp_path / "stopped", reporter=stopping)
    resumed = fedaws.train(config=cfg, folder=tmp_path / "stopped", resume=True)
    whole = fedaws.train(config=cfg)
    assert resumed.W.equal(whole.W)
    assert all(torch.equal(resumed.theta[name], value) for name, value in whole.theta.items())


def test_remembering_changes_what_is_pushed_apart() -> None:
    assert not fedaws.train(config=configured("spread.remember=true")).W.equal(fedaws.train(config=configured()).W)
