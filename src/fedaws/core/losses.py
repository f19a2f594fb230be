r"""The losses of the paper, one value per example.

A client of FedAwS can only compute :func:`positive_hinge`, which needs its own class embedding. The others compare an
example with every class and serve the oracles. Scores are inner products s_c = w_c · g(x); where rows and embeddings
are unit vectors they are cosines.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedaws.core.log_sum import log_sum_of_others


class Sample(NamedTuple):
    """The first `size` rows of W stand for all classes but an example's own (`core/sampled_classes.py`)."""

    size: int
    num_classes: int


def positive_hinge(embeddings: Tensor, w: Tensor, margin: float = 0.9) -> Tensor:
    r"""The positive squared hinge (Section 6), [B].

    .. math:: \ell(x) = \max(0,\ 0.9 - g(x) \cdot w)^2

    `w` is one class embedding [d], or one per example [B, d].

    >>> positive_hinge(torch.tensor([[1.0, 0.0], [0.6, 0.8]]), torch.tensor([1.0, 0.0]))
    tensor([0.0000, 0.0900])
    """
    return (margin - (embeddings * w).sum(-1)).clamp_min(0).square()


@dataclass(frozen=True)
class OfScore:
    """A loss of the score s = g · w alone, and its slope: enough for a gradient without autograd."""

    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]

    def __call__(self, embeddings: Tensor, w: Tensor) -> Tensor:
        """The losses of embeddings [..., B, d] with their rows, [..., B]."""
        return self.value((embeddings * w).sum(-1))


def hinge_of_score(margin: float) -> OfScore:
    """:func:`positive_hinge` as a function of the score.

    >>> hinge_of_score(0.9).value(torch.tensor([1.0, 0.6])), hinge_of_score(0.9).slope(torch.tensor([1.0, 0.6]))
    (tensor([0.0000, 0.0900]), tensor([-0.0000, -0.6000]))
    """
    return OfScore(lambda s: (margin - s).clamp_min(0).square(), lambda s: (margin - s).clamp_min(0).mul_(-2))


def positive_distance(embeddings: Tensor, w: Tensor) -> Tensor:
    r"""The positive part of the contrastive loss for embeddings of any length, [B].

    .. math:: \ell(x) = \lVert g(x) - w \rVert^2

    Where g may be long the hinge is content with g = 0.9 Σ_c w_c for every x, at which all classes tie
    (docs/theory.md, 10).

    >>> positive_distance(torch.tensor([[1.0, 0.0], [3.0, 1.0]]), torch.tensor([1.0, 0.0]))
    tensor([0., 5.])
    """
    return (embeddings - w).square().sum(-1)


def contrastive(
    embeddings: Tensor, labels: Tensor, W: Tensor, alpha: float = 1.0, beta: float = 1.0, margin: float = 1.0
) -> Tensor:
    r"""The contrastive loss, eq. (5), with Euclidean distance d, [B].

    .. math:: \alpha\, d(g, w_y)^2 + \beta \sum_{c \ne y} \max(0, \nu - d(g, w_c))^2

    >>> contrastive(torch.tensor([[1.0, 0.0]]), torch.tensor([0]), torch.eye(2), margin=2.0)
    tensor([0.3431])
    """
    # ‖g − w‖² by the norms, kept away from 0 where the root has no gradient.
    squared = embeddings.square().sum(-1, keepdim=True) + W.square().sum(-1) - 2 * embeddings @ W.T
    positive = squared.gather(-1, labels[:, None]).squeeze(-1).clamp_min(0)
    negative = (margin - squared.clamp_min(1e-12).sqrt()).clamp_min(0).square()
    return alpha * positive + beta * _sum_over_others(negative, labels)


def cosine_contrastive(
    embeddings: Tensor,
    labels: Tensor,
    W: Tensor,
    margin: float = 1.0,
    positive_margin: float = 1.0,
    sample: Sample | None = None,
) -> Tensor:
    r"""The cosine contrastive loss, eq. (11), [B].

    .. math:: (1 - s_y)^2 + \sum_{c \ne y} \max(0, \nu - 1 + s_c)^2

    `positive_margin` replaces the 1 of the first term by the 0.9 of the hinge that is really trained with.

    >>> cosine_contrastive(torch.tensor([[0.6, 0.8]]), torch.tensor([0]), torch.eye(2))
    tensor([0.8000])
    """
    own, scores = _scores(embeddings, labels, W, sample)
    positive = (positive_margin - own).clamp_min(0).square()
    return positive + _sum_over_others((margin - 1 + scores).clamp_min(0).square(), labels, sample)


def triplet(embeddings: Tensor, labels: Tensor, W: Tensor, margin: float = 0.2, sample: Sample | None = None) -> Tensor:
    r"""The triplet loss over class embeddings (Chechik et al. 2010), [B].

    .. math:: \sum_{c \ne y} \max(0, \mathrm{margin} - s_y + s_c)

    >>> triplet(torch.tensor([[0.6, 0.8]]), torch.tensor([0]), torch.eye(2))
    tensor([0.4000])
    """
    own, scores = _scores(embeddings, labels, W, sample)
    return _sum_over_others((margin - own[:, None] + scores).clamp_min(0), labels, sample)


def softmax_cross_entropy(
    embeddings: Tensor, labels: Tensor, W: Tensor, scale: float = 1.0, sample: Sample | None = None
) -> Tensor:
    r"""Softmax cross-entropy on scaled scores, [B]; cosines need a scale, or their softmax is nearly flat.

    .. math:: -\log \frac{e^{\sigma s_y}}{\sum_c e^{\sigma s_c}}
              = \log\Big(1 + e^{-\sigma s_y} \sum_{c \ne y} e^{\sigma s_c}\Big)

    Over a sample the sum is :math:`e^{\sigma s_y} + \sum_{c \ne y} e^{\sigma s_c - \log q}`.

    >>> softmax_cross_entropy(torch.zeros(1, 2), torch.tensor([0]), torch.eye(2))
    tensor([0.6931])
    """
    scaled = scale * embeddings
    own = (scaled * W.index_select(0, labels)).sum(-1)
    others = log_sum_of_others(scaled, labels, W if sample is None else W[: sample.size])
    if sample is not None:
        others = others + _stands_for(labels, sample).log()
    return torch.logaddexp(others.new_zeros(()), others - own)


def _scores(embeddings: Tensor, labels: Tensor, W: Tensor, sample: Sample | None) -> tuple[Tensor, Tensor]:
    """s_y [B], and s_c of the classes to compare with [B, C or S]."""
    if sample is None:
        scores = embeddings @ W.T
        return scores.gather(-1, labels[:, None]).squeeze(-1), scores
    return (embeddings * W.index_select(0, labels)).sum(-1), embeddings @ W[: sample.size].T


def _stands_for(labels: Tensor, sample: Sample) -> Tensor:
    """(C − 1)/n: how many classes each of an example's others in the sample stands for, [B]."""
    return (sample.num_classes - 1) / (sample.size - (labels < sample.size).to(torch.float32))


def _sum_over_others(values: Tensor, labels: Tensor, sample: Sample | None = None) -> Tensor:
    """Σ over c ≠ y of values[:, c], with the own entry left out rather than subtracted (inf − inf, cancellation)."""
    own = torch.arange(values.shape[-1], device=values.device) == labels[:, None]
    total = values.masked_fill(own, 0).sum(-1)
    return total if sample is None else total * _stands_for(labels, sample)
