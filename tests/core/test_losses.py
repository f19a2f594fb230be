import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedaws.core import losses


def unit(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.nn.functional.normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


def euclidean(a: torch.Tensor, b: torch.Tensor) -> float:
    return math.sqrt(sum((float(p) - float(q)) ** 2 for p, q in zip(a, b, strict=True)))


def test_positive_hinge_is_zero_from_the_margin_on() -> None:
    g = torch.tensor([[0.9, math.sqrt(1 - 0.81)], [1.0, 0.0]])
    assert losses.positive_hinge(g, torch.tensor([1.0, 0.0])).tolist() == [0.0, 0.0]


def test_positive_hinge_at_the_opposite_pole_is_1_9_squared() -> None:
    assert losses.positive_hinge(torch.tensor([[-1.0, 0.0]]), torch.tensor([1.0, 0.0])).item() == pytest.approx(3.61)


def test_positive_hinge_takes_one_row_per_example() -> None:
    g, w = unit(5, 3), unit(5, 3, seed=1)
    each = [losses.positive_hinge(g[i : i + 1], w[i]).item() for i in range(5)]
    assert losses.positive_hinge(g, w).tolist() == pytest.approx(each)


@given(st.integers(0, 10_000), st.floats(0.1, 1.0))
def test_hinge_is_never_negative_and_knows_no_rotation(seed: int, margin: float) -> None:
    g, w = unit(4, 3, seed=seed), unit(3, seed=seed + 1)
    rotation = torch.linalg.qr(torch.randn(3, 3, generator=torch.Generator().manual_seed(seed))).Q
    loss = losses.positive_hinge(g, w, margin)
    assert (loss >= 0).all()
    torch.testing.assert_close(losses.positive_hinge(g @ rotation, w @ rotation, margin), loss, atol=1e-5, rtol=1e-4)


def test_contrastive_is_a_plain_double_loop() -> None:
    g, W, y = unit(6, 3), unit(4, 3, seed=1), torch.tensor([0, 1, 2, 3, 0, 1])
    alpha, beta, nu = 0.7, 0.3, 1.6
    expected = []
    for x, label in zip(g, y.tolist(), strict=True):
        total = alpha * euclidean(x, W[label]) ** 2
        for c in range(4):
            if c != label:
                total += beta * max(0.0, nu - euclidean(x, W[c])) ** 2
        expected.append(total)
    assert losses.contrastive(g, y, W, alpha, beta, nu).tolist() == pytest.approx(expected, rel=1e-5)


def test_contrastive_has_a_gradient_where_an_embedding_sits_on_a_class() -> None:
    g = torch.tensor([[1.0, 0.0]], requires_grad=True)
    losses.contrastive(g, torch.tensor([0]), torch.eye(2), margin=2.0).sum().backward()
    assert g.grad is not None
    assert g.grad.isfinite().all()


def test_cosine_contrastive_is_a_plain_double_loop() -> None:
    g, W, y = unit(6, 3), unit(4, 3, seed=1), torch.tensor([0, 1, 2, 3, 0, 1])
    nu = 1.3
    expected = []
    for x, label in zip(g, y.tolist(), strict=True):
        scores = [float(x @ w) for w in W]
        negatives = sum(max(0.0, nu - 1 + s) ** 2 for c, s in enumerate(scores) if c != label)
        expected.append((1 - scores[label]) ** 2 + negatives)
    assert losses.cosine_contrastive(g, y, W, nu).tolist() == pytest.approx(expected, rel=1e-5)


def test_triplet_is_a_plain_double_loop() -> None:
    g, W, y = unit(6, 3), unit(4, 3, seed=1), torch.tensor([0, 1, 2, 3, 0, 1])
    expected = []
    for x, label in zip(g, y.tolist(), strict=True):
        scores = [float(x @ w) for w in W]
        expected.append(sum(max(0.0, 0.2 - scores[label] + s) for c, s in enumerate(scores) if c != label))
    assert losses.triplet(g, y, W).tolist() == pytest.approx(expected, rel=1e-5)


def test_softmax_of_one_dominant_class() -> None:
    # Scores 1 and 0 with scale 2: −log(e² / (e² + 1)).
    loss = losses.softmax_cross_entropy(torch.tensor([[1.0, 0.0]]), torch.tensor([0]), torch.eye(2), scale=2.0)
    assert loss.item() == pytest.approx(math.log(1 + math.exp(-2)))
