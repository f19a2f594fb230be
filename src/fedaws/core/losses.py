r"""The losses of the paper, one value per example.

A client of FedAwS can only compute :func:`positive_hinge`, which needs its own class embedding. The others compare an
example with every class and serve the oracles. Scores are inner products s_c = w_c · g(x); where rows and embeddings
are unit vectors they are cosines.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def positive_hinge(embeddings: Tensor, w: Tensor, margin: float = 0.9) -> Tensor:
    r"""The positive squared hinge (Section 6), [B].

    .. math:: \ell(x) = \max(0,\ 0.9 - g(x) \cdot w)^2

    `w` is one class embedding [d], or one per example [B, d].

    >>> positive_hinge(torch.tensor([[1.0, 0.0], [0.6, 0.8]]), torch.tensor([1.0, 0.0]))
    tensor([0.0000, 0.0900])
    """
    return (margin - (embeddings * w).sum(-1)).clamp_min(0).square()


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
    embeddings: Tensor, labels: Tensor, W: Tensor, margin: float = 1.0, positive_margin: float = 1.0
) -> Tensor:
    r"""The cosine contrastive loss, eq. (11), [B].

    .. math:: (1 - s_y)^2 + \sum_{c \ne y} \max(0, \nu - 1 + s_c)^2

    `positive_margin` replaces the 1 of the first term by the 0.9 of the hinge that is really trained with.

    >>> cosine_contrastive(torch.tensor([[0.6, 0.8]]), torch.tensor([0]), torch.eye(2))
    tensor([0.8000])
    """
    scores = embeddings @ W.T
    positive = (positive_margin - scores.gather(-1, labels[:, None]).squeeze(-1)).clamp_min(0).square()
    return positive + _sum_over_others((margin - 1 + scores).clamp_min(0).square(), labels)


def triplet(embeddings: Tensor, labels: Tensor, W: Tensor, margin: float = 0.2) -> Tensor:
    r"""The triplet loss over class embeddings (Chechik et al. 2010), [B].

    .. math:: \sum_{c \ne y} \max(0, \mathrm{margin} - s_y + s_c)

    >>> triplet(torch.tensor([[0.6, 0.8]]), torch.tensor([0]), torch.eye(2))
    tensor([0.4000])
    """
    scores = embeddings @ W.T
    own = scores.gather(-1, labels[:, None])
    return _sum_over_others((margin - own + scores).clamp_min(0), labels)


def softmax_cross_entropy(embeddings: Tensor, labels: Tensor, W: Tensor, scale: float = 1.0) -> Tensor:
    r"""Softmax cross-entropy on scaled scores, [B]; cosines need a scale, or their softmax is nearly flat.

    .. math:: -\log \frac{e^{\sigma s_y}}{\sum_c e^{\sigma s_c}}

    >>> softmax_cross_entropy(torch.zeros(1, 2), torch.tensor([0]), torch.eye(2))
    tensor([0.6931])
    """
    return F.cross_entropy(scale * embeddings @ W.T, labels, reduction="none")


def _sum_over_others(values: Tensor, labels: Tensor) -> Tensor:
    """Σ over c ≠ y of values[:, c], with the own entry left out rather than subtracted (inf − inf, cancellation)."""
    own = torch.arange(values.shape[-1], device=values.device) == labels[:, None]
    return values.masked_fill(own, 0).sum(-1)
