"""The statements of docs/theory.md, and the paper's false versions of them."""

import itertools
import math
from dataclasses import replace
from typing import Literal

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedaws.config import Config
from fedaws.core.algorithm import broadcast, finish_round
from fedaws.core.losses import cosine_contrastive, positive_hinge
from fedaws.core.methods import method_of
from fedaws.core.spreadout import (
    nearest,
    reachable_margin,
    spread_,
    spreadout,
    spreadout_gradient,
    spreadout_nearest,
)
from fedaws.data.federated import FederatedData, from_arrays
from fedaws.runners.serial import serial
from fedaws.types import ServerState
from helpers import dense

SEEDS = st.integers(0, 2**31)
NU = st.floats(0.05, 2.0)
FIRST = torch.tensor([0])


# --- Proposition 1 --------------------------------------------------------------------------------------------------


def unit(seed: int, *shape: int) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(*shape, generator=rng, dtype=torch.float64), dim=-1)


def wrong_examples(seed: int, classes: int, dim: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """W, and embeddings with a label that does not have their highest score."""
    W, g = unit(seed, classes, dim), unit(seed + 1, 200, dim)
    best = (g @ W.T).argmax(1)
    return W, g, (best + 1 + torch.arange(200) % (classes - 1)) % classes


@given(SEEDS, st.integers(2, 6), st.integers(2, 6))
def test_a_wrong_example_is_at_least_half_the_separation_from_its_class(seed: int, classes: int, dim: int) -> None:
    W, g, y = wrong_examples(seed, classes, dim)
    assert (g - W[y]).norm(dim=1).min() >= torch.pdist(W).min() / 2


@given(SEEDS, st.integers(2, 6), st.integers(2, 6))
def test_a_wrong_example_has_at_least_the_corrected_cosine_distance(seed: int, classes: int, dim: int) -> None:
    W, g, y = wrong_examples(seed, classes, dim)
    rho = float(torch.pdist(W).min()) ** 2 / 2
    assert (1 - (g * W[y]).sum(1)).min() >= 1 - math.sqrt(1 - rho / 2) - 1e-12


def test_half_the_separation_is_false_for_cosine_distance() -> None:
    W, g = torch.eye(2), F.normalize(torch.tensor([0.999, 1.0]), dim=0)
    assert g @ W[1] > g @ W[0]  # wrong for class 0
    assert 1 - g @ W[0] < 0.3  # though the classes are 1 apart, and half of that is 0.5


@pytest.mark.parametrize("angle", [0.01, 0.5, math.pi / 2, 3.0])
def test_the_corrected_cosine_distance_is_reached_halfway_between_two_classes(angle: float) -> None:
    rho = 1 - math.cos(angle)
    assert 1 - math.cos(angle / 2) == pytest.approx(1 - math.sqrt(1 - rho / 2), rel=1e-6)


@given(st.floats(1e-3, 2.0))
def test_the_corrected_constant_lies_between_2_and_4_over_rho(rho: float) -> None:
    constant = 1 / (1 - math.sqrt(1 - rho / 2))
    assert 2 / rho * (1 - 1e-9) <= constant <= 4 / rho * (1 + 1e-9)


# --- Lemma 1 --------------------------------------------------------------------------------------------------------


def loss_of_scores(scores: list[float], nu: float, m: float) -> float:
    """The cosine contrastive loss of class 0 at these scores."""
    table = torch.tensor([scores], dtype=torch.float64)
    return float(cosine_contrastive(table, FIRST, torch.eye(len(scores), dtype=torch.float64), nu, m))


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=6), NU, st.floats(0.0, 1.0))
def test_the_loss_of_a_wrong_example_is_at_least_the_corrected_floor(scores: list[float], nu: float, m: float) -> None:
    scores = [min(scores), *scores]  # class 0 is not above any other
    assert loss_of_scores(scores, nu, m) >= max(0.0, nu - 1 + m) ** 2 / 2 - 1e-12


@given(NU, st.floats(0.0, 1.0))
def test_the_corrected_floor_is_attained_by_unit_vectors(nu: float, m: float) -> None:
    s = (1 + m - nu) / 2
    h = math.sqrt(1 - s**2)
    W = torch.tensor([[s, h], [s, -h], [-1.0, 0.0]], dtype=torch.float64)  # a tie, and a third class at −g
    loss = cosine_contrastive(torch.tensor([[1.0, 0.0]], dtype=torch.float64), FIRST, W, nu, m)
    assert float(loss) == pytest.approx(max(0.0, nu - 1 + m) ** 2 / 2, abs=1e-12)


