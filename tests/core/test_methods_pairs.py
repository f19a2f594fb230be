"""Functions of pairs of classes: their gradients are autograd's, and a bounded step never raises their sum."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedaws import Config
from fedaws.config import SpreadConfig
from fedaws.core import spreadout as sp
from fedaws.core.correlation import correlated_spread, correlations
from fedaws.core.method import When
from fedaws.core.methods import fedalc, glas
from fedaws.core.pairs import Pair, energy, softmax, uniformity
from fedaws.types import ClassFacts

FLOOR = 0.25  # of energy's squared distance


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def unit(rows: int, dim: int, seed: int = 0, cone: float = 0.0) -> Tensor:
    """Random unit rows; `cone` pulls them towards one direction."""
    rows_ = torch.randn(rows, dim, generator=rng(seed), dtype=torch.float64)
    return F.normalize(rows_ + cone, dim=1)


# The functions as their papers print them, summed over the last dimension of the scores: a class's own pairs.


def softmax_value(scores: Tensor) -> Tensor:
    """FedGC: −log of the own class's share among itself, at score 1, and the others."""
    own = torch.ones_like(scores[..., :1])
    return -torch.cat([own, scores], -1).log_softmax(-1)[..., 0]


def uniformity_value(scores: Tensor) -> Tensor:
    return (-2 * (2 - 2 * scores)).exp().sum(-1)


def energy_value(scores: Tensor) -> Tensor:
    """1/distance; nearer than the floor its tangent, 2 + 8 (s − 0.875), for 0.25^−½ = 2 and 0.25^−1.5 = 8."""
    far = (2 - 2 * scores).clamp_min(FLOOR) ** -0.5
    return torch.where(2 - 2 * scores < FLOOR, 2 + 8 * (scores - 0.875), far).sum(-1)


VALUES: dict[str, tuple[Pair, Callable[[Tensor], Tensor]]] = {
    "softmax": (softmax(), softmax_value),
    "uniformity": (uniformity(), uniformity_value),
    "energy": (energy(), energy_value),
}


def others(W: Tensor) -> Tensor:
    """Each class's scores with all others, [C, C − 1]."""
    C = len(W)
    return (W @ W.T)[~torch.eye(C, dtype=torch.bool)].view(C, C - 1)


def mined(W: Tensor, cohort: Tensor, neighbors: Tensor) -> Tensor:
    return (W[cohort][:, None] * W[neighbors]).sum(-1)


