"""The softmax's sum over the other classes, in blocks."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap

from fedaws.core import log_sum
from fedaws.core.log_sum import log_sum_of_others
from fedaws.core.losses import softmax_cross_entropy


@pytest.fixture(params=[1, 7, 20, 1000])  # scores in a block: of one example, of one, of two and a rest, of all
def _blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_sum, "SCORES", request.param)


def problem(examples: int = 5, classes: int = 7) -> tuple[Tensor, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    g, W = (torch.randn(n, 3, generator=rng, dtype=torch.float64).requires_grad_() for n in (examples, classes))
    return g, torch.arange(examples) % classes, W


@pytest.mark.usefixtures("_blocks")
def test_it_is_the_sum_by_hand_and_so_are_its_gradients() -> None:
    g, labels, W = problem()
    found = log_sum_of_others(g, labels, W)
    scores = (g @ W.T).tolist()
    for i, y in enumerate(labels.tolist()):
        others = sum(math.exp(score) for c, score in enumerate(scores[i]) if c != y)
        assert found[i].item() == pytest.approx(math.log(others), rel=1e-12)
    assert torch.autograd.gradcheck(lambda g, W: log_sum_of_others(g, labels, W), (g, W))


@pytest.mark.usefixtures("_blocks")
def test_the_loss_is_pytorchs_cross_entropy() -> None:
    g, labels, W = problem()
    ours, theirs = softmax_cross_entropy(g, labels, W, 4.0), F.cross_entropy(4.0 * g @ W.T, labels, reduction="none")
    weights = torch.arange(1.0, 6.0, dtype=torch.float64)
    torch.testing.assert_close(ours, theirs)
    for a, b in zip(*(torch.autograd.grad(loss @ weights, (g, W)) for loss in (ours, theirs)), strict=True):
        torch.testing.assert_close(a, b)


def test_a_label_beyond_a_sample_leaves_none_out() -> None:
    g, _, W = problem(examples=2)
    labels = torch.tensor([6, 1])
    found = log_sum_of_others(g, labels, W[:3])
    assert found[0].item() == pytest.approx((g[0] @ W[:3].T).logsumexp(0).item())
    assert found[1].item() == pytest.approx((g[1] @ W[[0, 2]].T).logsumexp(0).item())


def test_large_scores_do_not_overflow_and_small_losses_keep_their_digits() -> None:
    W = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    loss = softmax_cross_entropy(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), torch.tensor([0, 0]), W, scale=100.0)
    assert loss.tolist() == pytest.approx([0.0, 200.0], abs=1e-30)
    small = softmax_cross_entropy(torch.tensor([[1.0, 0.0]]), torch.tensor([0]), W, scale=12.0)
    assert float(small) == pytest.approx(math.exp(-24), rel=1e-4)  # log(e^12 + e^−12) − 12 would be 0 in float32


@pytest.mark.usefixtures("_blocks")  # at once, and one after the other
@pytest.mark.parametrize("own_W", [True, False])
def test_a_stack_of_clients_has_the_gradients_of_each(own_W: bool) -> None:
    g, labels, W = problem(examples=6)
    stack, stacked_labels = g.detach().view(2, 3, 3).requires_grad_(), labels.view(2, 3)
    Ws = torch.stack([W, 2 * W]).detach().requires_grad_() if own_W else W
    found = vmap(log_sum_of_others, in_dims=(0, 0, 0 if own_W else None))(stack, stacked_labels, Ws)
    alone = torch.stack([log_sum_of_others(stack[i], stacked_labels[i], Ws[i] if own_W else Ws) for i in range(2)])
    torch.testing.assert_close(found, alone)
    for a, b in zip(*(torch.autograd.grad(loss.square().sum(), (stack, Ws)) for loss in (found, alone)), strict=True):
        torch.testing.assert_close(a, b)


def test_second_derivatives_are_refused_and_not_wrong() -> None:
    g, labels, W = problem()
    with pytest.raises(RuntimeError, match="out="):
        torch.autograd.grad(log_sum_of_others(g, labels, W).sum(), g, create_graph=True)