@given(st.floats(1.001, 1.999))
def test_the_corrected_floor_implies_the_printed_one_and_step_iii_is_false(nu: float) -> None:
    assert nu**2 / 2 >= 2 * (nu - 1)
    assert max(0.0, nu - 1 - 0.0) ** 2 < nu - 1


def test_the_printed_lemma_fails_for_the_hinge_of_the_experiments() -> None:
    nu = 1.9
    loss = loss_of_scores([-0.001, 0.001], nu, m=0.9)  # 0.901² + 0.901²
    assert loss == pytest.approx(1.623602)
    assert loss < 2 * (nu - 1)


# --- Proposition 2 and λ --------------------------------------------------------------------------------------------

C, PER_CLASS, DIM, WEIGHT, ETA = 4, 3, 3, 10.0, 1e-6


def federation() -> tuple[Config, FederatedData, nn.Module, ServerState]:
    """Four clients, a linear encoder, free embeddings, and else Algorithm 1 to the letter, in double precision."""
    cfg = Config.model_validate(
        {
            "model": {"normalize": False, "embedding_dim": DIM},
            "clients": {"examples_per_step": "all", "lr": ETA},
            "spread": {"weight": WEIGHT, "margin": 1.2, "bounded": False},
            "train": {"schedule": "constant"},
        }
    )
    data = from_arrays(unit(1, C * PER_CLASS, DIM), torch.arange(C).repeat_interleave(PER_CLASS))
    data = replace(data, x=dense(data.x).double())
    encoder = nn.Linear(DIM, DIM, bias=False).double()
    state = ServerState(0, {"weight": unit(2, DIM, DIM)}, unit(3, C, DIM), data.class_of)
    return cfg, data, encoder, state


def descent(
    cohort: torch.Tensor, cfg: Config, data: FederatedData, encoder: nn.Module, state: ServerState
) -> tuple[torch.Tensor, torch.Tensor]:
    """(θ − θ')/η and (W − W')/η of one round."""
    sent = broadcast(state, cohort)
    after = finish_round(state, serial(cfg, method_of(cfg), data, encoder)(sent), cfg, torch.Generator())
    return (state.theta["weight"] - after.theta["weight"]) / ETA, (state.W - after.W) / ETA


def objective(theta: torch.Tensor, W: torch.Tensor, weight: float, cfg: Config, data: FederatedData) -> torch.Tensor:
    """Σ (1/C) R_i + weight · eq. (6), as plain loops."""
    risks = [(W[y] - theta @ x).square().sum() for x, y in zip(dense(data.x), data.y, strict=True)]
    pairs = [(1.2 - 1 + W[a] @ W[b]).clamp_min(0) ** 2 for a, b in itertools.permutations(range(C), 2)]
    return sum(risks) / len(risks) + weight * sum(pairs)


def gradients(weight: float, cfg: Config, data: FederatedData, state: ServerState) -> tuple[torch.Tensor, ...]:
    """By θ, and by W along the sphere."""
    theta, W = state.theta["weight"].clone().requires_grad_(), state.W.clone().requires_grad_()
    by_theta, by_W = torch.autograd.grad(objective(theta, W, weight, cfg, data), (theta, W))
    return by_theta, by_W - (by_W * state.W).sum(1, keepdim=True) * state.W


def test_a_round_descends_the_objective_with_lambda_over_c_and_c_times_the_step_on_w() -> None:
    cfg, data, encoder, state = federation()
    by_theta, by_W = descent(torch.arange(C), cfg, data, encoder, state)
    expected_theta, expected_W = gradients(WEIGHT / C, cfg, data, state)
    torch.testing.assert_close(by_theta, expected_theta, atol=1e-5, rtol=0)
    torch.testing.assert_close(by_W, C * expected_W, atol=1e-3, rtol=0)


def test_a_round_does_not_descend_the_objective_with_the_same_lambda() -> None:
    cfg, data, encoder, state = federation()
    _, by_W = descent(torch.arange(C), cfg, data, encoder, state)
    _, same_lambda = gradients(WEIGHT, cfg, data, state)
    wanted = C * same_lambda
    assert float((by_W - wanted).norm()) > float(by_W.norm())


