import itertools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from fedaws.config import Config, SpreadConfig
from fedaws.core import moments
from fedaws.core import spreadout as sp
from fedaws.core.pairs import hinge, squared_distance
from fedaws.core.spreadout import make_spread
from fedaws.errors import FedawsError


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def unit(rows: int, dim: int, seed: int = 0, cone: float = 0.0) -> torch.Tensor:
    """Random unit rows; `cone` pulls them towards one direction."""
    rows_ = torch.randn(rows, dim, generator=rng(seed), dtype=torch.float64)
    return F.normalize(rows_ + cone * torch.ones(dim, dtype=torch.float64), dim=1)


def brute_nearest(W: torch.Tensor, c: int, candidates: list[int], k: int) -> list[int]:
    others = [y for y in candidates if y != c]
    return sorted(others, key=lambda y: float((W[c] - W[y]).square().sum()))[:k]


# --- eq. (6) and (7) ---


def test_eq_6_is_a_plain_double_loop_over_ordered_pairs() -> None:
    W, nu = unit(7, 3), 1.2
    loop = sum(max(0.0, nu - (1 - float(W[a] @ W[b]))) ** 2 for a, b in itertools.permutations(range(7), 2))
    assert sp.spreadout(W, nu).item() == pytest.approx(loop)


def test_eq_6_with_euclidean_distance() -> None:
    W, nu = unit(7, 3), 1.2
    loop = sum(max(0.0, nu - float((W[a] - W[b]).norm())) ** 2 for a, b in itertools.permutations(range(7), 2))
    assert sp.spreadout(W, nu, "euclidean").item() == pytest.approx(loop)


def test_eq_6_of_a_regular_simplex_is_zero_up_to_its_margin_and_not_beyond() -> None:
    # Three unit vectors at 120°: every cosine is −1/2, every cosine distance 3/2.
    angles = torch.tensor([0.0, 2 * math.pi / 3, 4 * math.pi / 3], dtype=torch.float64)
    W = torch.stack([angles.cos(), angles.sin()], 1)
    assert sp.spreadout(W, 1.5).item() == pytest.approx(0, abs=1e-12)
    assert sp.spreadout(W, 1.6).item() == pytest.approx(6 * 0.01)


def test_eq_7_is_a_plain_loop_over_the_k_nearest_candidates() -> None:
    W, cohort, candidates, k = unit(12, 3), [1, 4, 7], [0, 2, 4, 5, 7, 9, 11], 3
    loop = -sum(float((W[c] - W[y]).square().sum()) for c in cohort for y in brute_nearest(W, c, candidates, k))
    value = sp.spreadout_nearest(W, torch.tensor(cohort), torch.tensor(candidates), k)
    assert value.item() == pytest.approx(loop)


def test_eq_7_over_all_classes_only_sees_the_centroid() -> None:
    # Σ_{c≠y} −‖w_c − w_y‖² = 2‖Σ w‖² − 2C² for unit rows.
    W = unit(6, 4)
    value = sp.spreadout_nearest(W, torch.arange(6), None, 5)
    assert value.item() == pytest.approx(2 * float(W.sum(0).square().sum()) - 2 * 36)


def test_squared_cosine_distance_has_no_force_left_between_collapsed_classes() -> None:
    angle = math.radians(1)
    W = torch.tensor([[1.0, 0.0], [math.cos(angle), math.sin(angle)]], dtype=torch.float64)
    forces = {}
    for distance in ("euclidean", "cosine"):
        rows = W.clone().requires_grad_()
        sp.spreadout_nearest(rows, torch.arange(2), None, 1, distance).backward()
        assert rows.grad is not None
        forces[distance] = float(rows.grad[0, 1].abs())
    assert forces["cosine"] < 1e-3 * forces["euclidean"]


@given(st.integers(0, 1000))
def test_the_regularisers_know_neither_rotation_nor_the_order_of_classes(seed: int) -> None:
    W = unit(8, 4, seed)
    rotation = torch.linalg.qr(torch.randn(4, 4, generator=rng(seed), dtype=torch.float64)).Q
    order = torch.randperm(8, generator=rng(seed))
    everyone = torch.arange(8)
    for changed in (W @ rotation, W[order]):
        torch.testing.assert_close(sp.spreadout(changed, 1.1), sp.spreadout(W, 1.1))
        torch.testing.assert_close(
            sp.spreadout_nearest(changed, everyone, None, 2), sp.spreadout_nearest(W, everyone, None, 2)
        )


