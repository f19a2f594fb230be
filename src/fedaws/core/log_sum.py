r"""The softmax's sum over all other classes, and its gradient, in blocks of examples.

With thousands of classes the scores of a round's examples fill memory. Here a block of scores lives in one buffer,
which the next block uses again; the backward pass computes the scores a second time: four matrix products in place of
three. So all examples can go through in one pass, and W, its normalisation and its gradient are gone through once.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from fedaws.machine.blocks import SCORES, slices


def log_sum_of_others(embeddings: Tensor, labels: Tensor, W: Tensor) -> Tensor:
    r"""The logarithm of what all classes but the own have together, [B].

    .. math:: \log \sum_{c \ne y} e^{w_c \cdot g}

    A label may lie beyond W's rows, where these are a sample without it; then none is left out.

    >>> log_sum_of_others(torch.zeros(1, 2), torch.tensor([0]), torch.ones(3, 2))  # log 2
    tensor([0.6931])
    """
    log_sums: Tensor = _LogSumOfOthers.apply(embeddings, labels, W)  # type: ignore[no-untyped-call]
    return log_sums


class _LogSumOfOthers(torch.autograd.Function):
    @staticmethod
    def forward(embeddings: Tensor, labels: Tensor, W: Tensor) -> Tensor:
        log_sums = embeddings.new_empty(len(embeddings))
        for block, scores in _score_blocks(embeddings, labels, W):
            largest = scores.amax(1)
            log_sums[block] = scores.sub_(largest[:, None]).exp_().sum(1).log_().add_(largest)
        return log_sums

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs, output)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        embeddings, labels, W, log_sums = ctx.saved_tensors
        of_embeddings, of_W = torch.empty_like(embeddings), torch.zeros_like(W)
        for block, scores in _score_blocks(embeddings, labels, W):
            shares = scores.sub_(log_sums[block, None]).exp_().mul_(upstream[block, None])
            torch.mm(shares, W, out=of_embeddings[block])
            if ctx.needs_input_grad[2]:
                of_W.addmm_(shares.T, embeddings[block])
        return of_embeddings, None, of_W

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *stacks: Tensor) -> tuple[Tensor, int]:
        """A small stack of clients at once; of a large one, each with its own W, one after the other."""
        clients = info.batch_size
        g, y, W = (
            t.expand(clients, *t.shape) if dim is None else t.movedim(dim, 0)
            for t, dim in zip(stacks, in_dims, strict=True)
        )
        if clients * g.shape[1] * W.shape[1] <= SCORES:
            own = torch.arange(W.shape[1], device=W.device) == y[..., None]
            return (g @ W.mT).masked_fill(own, -math.inf).logsumexp(-1), 0
        parts = zip(g.unbind(), y.unbind(), W.unbind(), strict=True)
        return torch.stack([log_sum_of_others(*part) for part in parts]), 0


def _score_blocks(embeddings: Tensor, labels: Tensor, W: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Blocks of examples with their scores, −∞ for the own class; all in one buffer, good until the next."""
    step = max(1, SCORES // len(W))
    buffer = embeddings.new_empty(min(step, len(embeddings)), len(W))
    for block in slices(len(embeddings), step):
        scores = torch.mm(embeddings[block], W.T, out=buffer[: block.stop - block.start])
        there = (labels[block] < len(W)).nonzero().ravel()
        scores[there, labels[block][there]] = -math.inf
        yield block, scores