def test_with_random_cohorts_lambda_is_divided_by_the_cohort() -> None:
    cfg, data, encoder, state = federation()
    cohorts = [torch.tensor(pair) for pair in itertools.combinations(range(C), 2)]
    rounds = [descent(cohort, cfg, data, encoder, state) for cohort in cohorts]
    expected_theta, expected_W = gradients(WEIGHT / 2, cfg, data, state)
    torch.testing.assert_close(torch.stack([r[0] for r in rounds]).mean(0), expected_theta, atol=1e-5, rtol=0)
    torch.testing.assert_close(torch.stack([r[1] for r in rounds]).mean(0), 2 * expected_W, atol=1e-3, rtol=0)


def test_the_objective_with_lambda_one_over_c_is_the_mean_of_the_spreadout_loss() -> None:
    cfg, data, _, state = federation()
    theta, W = state.theta["weight"], state.W
    total = 0.0
    for x, y in zip(dense(data.x), data.y, strict=True):
        total += float((W[y] - theta @ x).square().sum())
        total += sum(max(0.0, 0.2 + float(W[y] @ W[c])) ** 2 for c in range(C) if c != y)
    assert float(objective(theta, W, 1 / C, cfg, data)) == pytest.approx(total / len(data.y))


def test_the_gradient_of_eq_6_has_the_factor_of_ordered_pairs() -> None:
    W = torch.tensor([[1.0, 0.0], [0.6, 0.8]])
    gradient, _ = spreadout_gradient(W, margin=1.0)
    torch.testing.assert_close(gradient, 4 * 0.6 * torch.tensor([[0.6, 0.8], [1.0, 0.0]]))


@given(SEEDS, st.lists(st.integers(1, 5), min_size=2, max_size=4))
def test_for_unequal_clients_the_objective_is_the_class_balanced_risk(seed: int, sizes: list[int]) -> None:
    classes, nu = len(sizes), 1.5
    W, y = unit(seed, classes, 2), torch.arange(classes).repeat_interleave(torch.tensor(sizes))
    g = unit(seed + 1, len(y), 2)
    positives = positive_hinge(g, W[y])
    risks, balanced = 0.0, 0.0
    for c in range(classes):
        negatives = sum(max(0.0, nu - 1 + float(W[c] @ W[z])) ** 2 for z in range(classes) if z != c)
        risks += float(positives[y == c].mean()) / classes
        balanced += float((positives[y == c] + negatives).mean()) / classes
    assert risks + float(spreadout(W, nu)) / classes == pytest.approx(balanced)


def test_for_unequal_clients_the_objective_is_not_the_risk_over_examples() -> None:
    W = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    y = torch.tensor([0, 0, 1, 2])  # two examples of class 0, one each of two classes that coincide
    negatives = cosine_contrastive(W[y], y, W, 1.0, positive_margin=-math.inf)
    assert negatives.tolist() == [0.0, 0.0, 1.0, 1.0]  # their mean is 1/2
    assert float(spreadout(W, 1.0)) / 3 == pytest.approx(2 / 3)


# --- Theorem 1 ------------------------------------------------------------------------------------------------------


def gap_and_mismatch(g: torch.Tensor, y: int, W: torch.Tensor, nu: float) -> tuple[float, float]:
    """|ℓ_sp − ℓ_ccl| and Σ_{c ≠ y} |w_c · (w_y − g)| of one example, as plain loops."""
    gap, mismatch = 0.0, 0.0
    for c in range(len(W)):
        if c != y:
            gap += max(0.0, nu - 1 + float(W[y] @ W[c])) ** 2 - max(0.0, nu - 1 + float(g @ W[c])) ** 2
            mismatch += abs(float(W[c] @ (W[y] - g)))
    return abs(gap), mismatch


@given(SEEDS, st.integers(2, 6), st.integers(2, 5), NU, st.floats(0, 10))
def test_the_losses_differ_by_at_most_2_nu_times_the_mismatch(
    seed: int, classes: int, dim: int, nu: float, noise: float
) -> None:
    W, direction = unit(seed, classes, dim), unit(seed + 1, 20, dim)
    for g in F.normalize(W[0] + noise * direction, dim=1):
        gap, mismatch = gap_and_mismatch(g, 0, W, nu)
        assert gap <= 2 * nu * mismatch + 1e-12