# --- mining ---


@pytest.mark.parametrize("tile", [40, 1000, 4_000_000])
@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("normalized", [False, True])
def test_nearest_equals_brute_force_in_tiles_of_any_size(
    tile: int, sampled: bool, normalized: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedaws.machine.blocks.TILE", tile)
    W = torch.randn(1500, 6, generator=rng(), dtype=torch.float64)
    W = F.normalize(W, dim=1) if normalized else W
    cohort = torch.randperm(1500, generator=rng(1))[:9]
    candidates = torch.randperm(1500, generator=rng(2))[:700].sort().values if sampled else None
    found = sp.nearest(W, cohort, candidates, 7)
    pool = list(range(1500)) if candidates is None else candidates.tolist()
    assert found.tolist() == [brute_nearest(W, c, pool, 7) for c in cohort.tolist()]


def test_nearest_finds_neighbours_that_share_a_group_of_columns() -> None:
    # The group search may only drop groups, never members: put all neighbours of class 0 into one group of columns.
    W = torch.zeros(3200, 3, dtype=torch.float64)
    W[:, 1] = 1
    near = torch.arange(5, 3200, 100)[:12]  # 3200 columns are 100 groups: these columns are all of group 5
    W[0], W[near] = torch.tensor([1.0, 0, 0], dtype=torch.float64), torch.tensor([0.8, 0, 0.6], dtype=torch.float64)
    assert set(sp.nearest(W, torch.tensor([0]), None, 12)[0].tolist()) == set(near.tolist())


def test_a_class_is_never_its_own_neighbour_even_with_twins() -> None:
    W = torch.ones(6, 2).div(2**0.5)
    found = sp.nearest(W, torch.arange(6), None, 5)
    assert all(sorted(row) == [y for y in range(6) if y != c] for c, row in enumerate(found.tolist()))


def test_too_few_candidates_are_told_in_one_line() -> None:
    with pytest.raises(
        FedawsError, match=r"num_neighbors=10 needs at least 11 candidates, got 8; lower spread.neighbors"
    ):
        sp.nearest(unit(20, 3), torch.tensor([0]), torch.arange(8), 10)


# --- gradients ---


@pytest.mark.parametrize("nu", [0.5, 1.0, 1.7])
def test_closed_form_gradient_of_eq_6_is_autograds(nu: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedaws.machine.blocks.TILE", 25)  # several blocks
    W = unit(9, 4, cone=1.0).requires_grad_()
    (expected,) = torch.autograd.grad(sp.spreadout(W, nu), W)
    W = W.detach()
    gradient, slopes = sp.spreadout_gradient(W, nu)
    torch.testing.assert_close(gradient, expected)
    row = [sum(2 * max(0.0, nu - 1 + float(W[c] @ W[y])) for y in range(9) if y != c) for c in range(9)]
    assert slopes.tolist() == pytest.approx(row)


@pytest.mark.parametrize("normalized", [False, True])
def test_closed_form_gradient_of_eq_7_is_autograds(normalized: bool) -> None:
    W = torch.randn(15, 4, generator=rng(), dtype=torch.float64)
    W = (F.normalize(W, dim=1) if normalized else W).requires_grad_()
    cohort, candidates = torch.tensor([2, 5, 11]), torch.tensor([0, 2, 3, 6, 9, 11, 14])
    (expected,) = torch.autograd.grad(sp.spreadout_nearest(W, cohort, candidates, 3), W)
    neighbors = sp.nearest(W.detach(), cohort, candidates, 3)
    ids, gradient, _, degrees = sp.mined_gradient(W.detach(), cohort, neighbors, squared_distance())
    full = torch.zeros_like(W).index_copy(0, ids, gradient)
    torch.testing.assert_close(full, expected)
    assert degrees.sum() == 2 * 9  # every pair has two ends


def test_closed_form_gradient_of_eq_6_over_mined_pairs_is_autograds() -> None:
    W = unit(15, 4, cone=0.5).requires_grad_()
    cohort, nu = torch.tensor([2, 5, 11]), 1.2
    neighbors = sp.nearest(W.detach(), cohort, None, 4)
    pairs = (W[cohort][:, None] * W[neighbors]).sum(-1)
    (expected,) = torch.autograd.grad((nu - 1 + pairs).clamp_min(0).square().sum(), W)
    ids, gradient, _, _ = sp.mined_gradient(W.detach(), cohort, neighbors, hinge(nu))
    torch.testing.assert_close(torch.zeros_like(W).index_copy(0, ids, gradient), expected)


# --- the bounded step ---

lambdas = st.sampled_from([1e-3, 0.1, 1.0, 10.0, 1e3, 1e6])
shapes = st.tuples(st.integers(2, 40), st.integers(2, 12))
cones = st.sampled_from([0.0, 0.5, 3.0, 100.0])


def mined_value(W: torch.Tensor, cohort: torch.Tensor, neighbors: torch.Tensor, nu: float | None) -> float:
    own, others = W[cohort][:, None], W[neighbors]
    if nu is None:
        return -float((own - others).square().sum())
    return float((nu - 1 + (own * others).sum(-1)).clamp_min(0).square().sum())


def rises(before: float, after: float) -> bool:
    return after > before + 1e-9 * (1 + abs(before))


@settings(max_examples=300)
@given(shapes, cones, lambdas, st.floats(0.05, 2.0), st.integers(0, 10_000))
def test_bounded_eq_6_never_rises(shape: tuple[int, int], cone: float, step: float, nu: float, seed: int) -> None:
    W = unit(*shape, seed, cone)
    before = sp.spreadout(W, nu).item()
    sp.spread_(W, torch.arange(shape[0]), SpreadConfig(margin=nu, weight=step), 1.0, rng(seed))
    assert not rises(before, sp.spreadout(W, nu).item())
    torch.testing.assert_close(W.norm(dim=1), torch.ones(shape[0], dtype=torch.float64))


@settings(max_examples=300)
@given(shapes, cones, lambdas, st.floats(0.05, 2.0), st.integers(0, 10_000), st.booleans())
def test_bounded_step_over_mined_pairs_never_rises(
    shape: tuple[int, int], cone: float, step: float, nu: float, seed: int, eq7: bool
) -> None:
    W, margin = unit(*shape, seed, cone), None if eq7 else nu
    k = 1 + seed % max(1, shape[0] - 1)
    cohort = torch.randperm(shape[0], generator=rng(seed))[: 1 + seed % shape[0]].sort().values
    if k >= shape[0]:
        k = shape[0] - 1
    neighbors = sp.nearest(W, cohort, None, k)
    before = mined_value(W, cohort, neighbors, margin)
    cfg = SpreadConfig(regularizer="nearest" if eq7 else "margin", margin=nu, weight=step, neighbors=k)
    sp.spread_(W, cohort, cfg, 1.0, rng(seed))
    assert not rises(before, mined_value(W, cohort, neighbors, margin))


@settings(max_examples=100)
@given(shapes, cones, st.integers(0, 10_000))
def test_centring_never_raises_the_length_of_the_sum(shape: tuple[int, int], cone: float, seed: int) -> None:
    W = unit(*shape, seed, cone)
    before = float(W.sum(0).square().sum())
    assert not rises(before, float(moments.moments_(W, whiten=0).sum(0).square().sum()))


@settings(max_examples=200)
@given(shapes, cones, st.integers(0, 10_000))
def test_whitening_never_raises_the_frame_potential(shape: tuple[int, int], cone: float, seed: int) -> None:
    W = unit(*shape, seed, cone)
    before = float((W.T @ W).square().sum())
    assert not rises(before, float((moments.moments_(W, center=False).T @ W).square().sum()))


def test_the_literal_step_raises_eq_6_where_the_bounded_one_does_not() -> None:
    before = sp.spreadout(unit(10, 16), 1.0).item()
    values = {}
    for bounded in (False, True):
        W = unit(10, 16)
        sp.spread_(W, torch.arange(10), SpreadConfig(weight=10.0, bounded=bounded), 1.0, rng())
        values[bounded] = sp.spreadout(W, 1.0).item()
    assert values[True] < before < values[False]


def test_the_literal_step_is_the_papers() -> None:
    W = unit(6, 4)
    rows = W.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(sp.spreadout(rows, 1.0), rows)
    expected = F.normalize(W - 0.3 * 2.0 * gradient, dim=1)
    sp.spread_(W, torch.arange(6), SpreadConfig(weight=2.0, bounded=False), 0.3, rng())
    torch.testing.assert_close(W, expected)


def test_a_small_lambda_is_not_changed_by_the_bound() -> None:
    steps = []
    for bounded in (False, True):
        W = unit(6, 4)
        sp.spread_(W, torch.arange(6), SpreadConfig(weight=1e-4, bounded=bounded), 1.0, rng())
        steps.append(W)
    torch.testing.assert_close(steps[0], steps[1])


def test_two_classes_one_degree_apart_are_pushed_far_apart_in_few_steps() -> None:
    angle = math.radians(1)
    for regularizer in ("margin", "nearest"):
        W = torch.tensor([[1.0, 0.0], [math.cos(angle), math.sin(angle)]], dtype=torch.float64)
        cfg = SpreadConfig(regularizer=regularizer, neighbors=1, weight=100.0, steps=60)
        sp.spread_(W, torch.arange(2), cfg, 1.0, rng())
        assert float(W[0] @ W[1]) < 0.3


def test_moments_end_on_the_regular_simplex() -> None:
    W = unit(8, 16)
    sp.spread_(W, torch.arange(8), SpreadConfig(regularizer="moments", steps=500), 1.0, rng())
    cosines = (W @ W.T)[~torch.eye(8, dtype=torch.bool)]
    torch.testing.assert_close(cosines, torch.full_like(cosines, -1 / 7), atol=1e-3, rtol=0)


def test_nearest_with_all_neighbours_is_centring() -> None:
    by_pairs, by_mean = unit(9, 4, cone=0.3), unit(9, 4, cone=0.3)
    cfg = SpreadConfig(regularizer="nearest", neighbors="all", weight=1e6)
    sp.spread_(by_pairs, torch.arange(9), cfg, 1.0, rng())
    torch.testing.assert_close(by_pairs, moments.moments_(by_mean, whiten=0))


def test_collapsed_rows_stay_unit_vectors_under_every_regulariser() -> None:
    for regularizer in ("margin", "nearest", "moments"):
        W = torch.ones(12, 4).div(2)
        sp.spread_(W, torch.arange(12), SpreadConfig(regularizer=regularizer, weight=1e6), 1.0, rng())
        torch.testing.assert_close(W.norm(dim=1), torch.ones(12))


def test_rows_outside_the_mined_pairs_are_not_touched() -> None:
    W = unit(50, 4)
    before, cohort = W.clone(), torch.tensor([3, 4])
    touched = set(cohort.tolist()) | set(sp.nearest(W, cohort, None, 2).flatten().tolist())
    sp.spread_(W, cohort, SpreadConfig(regularizer="nearest", neighbors=2), 1.0, rng())
    changed = {i for i in range(50) if not torch.equal(W[i], before[i])}
    assert changed == touched


def test_candidates_are_a_sample_without_repetition_from_the_given_generator() -> None:
    cfg, device = SpreadConfig(candidates=20), torch.device("cpu")
    drawn = sp.sample_candidates(cfg, 100, rng(3), device)
    assert drawn is not None
    assert len(drawn.unique()) == 20
    again = sp.sample_candidates(cfg, 100, rng(3), device)
    assert again is not None
    assert torch.equal(drawn, again)
    assert sp.sample_candidates(cfg, 20, rng(), device) is None


def test_reachable_margin_is_attained_by_the_simplex_and_never_passed() -> None:
    W = unit(5, 8)
    sp.spread_(W, torch.arange(5), SpreadConfig(regularizer="moments", steps=800), 1.0, rng())
    smallest = 1 - float(((W @ W.T) - 2 * torch.eye(5, dtype=torch.float64)).max())
    assert smallest == pytest.approx(sp.reachable_margin(5, 8), abs=1e-3)


@pytest.mark.parametrize(("classes", "dim", "margin"), [(16, 8, 1.0), (16, 5, 0.8), (9, 8, 1 + 1 / 8)])
def test_reachable_margin_is_that_of_known_best_codes(classes: int, dim: int, margin: float) -> None:
    assert sp.reachable_margin(classes, dim) == pytest.approx(margin)


def test_reachable_margin_is_no_less_than_eight_points_on_a_sphere_attain() -> None:
    assert sp.reachable_margin(8, 3) >= 1 - 0.2612  # the square antiprism, 74.86 degrees, the best there is
    assert sp.reachable_margin(8, 3) < 1


def test_nearest_tells_short_rows_apart() -> None:
    W = 1e-3 * torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.8, 0.1]])  # the longest has the largest score, not the nearest
    assert sp.nearest(W, torch.tensor([0]), None, 1).item() == 2


