"""Who took part, and what that says of ε."""

import math

import pytest
import torch
from torch import nn

from fedaws import Config
from fedaws.audit.figures import at_least, at_most, auc, mean, share
from fedaws.audit.membership import compactness, epsilon_at_least, membership, membership_of_halves, only
from fedaws.config import load
from fedaws.data import from_arrays, load_data
from fedaws.evaluate import Model
from helpers import refusal

IDENTITY = Model(nn.Identity(), {}, torch.eye(2))


def test_compactness_is_the_mean_cosine_of_two_examples() -> None:
    x = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])  # cosines 0.6, 0 and 0.8
    assert compactness(IDENTITY, x) == pytest.approx(1.4 / 3)


def test_people_whose_examples_lie_together_are_told_from_those_whose_do_not() -> None:
    rng = torch.Generator().manual_seed(0)
    close = [torch.tensor([1.0, 0.0]) + 0.1 * torch.randn(5, 2, generator=rng) for _ in range(8)]
    apart = [torch.randn(5, 2, generator=rng) for _ in range(8)]
    assert membership(IDENTITY, close, apart, IDENTITY).auc.value == 1
    assert membership(IDENTITY, close, close, IDENTITY).auc.value == 0.5


def test_scores_that_say_nothing_give_no_lower_bound() -> None:
    scores = [float(x) for x in torch.rand(200, generator=torch.Generator().manual_seed(0))]
    assert epsilon_at_least(scores[::2], scores[1::2]) == 0


def test_randomised_response_is_bounded_below_its_epsilon() -> None:
    """Whoever tells the truth with probability e^ε / (1 + e^ε) has exactly this ε: the bound is valid, and near."""
    epsilon, rng = 2.0, torch.Generator().manual_seed(0)
    honest = math.exp(epsilon) / (1 + math.exp(epsilon))
    bounds = []
    for _ in range(20):
        inside = (torch.rand(2000, generator=rng) < honest).double().tolist()
        outside = (torch.rand(2000, generator=rng) > honest).double().tolist()
        bounds.append(epsilon_at_least(inside, outside, delta=0))
    assert max(bounds) < epsilon
    assert min(bounds) > 1.4


def test_half_of_the_classes_train_and_keep_their_examples() -> None:
    data = from_arrays(torch.arange(8.0)[:, None], [0, 0, 1, 1, 2, 2, 3, 3])
    part = only(data, torch.tensor([3, 1]))
    assert part.x.flatten().tolist() == [6, 7, 2, 3]
    assert part.num_classes == 2


def test_a_run_tells_its_members_by_more_than_people_differ_anyway() -> None:
    cfg = load("digits-flower")
    found = membership_of_halves(cfg, load_data(cfg), splits=2)
    assert found.people == 20
    assert found.auc.low > 0.5
    assert found.auc.value > found.auc.chance


def test_three_classes_are_too_few(tiny: Config) -> None:
    cfg = tiny.override(["data.classes=3"])
    assert "at least 4 classes" in refusal(lambda: membership_of_halves(cfg, load_data(cfg)))


def test_the_bounds_of_a_share_are_those_of_the_binomial() -> None:
    for hits in (1, 5, 9):  # P(X ≥ hits) = 2.5 % at the lower bound
        p = at_least(hits, 10)
        tail = sum(math.comb(10, k) * p**k * (1 - p) ** (10 - k) for k in range(hits, 11))
        assert tail == pytest.approx(0.025)
        assert at_most(10 - hits, 10) == pytest.approx(1 - p)


def test_wilsons_interval_and_the_bootstraps() -> None:
    figure = share(8, 10, chance=0.5)
    z, p = 1.959964, 0.8
    centre, half = (p + z * z / 20) / (1 + z * z / 10), z / (1 + z * z / 10) * math.sqrt(p * 0.2 / 10 + z * z / 400)
    assert (figure.low, figure.high) == pytest.approx((centre - half, centre + half), abs=1e-5)
    assert mean([0.0, 1.0] * 50).low == pytest.approx(0.4, abs=0.03)  # 0.5 − 1.96 · 0.5 / √100
    assert auc([2.0] * 5, [1.0] * 5).low == 1
