"""Means of private rows from noisy sums: how far one row moves them, what noise alone does, what is sent."""

import math

import pytest
import torch
import torch.nn.functional as F

from fedaws.config import Config
from fedaws.core.noisy_sums import (
    NOISE,
    after_step,
    nearest_moments,
    noise_energies,
    running_means,
    tell_bounded,
    window,
)
from fedaws.core.private_rows import make_sum_spread
from fedaws.core.sums import HEARD, unsound_moments
from fedaws.privacy.mechanism import from_generator, noised_sums
from fedaws.types import Params

NOISY = ["privacy.rows=private", "spread.regularizer=moments", "privacy.clip=1", "privacy.noise=1"]


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rows(count: int, dim: int, lean: float = 0.0) -> torch.Tensor:
    return F.normalize(torch.randn(count, dim, generator=rng(1)) + lean, dim=1)


def length(told: Params) -> float:
    return math.sqrt(sum(float(part.double().square().sum()) for part in told.values()))


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_whatever_a_client_has_for_a_row_it_moves_each_sum_by_at_most_one(scale: float) -> None:
    others, theirs = rows(6, 5), rows(40, 5) * scale
    without = tell_bounded(others)
    for row in theirs:
        told = tell_bounded(torch.cat([others, row[None]]))
        for name in ("first", "second"):
            assert length({name: told[name] - without[name]}) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 0.0])
def test_a_row_that_is_not_finite_or_nothing_tells_nothing(value: float) -> None:
    assert length(tell_bounded(torch.tensor([[value, 0.0, 0.0]]))) == 0


def test_one_row_in_the_place_of_another_moves_both_sums_together_by_at_most_two_root_two() -> None:
    found = [length({k: v - tell_bounded(b[None])[k] for k, v in tell_bounded(a[None]).items()}) for a, b in pairs()]
    assert max(found) <= 2 * math.sqrt(2)
    assert max(found) > 1.9  # opposite rows: 2 in the first, 0 in the second


def pairs() -> list[tuple[torch.Tensor, torch.Tensor]]:
    some = rows(20, 3)
    return [(a, b) for a in some for b in torch.cat([some, -some])]


def test_noise_alone_moves_no_row() -> None:
    spread, memory = make_sum_spread(Config().override(NOISY)), running_means(Config().override(NOISY))
    W = rows(8, 6)
    kept, like = memory.init(spread, W, 8), spread.unknown(6)
    energies = noise_energies(6, 50 / 8, 8, 1.0)
    still = 0
    for turn in range(40):
        told = noised_sums(tell_bounded(W), like, 50.0, 8, from_generator(rng(turn)))
        after = memory.hear(kept, {**told, NOISE: energies}, torch.arange(8), 1)
        still += int(spread.step(W, memory.means(spread, after, W), 1.0).allclose(W, atol=1e-5))
    assert still >= 36


def test_with_little_noise_the_means_are_those_of_the_rows() -> None:
    spread, memory = make_sum_spread(Config().override(NOISY)), running_means(Config().override(NOISY))
    W = rows(30, 4, lean=0.7)
    told = noised_sums(tell_bounded(W), spread.unknown(4), 1e-6, 30, from_generator(rng()))
    told[NOISE] = noise_energies(4, 1e-6 / 30, 30, 1.0)
    means = memory.means(spread, memory.hear(memory.init(spread, W, 30), told, torch.arange(30), 1), W)
    torch.testing.assert_close(means["first"], W.mean(0), atol=1e-5, rtol=0)
    torch.testing.assert_close(means["second"], W.T @ W / 30, atol=1e-5, rtol=0)


def test_shrinking_takes_off_what_may_be_noise() -> None:
    spread, memory = make_sum_spread(Config().override(NOISY)), running_means(Config().override(NOISY))
    first = torch.zeros(8)
    first[0] = 0.2
    told = {"first": first, "second": torch.eye(8) / 8, NOISE: torch.tensor([0.01, 1.0], dtype=torch.float64)}
    W = rows(5, 8)
    means = memory.means(spread, memory.hear(memory.init(spread, W, 5), told, torch.arange(5), 1), W)
    torch.testing.assert_close(means["first"], first * (1 - 0.025 / 0.04))  # 0.01 (1 + 3 √(2/8)) = 0.025


