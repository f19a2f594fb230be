r"""The paper's theory beside practice: separation ρ, radius ε, and its bounds as corrected in docs/theory.md."""

import math

import torch
from torch import Tensor

from fedaws.core.losses import cosine_contrastive
from fedaws.core.spreadout import nearest

MOST_CLASSES, MOST_EXAMPLES = 20_000, 2_000
"""Beyond these, separation is measured from a sample of classes, the loss bounds from a sample of examples."""


def separation(W: Tensor) -> dict[str, float]:
    r"""The nearest pair of classes: `min_separation` ρ = min ‖w_i − w_j‖ and `max_cosine`.

    >>> separation(torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, -1.0]]))["min_separation"]  # √(0.4² + 0.8²)
    0.894...
    """
    cohort = torch.arange(len(W), device=W.device)
    if len(W) > MOST_CLASSES:
        cohort = cohort[:: math.ceil(len(W) / 4096)]
    closest = W[nearest(W, cohort, None, 1).squeeze(1)]
    unit = torch.nn.functional.normalize(W, dim=1)
    aligned = unit[nearest(unit, cohort, None, 1).squeeze(1)]
    return {
        "min_separation": float((W[cohort] - closest).norm(dim=1).min()),
        "max_cosine": float((unit[cohort] * aligned).sum(1).max()),
    }


def error_bounds(
    embeddings: Tensor, labels: Tensor, W: Tensor, rho: float, max_cosine: float, nu: float, margin: float
) -> dict[str, float]:
    r"""Upper bounds on the probability of a wrong class, for unit embeddings.

    Proposition 1 with Euclidean distance: P ≤ 2ε/ρ (`error_bound`, with `positive_radius` ε). With cosine distance:
    P ≤ ε/(1 − √(1 − ρ/2)). Lemma 1, tight form with the hinge's margin: P ≤ 2 E[ℓ] / (ν − 1 + margin)². Theorem 1: the
    FedAwS loss differs from the contrastive one by at most 2ν Σ_c |w_c · (w_y − g)|.
    """
    own = W[labels]
    radius = float((embeddings - own).norm(dim=1).mean())
    bounds = {"positive_radius": radius, "error_bound": _ratio(2 * radius, rho)}
    cosine_radius = float((1 - (embeddings * own).sum(1)).clamp_min(0).mean())
    # 1 − √(1 − ρ/2) with ρ = 1 − max cosine, in a form that does not cancel for small ρ.
    half = max(0.0, 1 - max_cosine) / 2
    bounds["error_bound_cosine"] = _ratio(cosine_radius, half / (1 + math.sqrt(max(0.0, 1 - half))))
    sample = slice(0, None, math.ceil(len(labels) / MOST_EXAMPLES))
    return bounds | _loss_bounds(embeddings[sample], labels[sample], W, nu, margin)


def _loss_bounds(embeddings: Tensor, labels: Tensor, W: Tensor, nu: float, margin: float) -> dict[str, float]:
    contrastive, gap, allowed = 0.0, 0.0, 0.0
    block = max(1, 4_000_000 // len(W))
    for g, y in zip(embeddings.split(block), labels.split(block), strict=True):
        loss = cosine_contrastive(g, y, W, nu, margin)
        # ℓ_sp: the same with w_y in place of g in the negative terms (Proposition 2).
        spread = cosine_contrastive(W[y], y, W, nu, -math.inf) + (margin - (g * W[y]).sum(1)).clamp_min(0).square()
        mismatch = ((W[y] - g) @ W.T).abs().scatter(1, y[:, None], 0.0).sum(1)
        contrastive += float(loss.sum())
        gap += float((spread - loss).abs().sum())
        allowed += float(2 * nu * mismatch.sum())
    n, floor = len(labels), (nu - 1 + margin) ** 2 / 2
    return {
        "lemma1_bound": _ratio(contrastive / n, floor) if nu > 1 - margin else 1.0,
        "theorem1_gap": gap / n,
        "theorem1_bound": allowed / n,
    }


def _ratio(numerator: float, denominator: float) -> float:
    """A bound on a probability: never above 1."""
    return 1.0 if numerator >= denominator else numerator / denominator