@pytest.mark.parametrize("name", ["uniformity", "energy"])
@pytest.mark.parametrize("cone", [0.0, 3.0])
def test_the_gradient_over_all_pairs_is_autograds(name: str, cone: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedaws.machine.blocks.TILE", 25)  # several blocks
    pair, value = VALUES[name]
    W = unit(9, 4, cone=cone).requires_grad_()
    (expected,) = torch.autograd.grad(value(others(W)).sum(), W)
    torch.testing.assert_close(sp.pairs_gradient(W.detach(), pair)[0], expected)


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("cone", [0.0, 3.0])
def test_the_gradient_over_mined_pairs_is_autograds(name: str, cone: float) -> None:
    pair, value = VALUES[name]
    W, cohort = unit(15, 4, cone=cone).requires_grad_(), torch.tensor([2, 5, 11])
    neighbors = sp.nearest(W.detach(), cohort, None, 4)
    (expected,) = torch.autograd.grad(value(mined(W, cohort, neighbors)).sum(), W)
    ids, gradient, _, _ = sp.mined_gradient(W.detach(), cohort, neighbors, pair)
    torch.testing.assert_close(torch.zeros_like(W).index_copy(0, ids, gradient), expected)


def test_two_classes_at_right_angles_have_the_slopes_of_hand_arithmetic() -> None:
    # s = 0: softmax e⁻¹/(1 + e⁻¹), uniformity 4e⁻⁴, energy 2^−1.5.
    zero = torch.zeros(1, 1, dtype=torch.float64)
    slopes = [float(VALUES[name][0].slope_(zero.clone())) for name in ("softmax", "uniformity", "energy")]
    assert slopes == pytest.approx([0.2689414, 0.0732626, 0.3535534])


lambdas = st.sampled_from([1e-3, 0.1, 1.0, 10.0, 1e3, 1e6])
shapes = st.tuples(st.integers(2, 40), st.integers(2, 12))
cones = st.sampled_from([0.0, 0.5, 3.0, 100.0])


def rises(before: float, after: float) -> bool:
    return after > before + 1e-9 * (1 + abs(before))


@pytest.mark.parametrize("name", ["uniformity", "energy"])
@settings(max_examples=100)
@given(shape=shapes, cone=cones, weight=lambdas, seed=st.integers(0, 10_000))
def test_a_bounded_step_over_all_pairs_never_rises(
    name: str, shape: tuple[int, int], cone: float, weight: float, seed: int
) -> None:
    W, value = unit(*shape, seed, cone), VALUES[name][1]
    before = float(value(others(W)).sum())
    cfg = SpreadConfig.model_validate({"regularizer": name, "weight": weight})
    sp.spread_(W, torch.arange(shape[0]), cfg, 1.0, rng(seed))
    assert not rises(before, float(value(others(W)).sum()))


@pytest.mark.parametrize("name", VALUES)
@settings(max_examples=100)
@given(shape=shapes, cone=cones, weight=lambdas, seed=st.integers(0, 10_000))
def test_a_bounded_step_over_mined_pairs_never_rises(
    name: str, shape: tuple[int, int], cone: float, weight: float, seed: int
) -> None:
    W, value = unit(*shape, seed, cone), VALUES[name][1]
    k = min(1 + seed % 5, shape[0] - 1)
    cohort = torch.randperm(shape[0], generator=rng(seed))[: 1 + seed % shape[0]].sort().values
    neighbors = sp.nearest(W, cohort, None, k)
    before = float(value(mined(W, cohort, neighbors)).sum())
    cfg = SpreadConfig.model_validate({"regularizer": name, "weight": weight, "neighbors": k})
    sp.spread_(W, cohort, cfg, 1.0, rng(seed))
    assert not rises(before, float(value(mined(W, cohort, neighbors)).sum()))


# --- label correlations ---


def counts(classes: int, seed: int = 0) -> Tensor:
    """How often labels stand together in 60 random sets."""
    sets = (torch.rand(60, classes, generator=rng(seed)) < 0.3).double()
    return (sets.T @ sets).to_sparse()


def test_the_correlation_is_the_mean_of_the_two_shares() -> None:
    # Of 4, 2 and 5 examples: 2 have both 0 and 1 (½ (2/4 + 2/2)), 1 both 0 and 2 (½ (1/4 + 1/5)), none 1 and 2.
    together = torch.tensor([[4.0, 2.0, 1.0], [2.0, 2.0, 0.0], [1.0, 0.0, 5.0]])
    expected = torch.tensor([[0.0, 0.75, 0.225], [0.75, 0.0, 0.0], [0.225, 0.0, 0.0]])
    torch.testing.assert_close(correlations(together.to_sparse()).to_dense(), expected)


def test_a_label_without_examples_has_no_correlations() -> None:
    together = torch.tensor([[4.0, 0.0], [0.0, 0.0]])
    assert correlations(together.to_sparse()).to_dense().count_nonzero() == 0


def glas_value(W: Tensor, a: Tensor) -> Tensor:
    """‖WWᵀ − A‖² off the diagonal."""
    gap = W @ W.T - a
    return (gap * (1 - torch.eye(len(W), dtype=W.dtype))).square().sum()


def fedalc_value(W: Tensor, a: Tensor, margin: float = 1.0) -> Tensor:
    total = W.new_zeros(())
    for c in range(len(W)):
        for y in range(len(W)):
            if c != y:
                pushed = (margin - 1 + W[c] @ W[y]).clamp_min(0).square()
                total = total + (1 - a[c, y]) * pushed + a[c, y] * (W[c] - W[y]).square().sum()
    return total


CORRELATED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"glas": glas_value, "fedalc": fedalc_value}


def correlated_step(name: str, W: Tensor, together: Tensor, weight: float) -> None:
    """The server's step of the method, in place."""
    module = {"glas": glas, "fedalc": fedalc}[name]
    cfg = Config(method=name).with_(spread={"weight": weight})
    spread = module.method(cfg, ClassFacts(cooccurrence=together)).spread
    assert spread is not None
    spread.step(W, torch.arange(len(W)), When(0, 1.0, 1.0), rng(), {})


@pytest.mark.parametrize("name", CORRELATED)
def test_a_small_correlated_step_is_autograds_gradient(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedaws.machine.blocks.TILE", 25)  # several blocks
    W, together = unit(9, 4, cone=0.5), counts(9)
    a = correlations(together).to_dense().double()
    rows = W.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(CORRELATED[name](rows, a), rows)
    expected = F.normalize(W - 1e-4 * (gradient - (gradient * W).sum(1, keepdim=True) * W), dim=1)
    moved = W.clone()
    correlated_step(name, moved, together, weight=1e-4)
    torch.testing.assert_close(moved - W, expected - W, rtol=1e-2, atol=1e-6)


@pytest.mark.parametrize("name", CORRELATED)
@settings(max_examples=60)
@given(classes=st.integers(2, 20), dim=st.integers(2, 8), cone=cones, weight=lambdas, seed=st.integers(0, 10_000))
def test_a_correlated_step_never_rises(
    name: str, classes: int, dim: int, cone: float, weight: float, seed: int
) -> None:
    W, together = unit(classes, dim, seed, cone), counts(classes, seed)
    a = correlations(together).to_dense().double()
    before = float(CORRELATED[name](W, a))
    correlated_step(name, W, together, weight)
    assert not rises(before, float(CORRELATED[name](W, a)) - 1e-6)  # a_cy are float32


def test_glas_brings_two_labels_to_their_correlation() -> None:
    W = torch.eye(2, dtype=torch.float64)
    together = torch.tensor([[4.0, 2.0], [2.0, 2.0]]).to_sparse()  # a = 0.75
    spread = correlated_spread(lambda scores, a: 2 * (scores - a), 2.0, together, weight=1e3)
    for t in range(300):
        spread.step(W, torch.arange(2), When(t, 1.0, 1.0), rng(), {})
    assert float(W[0] @ W[1]) == pytest.approx(0.75, abs=1e-4)
