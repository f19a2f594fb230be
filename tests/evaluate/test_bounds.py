"""Separation of the classes, and the bounds on the error that follow from it."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from fedaws.evaluate import theory
from fedaws.evaluate.theory import error_bounds, separation

SEEDS = st.integers(0, 2**31)


def random_rows(seed: int, rows: int, dim: int) -> torch.Tensor:
    return torch.randn(rows, dim, generator=torch.Generator().manual_seed(seed))


def separation_by_a_loop(W: torch.Tensor, some: Sequence[int] | None = None) -> dict[str, Any]:
    """The least distance and the largest cosine of `some` classes to all others."""
    rows = W.double()
    pairs = [(a, b) for a in (some or range(len(W))) for b in range(len(W)) if a != b]
    distance = min(float((rows[a] - rows[b]).norm()) for a, b in pairs)
    cosine = max(float(rows[a] @ rows[b] / (rows[a].norm() * rows[b].norm())) for a, b in pairs)
    # Of pairs closer than 1e-3 float32 scores cannot tell which is the nearest.
    return {
        "min_separation": pytest.approx(distance, rel=1e-4, abs=1e-3),
        "max_cosine": pytest.approx(cosine, abs=1e-5),
    }


# --- separation -----------------------------------------------------------------------------------------------------


@given(SEEDS, st.integers(2, 9), st.integers(1, 5))
def test_separation_of_unit_rows_is_that_of_a_plain_loop(seed: int, classes: int, dim: int) -> None:
    W = F.normalize(random_rows(seed, classes, dim), dim=1)
    assert separation(W) == separation_by_a_loop(W)


@given(SEEDS, st.integers(2, 9), st.integers(1, 5))
def test_separation_of_rows_of_any_length_is_that_of_a_plain_loop(seed: int, classes: int, dim: int) -> None:
    for scale in (3, 1e-3):
        W = scale * random_rows(seed, classes, dim)
        assert separation(W) == separation_by_a_loop(W)


def test_the_nearest_pair_and_the_most_aligned_pair_of_rows_may_differ() -> None:
    W = torch.tensor([[1.0, 0.0], [1.0, 0.5], [10.0, 0.0]])
    assert separation(W) == {"min_separation": 0.5, "max_cosine": 1.0}


def test_orthogonal_classes_are_the_root_of_2_apart() -> None:
    assert separation(torch.eye(3)) == {"min_separation": pytest.approx(math.sqrt(2)), "max_cosine": 0.0}


def test_nearly_collapsed_classes_are_measured_without_cancellation() -> None:
    W = torch.tensor([[1.0, 0.0], [1.0, 1e-5]])  # 1 − cos is 5e-11, far below the resolution of a cosine
    assert separation(W)["min_separation"] == pytest.approx(1e-5, rel=1e-4)


def test_with_very_many_classes_a_sample_of_them_is_compared_with_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(theory, "MOST_PAIRS", 10 * 40)
    W = random_rows(5, 40, 3)
    assert separation(W) == separation_by_a_loop(W, some=range(0, 40, 4))


def test_a_sample_never_reports_less_separation_than_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    W = random_rows(5, 40, 3)
    exact = separation(W)
    monkeypatch.setattr(theory, "MOST_PAIRS", 3 * 40)
    sampled = separation(W)
    assert sampled["min_separation"] > exact["min_separation"]  # this W's nearest pair is not in the sample
    assert sampled["max_cosine"] <= exact["max_cosine"]


def test_up_to_the_limit_all_classes_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(theory, "MOST_PAIRS", 40 * 40)
    W = random_rows(5, 40, 3)
    assert separation(W) == separation_by_a_loop(W)


# --- the bounds -----------------------------------------------------------------------------------------------------


def test_the_bounds_of_two_classes_and_two_examples_by_hand() -> None:
    W, labels = torch.eye(2), torch.tensor([0, 1])
    embeddings = torch.tensor([[0.6, 0.8], [0.0, 1.0]])  # the second stands on its class
    assert error_bounds(embeddings, labels, W, rho=math.sqrt(2), nu=1.0, margin=0.9) == {
        "positive_radius": pytest.approx(math.sqrt(0.8) / 2),
        "error_bound": pytest.approx(math.sqrt(0.8) / math.sqrt(2)),
        "error_bound_cosine": pytest.approx((0.4 / 2) / (1 - math.sqrt(1 / 2))),
        "lemma1_bound": pytest.approx((0.3**2 + 0.8**2) / 2 / (0.9**2 / 2)),
        "theorem1_gap": pytest.approx(0.8**2 / 2),
        "theorem1_bound": pytest.approx(2 * 0.8 / 2),
    }


def test_a_larger_margin_between_classes_by_hand() -> None:
    W, labels, embeddings = torch.eye(2), torch.tensor([0]), torch.tensor([[0.8, 0.6]])
    bounds = error_bounds(embeddings, labels, W, rho=math.sqrt(2), nu=1.5, margin=1.0)
    assert bounds["lemma1_bound"] == 1.0  # (0.2² + 1.1²) / (1.5² / 2) is above 1
    assert bounds["theorem1_gap"] == pytest.approx(1.1**2 - 0.5**2)
    assert bounds["theorem1_bound"] == pytest.approx(2 * 1.5 * 0.6)


def test_coinciding_classes_leave_only_the_trivial_bound() -> None:
    W, labels = torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1])
    bounds = error_bounds(W, labels, W, rho=0.0, nu=1.0, margin=0.9)
    assert (bounds["positive_radius"], bounds["error_bound"], bounds["error_bound_cosine"]) == (0.0, 1.0, 1.0)


def test_antipodal_classes_with_examples_on_them_have_no_error() -> None:
    W, labels = torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), torch.tensor([0, 1])
    bounds = error_bounds(W, labels, W, rho=2.0, nu=1.0, margin=0.9)
    assert (bounds["error_bound"], bounds["error_bound_cosine"], bounds["lemma1_bound"]) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("nu", [0.05, 0.1])
def test_below_1_minus_the_hinges_margin_lemma_1_says_nothing(nu: float) -> None:
    W, labels = torch.eye(2), torch.tensor([0, 1])
    assert error_bounds(W, labels, W, rho=math.sqrt(2), nu=nu, margin=0.9)["lemma1_bound"] == 1.0


@given(SEEDS, st.integers(2, 6), st.integers(2, 6), st.floats(0, 3), st.floats(0.2, 2), st.floats(0.9, 1))
def test_every_bound_is_above_the_observed_error(
    seed: int, classes: int, dim: int, noise: float, nu: float, margin: float
) -> None:
    W = F.normalize(random_rows(seed, classes, dim), dim=1)
    labels = torch.arange(classes).repeat(30)
    embeddings = F.normalize(W[labels] + noise * random_rows(seed + 1, len(labels), dim) / dim**0.5, dim=1)
    wrong = float(((embeddings @ W.T).argmax(1) != labels).double().mean())
    bounds = error_bounds(embeddings, labels, W, separation(W)["min_separation"], nu, margin)
    for name in ("error_bound", "error_bound_cosine", "lemma1_bound"):
        assert wrong <= bounds[name] + 1e-5, name
        assert 0 <= bounds[name] <= 1
    assert bounds["theorem1_gap"] <= bounds["theorem1_bound"] + 1e-5


@pytest.mark.parametrize("angle", [0.3, math.pi / 2, 2.5])
def test_the_cosine_bound_is_the_error_where_a_quarter_of_the_examples_stand_just_past_halfway(angle: float) -> None:
    W = torch.tensor([[1.0, 0.0], [math.cos(angle), math.sin(angle)]])
    labels, past = torch.tensor([0, 0, 0, 0]), angle / 2 + 1e-4
    embeddings = torch.stack([torch.tensor([math.cos(past), math.sin(past)]), W[0], W[0], W[0]])
    assert ((embeddings @ W.T).argmax(1) != labels).tolist() == [True, False, False, False]
    bounds = error_bounds(embeddings, labels, W, separation(W)["min_separation"], nu=1.0, margin=0.9)
    assert bounds["error_bound_cosine"] == pytest.approx(0.25, rel=5e-3)


def test_the_euclidean_bound_is_tight_for_close_classes() -> None:
    angle = 0.1
    W = torch.tensor([[1.0, 0.0], [math.cos(angle), math.sin(angle)]])
    halfway = torch.tensor([math.cos(angle / 2), math.sin(angle / 2)])
    bounds = error_bounds(torch.stack([halfway, W[0]]), torch.tensor([0, 0]), W, separation(W)["min_separation"], 1, 1)
    assert bounds["error_bound"] == pytest.approx(0.5, rel=1e-3)


@pytest.mark.parametrize(("nu", "margin"), [(1.0, 0.9), (0.8, 1.0), (0.5, 0.9)])
def test_lemma_1_is_tight_where_an_example_ties_at_its_worst_score(nu: float, margin: float) -> None:
    s = (1 + margin - nu) / 2
    W, labels = torch.eye(3)[:2], torch.tensor([0, 1])
    embeddings = torch.tensor([[s, s, math.sqrt(max(0.0, 1 - 2 * s * s))], [0.0, 1.0, 0.0]])
    bounds = error_bounds(embeddings, labels, W, rho=math.sqrt(2), nu=nu, margin=margin)
    assert bounds["lemma1_bound"] == pytest.approx(0.5)  # one of two examples is wrong


def test_theorem_1_is_tight_between_two_close_classes() -> None:
    W = torch.tensor([[1.0, 0.0], [math.cos(0.2), math.sin(0.2)]])
    embeddings = torch.tensor([[math.cos(0.1), math.sin(0.1)]])
    bounds = error_bounds(embeddings, torch.tensor([0]), W, separation(W)["min_separation"], nu=1.0, margin=0.9)
    # cos² 0.1 − cos² 0.2 against 2 (cos 0.1 − cos 0.2): the ratio is the mean of the two cosines
    assert bounds["theorem1_gap"] / bounds["theorem1_bound"] == pytest.approx((math.cos(0.1) + math.cos(0.2)) / 2, 1e-3)


def test_blocks_of_any_size_give_the_same_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    W, labels = F.normalize(random_rows(0, 5, 3), dim=1), torch.arange(35) % 5
    embeddings = F.normalize(random_rows(1, 35, 3), dim=1)
    whole = error_bounds(embeddings, labels, W, 0.5, nu=1.2, margin=0.9)
    monkeypatch.setattr(theory, "TILE", 20)  # four examples at a time
    assert error_bounds(embeddings, labels, W, 0.5, nu=1.2, margin=0.9) == pytest.approx(whole)


def test_with_very_many_scores_the_loss_bounds_come_from_every_so_many_examples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(theory, "MOST_SCORES", 40)  # 20 examples of 2 classes,
    monkeypatch.setattr(theory, "LEAST_EXAMPLES", 10)
    W, labels = torch.eye(2), torch.zeros(60, dtype=torch.int64)  # so every third of 60
    embeddings = torch.tensor([0.6, 0.8]).repeat(60, 1)
    embeddings[::3] = torch.tensor([1.0, 0.0])
    bounds = error_bounds(embeddings, labels, W, rho=math.sqrt(2), nu=1.0, margin=0.9)
    assert (bounds["lemma1_bound"], bounds["theorem1_gap"], bounds["theorem1_bound"]) == (0.0, 0.0, 0.0)
    assert bounds["positive_radius"] == pytest.approx(math.sqrt(0.8) * 2 / 3)  # the radius is that of all


def test_the_loss_bounds_of_few_classes_come_from_all_examples() -> None:
    W, labels = torch.eye(2), torch.zeros(5_000, dtype=torch.int64)
    embeddings = torch.tensor([1.0, 0.0]).repeat(5_000, 1)
    embeddings[1] = torch.tensor([0.0, 1.0])  # one single wrong example
    bounds = error_bounds(embeddings, labels, W, rho=math.sqrt(2), nu=1.0, margin=1.0)
    assert bounds["theorem1_gap"] == pytest.approx(1 / 5_000)