# --- line 14 by other optimisers ---


def torchs(name: str, W: torch.Tensor, lr: float) -> torch.optim.Optimizer:
    """PyTorch's own, with our ε."""
    return torch.optim.Adagrad([W], lr=lr, eps=1e-8) if name == "adagrad" else torch.optim.Adam([W], lr=lr, eps=1e-8)


@pytest.mark.parametrize("name", ["adagrad", "adam"])
@pytest.mark.parametrize(
    ("cfg", "value"),
    [
        (SpreadConfig(margin=1.2, bounded=False), lambda W: sp.spreadout(W, 1.2)),
        (
            SpreadConfig(regularizer="nearest", neighbors=2, bounded=False),
            lambda W: sp.spreadout_nearest(W, torch.tensor([0, 3]), None, 2),
        ),
        (
            SpreadConfig(regularizer="nearest", neighbors="all", bounded=False),
            lambda W: sp.spreadout_nearest(W, torch.arange(6), None, 5),
        ),
    ],
    ids=["eq. (6)", "eq. (7), mined", "eq. (7), all"],
)
def test_other_optimisers_of_line_14_are_pytorchs(cfg: SpreadConfig, value: Any, name: str) -> None:
    cfg, W = cfg.model_copy(update={"weight": 2.0, "optimizer": name}), unit(6, 3, cone=1.0)
    theirs = W.clone().requires_grad_()
    optimizer = torchs(name, theirs, lr=2.0 * 0.05)
    cohort = torch.tensor([0, 3]) if cfg.neighbors == 2 else torch.arange(6)
    memory = make_spread(Config(spread=cfg)).init(W)
    for _ in range(4):
        sp.spread_(W, cohort, cfg, 0.05, rng(), memory=memory)
        optimizer.zero_grad()
        value(theirs).backward()
        optimizer.step()
        with torch.no_grad():
            theirs.copy_(F.normalize(theirs, dim=1))
    assert torch.allclose(W, theirs.detach(), atol=1e-9)


def test_the_first_step_of_adagrad_is_lambda_eta_in_every_entry() -> None:
    # s = Δ² makes Δ/√s a sign: (1, 0) and (0.6, 0.8) push each other by 4 × 0.6 along the other's row, so −0.1 each.
    W = torch.tensor([[1.0, 0.0], [0.6, 0.8]], dtype=torch.float64)
    cfg = SpreadConfig(weight=1.0, bounded=False, optimizer="adagrad")
    sp.spread_(W, torch.arange(2), cfg, 0.1, rng())
    moved = torch.tensor([[0.9, -0.1], [0.5, 0.8]], dtype=torch.float64)
    assert torch.allclose(W, F.normalize(moved, dim=1), atol=1e-6)


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        (["spread.optimizer=adagrad"], "has no step that is bounded; set spread.bounded=false"),
        (["spread.optimizer=adam", "spread.regularizer=moments"], "has no pairs to step on"),
    ],
)
def test_an_optimiser_without_a_bound_is_refused_where_one_is_asked_for(settings_: list[str], message: str) -> None:
    with pytest.raises(FedawsError, match=message):
        Config().override(settings_)
