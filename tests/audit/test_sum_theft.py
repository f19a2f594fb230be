"""What the means of private rows tell of single ones: of three clients all."""

import pytest
import torch
import torch.nn.functional as F

from fedaws import Config
from fedaws.audit.federation import short
from fedaws.audit.row_theft import match, of_moments
from fedaws.audit.sum_theft import Told, _mover, explain, lie, sum_theft, watch_sums
from fedaws.core.methods import method_of
from fedaws.core.private_rows import make_sum_spread
from fedaws.data import load_data
from helpers import refusal


def unit(*shape: int, seed: int = 0) -> torch.Tensor:
    return F.normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


@pytest.fixture
def private(tiny: Config) -> Config:
    return tiny.override(["privacy.rows=private", "spread.regularizer=moments", "data.classes=4"])


def test_the_attackers_step_is_the_clients_step(private: Config) -> None:
    cfg = private.override(["spread.whitening=0.6"])
    W = F.normalize(unit(9, 5) + 0.3, dim=1)
    means = {"first": W.mean(0), "second": W.T @ W / 9}
    torch.testing.assert_close(_mover(means, 0.6 * 0.5)(W), make_sum_spread(cfg).step(W, means, 0.5))


def test_of_three_clients_the_means_tell_each_the_rows_of_the_others() -> None:
    """w + w' is 3μ less the own row, and (w − w')(w − w')ᵀ follows from M."""
    W = unit(3, 6)
    found = of_moments(W.mean(0), W.T @ W / 3, W[0], 2, torch.Generator().manual_seed(0))
    assert float(match(found, W[1:]).min()) > 0.99


def test_the_means_of_a_liar_are_such_as_a_node_does_not_refuse(private: Config) -> None:
    assert make_sum_spread(private).unsound(lie(unit(8))) is None


@pytest.mark.parametrize("who", ["passive", "active", "lying server"])
def test_what_is_watched_is_what_clients_were_told_and_told(private: Config, who: str) -> None:
    cfg = short(private, 3, 0)
    spread = method_of(cfg).own_spread
    assert spread is not None
    told, W = watch_sums(cfg, load_data(cfg), who, spread)  # type: ignore[arg-type]
    assert (len(told.own), len(told.means), len(told.steps), len(told.shares)) == (4, 4, 3, 3)
    torch.testing.assert_close(told.means[-1]["second"], W.T @ W / 4)
    torch.testing.assert_close(told.own[-1], W[0])
    honest = torch.equal(told.steps[1]["first"], told.means[1]["first"])
    assert honest == (who != "lying server")


def test_with_noise_on_the_sums_the_running_means_are_watched(private: Config) -> None:
    cfg = short(private.override(["privacy.row_noise=0.5"]), 3, 0)
    spread = method_of(cfg).own_spread
    assert spread is not None
    told, W = watch_sums(cfg, load_data(cfg), "active", spread)
    assert float((told.means[-1]["second"] - W.T @ W / 4).norm()) > 0.05
    torch.testing.assert_close(told.own[-1], W[0])


def test_rows_that_only_take_known_steps_are_found_better_than_from_the_last_means_alone() -> None:
    """Four rows in three dimensions that a liar pushes about, and no training: the attack works where it can."""
    rng, rows = torch.Generator().manual_seed(0), unit(4, 3, seed=3)
    lies = [lie(direction) for direction in unit(8, 3, seed=1)]
    path = [rows]
    for step in lies:
        path.append(_mover(step, 1.0)(path[-1]))
    means = [{"first": W.mean(0), "second": W.T @ W / 4} for W in path]
    told = Told(torch.stack([W[0] for W in path]), means, lies, [1.0] * 8)
    tries = torch.stack(
        [of_moments(means[-1]["first"], means[-1]["second"], path[-1][0], 3, rng, steps=100) for _ in range(8)]
    )
    guessed = torch.stack([match(rows, path[-1][1:]) for rows in tries]).mean()
    assert float(match(explain(told, tries, stiff=1.0), path[-1][1:]).mean()) > float(guessed) + 0.02


def test_of_three_clients_a_run_tells_each_the_rows_of_the_others(private: Config) -> None:
    cfg = private.override(["data.classes=3"])
    found = sum_theft(cfg, load_data(cfg), "passive", 3)
    assert found.cosine.value > 0.98
    assert (found.stolen, found.clients) == (2, 3)
    assert "private rows, 3 rounds" in found.finding().does


def test_rows_in_the_clear_are_another_attack(tiny: Config) -> None:
    cfg = tiny.override(["data.classes=4"])
    assert "privacy.rows=private" in refusal(lambda: sum_theft(cfg, load_data(cfg), "passive", 2))
