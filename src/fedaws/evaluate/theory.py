r"""The paper's theory beside practice: separation ρ, radius ε, and its bounds as corrected in docs/theory.md."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from fedaws.core.losses import cosine_contrastive, positive_hinge
from fedaws.core.mining import nearest
from fedaws.core.rows import changed, here, largest, whole
from fedaws.machine.blocks import TILE

MOST_PAIRS = 20_000**2
"""With more pairs of classes, ρ is the least distance of so many classes to all that it makes about so many pairs: an
estimate from above."""
MOST_SCORES, LEAST_EXAMPLES = 40_000_000, 2_000
"""The loss bounds are taken over all examples up to so many scores, beyond that over a sample of at least so many."""


def separation(W: Tensor) -> dict[str, float]:
    r"""The nearest pair of classes: `min_separation` ρ = min ‖w_i − w_j‖ and `max_cosine`.

    >>> separation(torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, -1.0]]))["min_separation"]  # √(0.4² + 0.8²)
    0.894...
    """
    cohort = torch.arange(0, len(W), math.ceil(len(W) ** 2 / MOST_PAIRS), device=W.device)
    closest = nearest(W, cohort, None, 1).squeeze(1)
    aligned = closest if on_sphere(W, 2e-5) else nearest(changed(W, F.normalize), cohort, None, 1).squeeze(1)
    return {
        "min_separation": float((W[cohort] - W[closest]).norm(dim=1).min()),
        "max_cosine": float(F.cosine_similarity(W[cohort], W[aligned], dim=1).max()),
    }


def on_sphere(W: Tensor, within: float) -> bool:
    """Whether all rows have unit length, or nearly."""
    lengths = torch.linalg.vector_norm(here(W), dim=1)
    return float(largest(W, (lengths - 1).abs().max())) <= within


def error_bounds(
    embeddings: Tensor, labels: Tensor, W: Tensor, rho: float, nu: float, margin: float
) -> dict[str, float]:
    r"""Upper bounds on the probability of a wrong class, for unit embeddings and unit rows of W that are ρ apart.

    Proposition 1 with Euclidean distance: P ≤ 2ε/ρ (`error_bound`, with `positive_radius` ε). With cosine distance,
    which is half the squared Euclidean one: P ≤ ε/(1 − √(1 − ρ/2)). Lemma 1, tight form with the hinge's margin:
    P ≤ 2 E[ℓ] / (ν − 1 + margin)². Theorem 1: the FedAwS loss differs from the contrastive one by at most
    2ν Σ_c |w_c · (w_y − g)|.
    """
    W = whole(W)
    own = W[labels]
    radius = float((embeddings - own).norm(dim=1).mean())
    cosine_radius = float((1 - (embeddings * own).sum(1)).clamp_min(0).mean())
    half = min(1.0, rho**2 / 4)  # ρ/2 of the cosine distance; below, 1 − √(1 − half) in a form that does not cancel
    sample = slice(0, None, math.ceil(len(labels) / max(LEAST_EXAMPLES, MOST_SCORES // len(W))))
    return {
        "positive_radius": radius,
        "error_bound": _ratio(2 * radius, rho),
        "error_bound_cosine": _ratio(cosine_radius, half / (1 + math.sqrt(1 - half))),
        **_loss_bounds(embeddings[sample], labels[sample], W, nu, margin),
    }


def _loss_bounds(embeddings: Tensor, labels: Tensor, W: Tensor, nu: float, margin: float) -> dict[str, float]:
    contrastive, gap, allowed = 0.0, 0.0, 0.0
    block = max(1, TILE // len(W))
    for g, y in zip(embeddings.split(block), labels.split(block), strict=True):
        # The negative terms alone: of ℓ_ccl, and of ℓ_sp, which has w_y in place of g (Proposition 2).
        negatives, spread = (cosine_contrastive(at, y, W, nu, positive_margin=-math.inf) for at in (g, W[y]))
        mismatch = ((W[y] - g) @ W.T).abs().scatter(1, y[:, None], 0.0)
        contrastive += float((positive_hinge(g, W[y], margin) + negatives).sum())
        gap += float((spread - negatives).abs().sum())
        allowed += float(2 * nu * mismatch.sum())
    n, floor = len(labels), (nu - 1 + margin) ** 2 / 2
    return {
        "lemma1_bound": _ratio(contrastive / n, floor) if nu > 1 - margin else 1.0,
        "theorem1_gap": gap / n,
        "theorem1_bound": allowed / n,
    }


def _ratio(numerator: float, denominator: float) -> float:
    """A bound on a probability: never above 1."""
    return numerator / denominator if numerator < denominator else 1.0