@pytest.mark.parametrize("nu", [0.5, 1.0, 1.5, 2.0])
def test_no_constant_below_2_nu_will_do(nu: float) -> None:
    W = torch.tensor([[1.0, 0.0], [math.cos(0.02), math.sin(0.02)]], dtype=torch.float64)
    gap, mismatch = gap_and_mismatch(F.normalize(W.sum(0), dim=0), 0, W, nu)
    assert gap > 0.999 * 2 * nu * mismatch


def test_the_mismatch_of_one_class_exceeds_1_and_so_fail_cases_3_and_4() -> None:
    w_c, g = torch.tensor([1.0, 0.0]), torch.tensor([-1.0, 0.0])
    w_y = torch.tensor([math.cos(0.01), math.sin(0.01)])
    gap, mismatch = gap_and_mismatch(g, 0, torch.stack([w_y, w_c]), nu=1.5)
    assert mismatch > 1.99  # the proof takes it to be at most 1
    assert gap > 1.1 * mismatch  # and concludes gap ≤ mismatch


# --- the margin ν ---------------------------------------------------------------------------------------------------


def most_spread(classes: int, dim: int) -> float:
    """The largest least cosine distance that descent of eq. (6) with falling ν finds in three attempts."""
    best = 0.0
    for seed in range(3):
        W = unit(seed, classes, dim)
        for margin in torch.linspace(3.0, 1.0, 200).tolist():
            W = F.normalize(W - 0.05 * spreadout_gradient(W, margin)[0], dim=1)
        best = max(best, float(1 - (W @ W.T).fill_diagonal_(-1).max()))
    return best


@pytest.mark.parametrize(("classes", "dim"), [(2, 2), (3, 2), (4, 3), (5, 4), (4, 8)])
def test_up_to_d_plus_1_classes_can_be_1_plus_1_over_c_minus_1_apart_and_no_further(classes: int, dim: int) -> None:
    assert reachable_margin(classes, dim) == pytest.approx(1 + 1 / (classes - 1))
    assert most_spread(classes, dim) == pytest.approx(1 + 1 / (classes - 1), abs=1e-3)


@pytest.mark.parametrize(("classes", "dim"), [(4, 2), (5, 3), (6, 3), (6, 4), (8, 4)])
def test_from_d_plus_2_classes_on_none_are_further_than_1_apart(classes: int, dim: int) -> None:
    assert reachable_margin(classes, dim) == 1.0
    assert most_spread(classes, dim) <= 1.0 + 1e-9
    axes = torch.cat([torch.eye(dim), -torch.eye(dim)])[:classes]
    assert float(1 - (axes @ axes.T).fill_diagonal_(-1).max()) == 1.0


@pytest.mark.parametrize(("classes", "dim"), [(5, 2), (7, 3), (9, 4)])
def test_beyond_2_d_classes_not_even_1_is_reached(classes: int, dim: int) -> None:
    assert most_spread(classes, dim) < 0.95


def test_the_simplex_is_at_rest_though_a_margin_out_of_reach_keeps_eq_6_above_zero() -> None:
    simplex = F.normalize(torch.eye(4, dtype=torch.float64) - 1 / 4, dim=1)
    cfg = Config().spread.model_copy(update={"margin": 2.0, "weight": 0.1, "bounded": False})
    moved = spread_(simplex.clone(), torch.arange(4), cfg, 0.1, torch.Generator())
    torch.testing.assert_close(moved, simplex, atol=1e-12, rtol=0)
    assert float(spreadout(simplex, 2.0)) == pytest.approx(4 * 3 * (2 - 4 / 3) ** 2)


# --- eq. (7) --------------------------------------------------------------------------------------------------------


