"""What a server does against clients that cheat."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import fedaws
from fedaws import Config
from fedaws.core.defences import clip_to_median, guarded, kept_apart, within
from fedaws.core.method import When
from fedaws.core.methods import method_of
from fedaws.types import Update
from helpers import refusal


def unit(*shape: int, seed: int = 0) -> torch.Tensor:
    return F.normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


def update(*change: float) -> Update:
    return Update(torch.tensor([0]), {"a": torch.tensor(change)}, torch.eye(2)[:1], torch.ones(1), torch.zeros(1))


def test_a_row_that_is_within_the_bound_stays_and_another_lands_on_it() -> None:
    rows, centres = unit(50, 8), unit(50, 8, seed=1)
    moved = within(rows, centres, 0.2)
    near = (rows * centres).sum(1) >= 0.2
    assert near.any()
    assert torch.equal(moved[near], rows[near])
    assert torch.allclose((moved * centres).sum(1)[~near], torch.tensor(0.2), atol=1e-6)
    assert torch.allclose(moved.norm(dim=1), torch.ones(50), atol=1e-6)


def test_a_row_that_comes_near_another_is_refused_and_one_that_leaves_is_not() -> None:
    sent = torch.tensor([[1.0, 0.0, 0.0], [0.8, 0.6, 0.0], [0.0, 0.0, 1.0]])
    nearer, farther = torch.tensor([[0.9539392, 0.3, 0.0]]), torch.tensor([[0.8, -0.6, 0.0]])
    assert torch.equal(kept_apart(nearer, sent, torch.tensor([0]), 0.5), sent[:1])
    assert torch.equal(kept_apart(farther, sent, torch.tensor([0]), 0.5), farther)


def test_no_change_is_longer_than_the_median() -> None:
    clipped = clip_to_median([update(3.0, 4.0), update(0.0, 1.0), update(30.0, 40.0)])
    assert [u.delta["a"].tolist() for u in clipped] == [[3.0, 4.0], [0.0, 1.0], pytest.approx([3.0, 4.0])]


def test_the_sum_of_two_clients_cannot_be_clipped_client_by_client() -> None:
    both = Update(torch.tensor([0, 1]), {}, torch.eye(2), torch.ones(2), torch.zeros(2))
    assert "one by one" in refusal(lambda: clip_to_median([both]))
    cfg = Config().override(["defence.clip=median", "train.runner=pooled"])
    assert "serial" in refusal(lambda: fedaws.train(config=cfg))


@pytest.mark.parametrize("setting", ["row_step", "anchor"])
def test_a_row_stays_near_where_it_was(setting: str) -> None:
    cfg = Config().override([f"defence.{setting}=0.9", "spread.weight=0"])
    spread = method_of(cfg).spread
    assert spread is not None
    sent = unit(4, 8)
    memory, W = spread.init(sent), sent.clone()
    W[2] = unit(8, seed=1)
    after = spread.step(W, torch.tensor([2]), When(0, 0.1, 1.0), torch.Generator(), memory)
    assert float(W[2] @ sent[2]) == pytest.approx(0.9, abs=1e-5)
    assert torch.equal(W[[0, 1, 3]], sent[[0, 1, 3]])
    assert torch.equal(after["sent"], W)
    W[2] = unit(8, seed=1)  # a second step goes on from the first, but not from an anchor
    spread.step(W, torch.tensor([2]), When(1, 0.1, 1.0), torch.Generator(), after)
    assert (float(W[2] @ sent[2]) == pytest.approx(0.9, abs=1e-5)) == (setting == "anchor")


def test_no_guard_leaves_the_method_as_it_was() -> None:
    method = method_of(Config())
    assert guarded(method, Config()) is method
    fixed = Config(method="fixed")
    assert method_of(fixed.override(["defence.apart=0.5"])).spread is None


@pytest.mark.parametrize("name", ["positive-only", "fixed", "softmax"])
def test_a_method_that_shows_rows_is_refused_where_they_are_to_stay_private(name: str) -> None:
    cfg = Config().override(["privacy.rows=private", "spread.regularizer=moments", f"method={name}"])
    assert f"method={name} keeps no row with its client" in refusal(lambda: method_of(cfg))
    own = replace(method_of(Config(method=name)), name="own")
    assert "privacy.rows=private" in refusal(lambda: fedaws.train(config=cfg, method=own))


def test_a_guarded_run_resumes_to_the_same_bits(tiny: Config, tmp_path: object) -> None:
    from pathlib import Path

    cfg = tiny.override(["defence.anchor=0.9", "defence.apart=0.6", "defence.clip=median"])
    whole = fedaws.train(config=cfg)
    stopped = fedaws.training.session.Reporter(should_stop=iter([False] * 6 + [True]).__next__)
    place = Path(str(tmp_path)) / "run"
    with pytest.raises(fedaws.training.session.Interrupted):
        fedaws.train(config=cfg, folder=place, reporter=stopped)
    assert torch.equal(fedaws.train(config=cfg, folder=place, resume=True).W, whole.W)
