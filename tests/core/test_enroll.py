"""The closing step on the rows, and what of it a run, a method and Flower make."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from fedaws.core.enroll import enroll
from fedaws.runners.means import embedding_sums

import fedaws
from fedaws import Config
from fedaws.training.session import Interrupted, Reporter
from helpers import refusal


def digits(*settings: str) -> Config:
    few = ["train.rounds=6", "train.evaluate_every=3", "train.checkpoint_every=2", "train.threads=1"]
    return Config().override([*few, *settings])


def test_no_weight_leaves_the_rows() -> None:
    W = F.normalize(torch.randn(5, 3, generator=torch.Generator().manual_seed(0)), dim=1)
    torch.testing.assert_close(enroll(W, torch.ones(5, 3), 0.0), W)


def test_a_large_weight_puts_every_row_on_its_mean() -> None:
    W, means = torch.eye(2), torch.tensor([[3.0, 4.0], [-4.0, 3.0]])
    torch.testing.assert_close(enroll(W, means, 1e6), means / 5, atol=1e-5, rtol=0)


def test_the_sums_are_those_of_a_loop_over_the_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedaws.runners.means._BLOCK", 100)  # so that a client's examples lie in several blocks
    run = fedaws.train(config=digits("data.clients_per_class=2"))
    data = run.data
    assert data is not None
    sums = embedding_sums(run.encoder, run.theta, data)
    expected = torch.zeros(10, run.W.shape[1])
    for client, own in enumerate(data.class_of.tolist()):
        mine = data.x[int(data.starts[client]) : int(data.starts[client + 1])]
        expected[own] += len(mine) * run.embed(mine).mean(0)
    torch.testing.assert_close(sums, expected, atol=1e-3, rtol=1e-5)


def test_a_run_is_enrolled_once_after_its_last_round() -> None:
    plain, enrolled = fedaws.train(config=digits()), fedaws.train(config=digits("train.enroll=0.5"))
    assert plain.data is not None
    assert enrolled.metrics[0]["precision@1"] == plain.metrics[0]["precision@1"]  # of round 3
    assert all(enrolled.theta[name].equal(plain.theta[name]) for name in plain.theta)
    expected = enroll(plain.W, embedding_sums(plain.encoder, plain.theta, plain.data), 0.5)
    torch.testing.assert_close(enrolled.W, expected)


def test_a_killed_run_is_enrolled_as_if_it_had_not_been(tmp_path: Path) -> None:
    cfg, rounds = digits("train.enroll=0.5"), iter(range(100))
    with pytest.raises(Interrupted):
        fedaws.train(config=cfg, folder=tmp_path / "run", reporter=Reporter(should_stop=lambda: next(rounds) == 4))
    resumed = fedaws.train(config=cfg, folder=tmp_path / "run", resume=True)
    again = fedaws.train(config=cfg, folder=tmp_path / "run", resume=True)  # it is finished: not a second time
    assert resumed.W.equal(fedaws.train(config=cfg).W)
    assert again.W.equal(resumed.W)


def test_rows_that_nobody_trains_are_not_enrolled() -> None:
    settings = ["method=fixed", "train.rounds=1"]
    assert fedaws.train(config=digits(*settings, "train.enroll=1")).W.equal(fedaws.train(config=digits(*settings)).W)


def test_rows_of_any_length_cannot_be_enrolled() -> None:
    told = refusal(lambda: Config().override(["model.normalize=false", "train.enroll=1"]))
    assert "set model.normalize=true" in told


def test_over_flower_it_is_refused() -> None:
    pytest.importorskip("flwr")
    from fedaws.flower import FedAwS

    told = refusal(lambda: FedAwS(class_of={"a": 0, "b": 1}, config=Config().override(["train.enroll=1"])))
    assert told == "train.enroll=1 is not carried over Flower yet; set train.enroll=0"