def step_apart(angle: float, rate: float, distance: Literal["cosine", "euclidean"]) -> float:
    """The angle between two classes after a step on eq. (7)."""
    W = torch.tensor([[1.0, 0.0], [math.cos(angle), math.sin(angle)]], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(spreadout_nearest(W, torch.arange(2), None, 1, distance), W)
    a, b = F.normalize(W.detach() - rate * gradient, dim=1)
    return 2 * math.atan2(float((a - b).norm()), float((a + b).norm()))


@given(st.floats(1e-4, 3.0), st.floats(0.01, 2.0))
def test_a_step_of_eq_7_multiplies_the_tangent_of_half_the_angle(angle: float, rate: float) -> None:
    expected = 2 * math.atan((1 + 8 * rate) * math.tan(angle / 2))
    assert step_apart(angle, rate, "euclidean") == pytest.approx(expected)


@given(st.floats(1e-3, 0.05))
def test_with_squared_cosine_distance_a_step_is_only_cubic_in_the_angle(angle: float) -> None:
    assert step_apart(angle, 0.1, "cosine") - angle == pytest.approx(4 * 0.1 * angle**3, rel=0.02)


def test_eq_7_pushes_the_nearest_least_where_eq_6_with_an_adaptive_margin_pushes_it_most() -> None:
    angles = torch.tensor([0.0, 0.2, 0.6, 1.0], dtype=torch.float64)
    W = torch.stack([angles.cos(), angles.sin()], 1)
    away = (W[0] - W[1:]).norm(dim=1)  # chords of 0.2, 0.6 and the third, which sets ν

    def push(value: torch.Tensor) -> list[float]:
        return torch.autograd.grad(value, rows)[0].norm(dim=1).tolist()

    rows = W[1:3].clone().requires_grad_()
    margin = push((away[2] - (W[0] - rows).norm(dim=1)).square().sum())
    rows = W[1:3].clone().requires_grad_()
    top = push(spreadout_nearest(torch.cat([W[:1], rows, W[3:]]), FIRST, None, 2))
    assert margin == pytest.approx([2 * float(away[2] - away[0]), 2 * float(away[2] - away[1])])
    assert top == pytest.approx([2 * float(away[0]), 2 * float(away[1])])
    assert margin[0] > margin[1]
    assert top[0] < top[1]


@given(SEEDS, st.integers(2, 9), st.integers(1, 5))
def test_eq_7_with_all_neighbors_is_a_function_of_the_centroid(seed: int, classes: int, dim: int) -> None:
    W = unit(seed, classes, dim)
    value = spreadout_nearest(W, torch.arange(classes), None, classes - 1)
    assert float(value) == pytest.approx(2 * float(W.sum(0).square().sum()) - 2 * classes**2)


def test_eq_7_with_all_neighbors_has_a_minimum_with_coinciding_classes_and_eq_6_in_reach_has_not() -> None:
    e = torch.tensor([1.0, 0.0])
    W = torch.stack([e, e, -e, -e])
    assert float(spreadout_nearest(W, torch.arange(4), None, 3)) == -2 * 4**2  # the least value there is
    assert float(spreadout(W, margin=1.0)) == 4.0  # two coinciding pairs, both orders


def test_nearest_of_all_classes_seldom_meets_a_small_sample_and_nearest_within_it_always_does() -> None:
    W, cohort = unit(0, 600, 8), torch.arange(100)
    candidates = torch.arange(0, 600, 20)  # 30 of 600
    overall = (W[cohort] @ W.T).argsort(dim=1, descending=True)[:, 1:11]  # the first is the class itself
    assert float((overall % 20 == 0).sum(1).double().mean()) == pytest.approx(10 * 30 / 600, abs=0.25)
    within = nearest(W, cohort, candidates, 10)
    assert within.shape == (100, 10)
    assert bool((within % 20 == 0).all())
    assert not bool((within == cohort[:, None]).any())


# --- normalisation --------------------------------------------------------------------------------------------------


@given(SEEDS, st.floats(0.1, 10))
def test_without_unit_rows_eq_7_has_no_minimum(seed: int, scale: float) -> None:
    W, everyone = unit(seed, 5, 3), torch.arange(5)
    value = spreadout_nearest(W, everyone, None, 4)
    assert float(spreadout_nearest(scale * W, everyone, None, 4)) == pytest.approx(scale**2 * float(value))


@given(SEEDS, st.floats(0.1, 0.9))
def test_without_unit_vectors_eq_6_and_the_clients_are_content_with_collapsed_classes(seed: int, nu: float) -> None:
    u = unit(seed, 3)
    W = math.sqrt(1 - nu) * u.expand(4, 3)
    assert float(spreadout(W, nu)) == pytest.approx(0, abs=1e-12)
    assert float(positive_hinge(4 * u[None], W[0])) == 0
