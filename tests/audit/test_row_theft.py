"""What a node's own row tells of the others': all where one other pushes, nothing where nobody does."""

import pytest
import torch
import torch.nn.functional as F

from fedaws import Config
from fedaws.audit.federation import short
from fedaws.audit.row_theft import Seen, guess, match, of_moments, respond, row_theft, steal, watch
from fedaws.core.method import When
from fedaws.core.methods import method_of
from fedaws.data import load_data


def unit(*shape: int, seed: int = 0) -> torch.Tensor:
    return F.normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


@pytest.mark.parametrize(
    "settings",
    [
        ["spread.regularizer=margin"],
        ["spread.regularizer=nearest"],
        ["spread.regularizer=nearest", "spread.neighbors=1"],
        ["spread.regularizer=nearest", "spread.neighbors=all"],
        ["spread.regularizer=moments"],
        ["spread.regularizer=uniformity"],
        ["spread.regularizer=softmax"],
        ["spread.regularizer=margin", "spread.neighbors=2"],
    ],
    ids=" ".join,
)
def test_the_attackers_model_of_spreading_is_the_spreading(tiny: Config, settings: list[str]) -> None:
    cfg = tiny.override([*settings, "train.rounds=1", "train.schedule=constant"])
    spread = method_of(cfg).spread
    W = unit(6, 5)
    predicted = respond(cfg)(W[:1], W[None, 1:])[0, 0]
    moved = W.clone()
    assert spread is not None
    spread.step(moved, torch.arange(6), When(0, cfg.class_lr, 1.0), torch.Generator(), spread.init(moved))
    assert (predicted - moved[0]).norm() < 0.02 * (W[0] - moved[0]).norm() + 1e-5  # the power method is no eigensolver


def test_the_row_of_one_other_class_is_found_exactly() -> None:
    cfg = Config().override(["spread.regularizer=nearest", "spread.neighbors=1", "train.rounds=2"])
    own, other = unit(8), unit(8, seed=1)
    factors = [1.0, 0.5]  # of a cosine over two rounds
    moved = torch.stack([F.normalize((1 + f) * own - f * other, dim=0) for f in factors])
    found = steal(Seen(own.expand(2, -1), moved), 1, cfg, torch.Generator().manual_seed(0))
    assert match(found, other[None]).item() == pytest.approx(1, abs=1e-4)


def test_rows_of_ones_choice_tell_more_than_ones_own(tiny: Config) -> None:
    cfg = tiny.override(["data.classes=3", "spread.regularizer=margin", "clients.class_lr=0.01", "clients.lr=0.01"])
    data = load_data(cfg)
    active, passive = (row_theft(cfg, data, kind, 40) for kind in ("active", "passive"))
    assert active.cosine.value > 0.95
    assert active.cosine.value > passive.cosine.value
    assert active.stolen == 2


def test_fixed_rows_tell_nothing(tiny: Config) -> None:
    cfg = tiny.override(["data.classes=8", "model.embedding_dim=16", "method=fixed"])
    data = load_data(cfg)
    seen, _ = watch(short(cfg, 5, 0), data, "passive", 0)
    assert torch.equal(seen.sent, seen.received)
    found = row_theft(cfg, data, "passive", 5, seeds=(0, 1, 2))
    assert found.cosine.low <= found.cosine.chance <= found.cosine.high


def test_of_two_rows_the_moments_tell_the_other() -> None:
    W = unit(2, 6)
    found = of_moments(W.mean(0), W.T @ W / 2, W[0], 1, torch.Generator().manual_seed(0))
    assert match(found, W[1:]).item() == pytest.approx(1, abs=1e-3)


def test_a_guess_keeps_away_from_the_own_row() -> None:
    own = unit(16)
    assert (guess(own, 5, torch.Generator().manual_seed(0)) @ own).max() < 0.1