def test_the_noise_of_a_running_mean_is_that_of_its_parts() -> None:
    memory, spread = (
        running_means(Config().override([*NOISY, "clients.per_round=5"])),
        make_sum_spread(Config().override(NOISY)),
    )
    kept = memory.init(spread, rows(10, 3), 10)
    for turn in range(1, 4):  # a plain mean of three
        told = {"first": torch.full((3,), turn / 10), "second": torch.eye(3) / 3, NOISE: torch.tensor([0.9, 0.3])}
        kept = memory.hear(kept, told, torch.arange(5), turn)
    torch.testing.assert_close(kept["first"], torch.full((3,), 0.2, dtype=torch.float64))
    torch.testing.assert_close(kept[NOISE], torch.tensor([0.3, 0.1], dtype=torch.float64), atol=1e-6, rtol=0)


def test_nobody_is_ever_counted_so_that_all_is_told_each_time() -> None:
    memory, spread = (
        running_means(Config().override([*NOISY, "clients.per_round=5"])),
        make_sum_spread(Config().override(NOISY)),
    )
    kept = memory.init(spread, rows(10, 3), 10)
    told = {"first": torch.zeros(3), "second": torch.zeros(3, 3), NOISE: torch.zeros(2)}
    assert not memory.hear(kept, told, torch.arange(5), 7)[HEARD].any()


def test_energies_are_those_of_symmetric_noise_and_of_coins() -> None:
    dim, people, share = 4, 50, 0.2
    W = rows(people, dim)
    mean = {name: total / people for name, total in tell_bounded(W).items()}
    found = torch.zeros(2)
    draws = 1000
    for turn in range(draws):
        heads = torch.rand(people, generator=rng(turn)) < share
        told = noised_sums(tell_bounded(W[heads]), mean, 2.0, share * people, from_generator(rng(turn)))
        second = (told["second"] + told["second"].T) / 2
        found += torch.stack([(told["first"] - mean["first"]).square().sum(), (second - mean["second"]).square().sum()])
    expected = noise_energies(dim, 2.0 / (share * people), share * people, share)
    torch.testing.assert_close(found.double() / draws, expected, rtol=0.08, atol=0)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_sent_could_be_the_means_of_rows(seed: int) -> None:
    noise = torch.randn(5, 5, generator=rng(seed), dtype=torch.float64)
    first = torch.randn(5, generator=rng(seed + 100), dtype=torch.float64)
    sent = nearest_moments(first * (seed % 4), (noise + noise.T) / 2 * (seed % 3))
    assert unsound_moments(sent) is None


def test_means_that_rows_can_have_stay_as_they_are() -> None:
    W = rows(9, 4, lean=0.3).double()
    first, second = W.mean(0), W.T @ W / 9
    sent = nearest_moments(first, second)
    torch.testing.assert_close(sent["first"], first)
    torch.testing.assert_close(sent["second"], second)


def test_a_window_hears_everybody_about_twice() -> None:
    assert [window(n / 100) for n in (100, 20, 10, 5)] == [10, 10, 20, 40]


def test_moments_after_a_step_are_those_of_the_rows_after_it() -> None:
    """Exactly where all rows are shortened alike: here by a shift at right angles to what they have beside it."""
    angles = torch.rand(50, generator=rng(), dtype=torch.float64) * 2 * math.pi
    W = torch.stack([0.6 * angles.cos(), 0.3 * angles.sin(), torch.full_like(angles, 0.5)], 1)
    W = F.normalize(W, dim=1)
    moments = {name: total / 50 for name, total in tell_bounded(W).items()}
    spread = make_sum_spread(Config().override([*NOISY, "spread.whitening=0.1"]))
    moved = spread.step(W, moments, 1.0)
    expected = {name: total / 50 for name, total in tell_bounded(moved).items()}
    found = after_step(moments, moments, 0.1)
    before = (moments["second"] - expected["second"]).norm()
    assert float((found["second"] - expected["second"]).norm()) < 0.2 * float(before)
    assert float((found["first"] - expected["first"]).norm()) < 0.2 * float(moments["first"].norm())


def test_rows_that_lean_one_way_are_centred_without_swinging_over() -> None:
    cfg = Config().override([*NOISY, "spread.whitening=0.1", "train.schedule=constant"])
    spread, memory, W = make_sum_spread(cfg), running_means(cfg), rows(200, 6, lean=0.5)
    lean, kept = W.mean(0), memory.init(make_sum_spread(cfg), W, 200)
    along = []
    for turn in range(1, 25):
        W = spread.step(W, memory.means(spread, kept, W), 1.0)
        told = {name: total / 200 for name, total in tell_bounded(W).items()}
        kept = memory.hear(kept, {**told, NOISE: torch.full((2,), 1e-6)}, torch.arange(200), turn)
        along.append(float(W.mean(0) @ F.normalize(lean, dim=0)))
    assert along[0] > 0.4
    assert min(along) > -0.1
    assert abs(along[-1]) < 0.05
