"""All measures of a model on a test set, as one flat dict of fractions and distances."""

import torch
from torch import Tensor, nn

from fedaws.config import Config
from fedaws.core.local import embed
from fedaws.core.losses import positive_hinge
from fedaws.data.federated import as_input
from fedaws.evaluate.precision import crowding, precision_at, propensity_scored, rank
from fedaws.evaluate.theory import error_bounds, separation
from fedaws.machine.threads import Workers, own_copies
from fedaws.models import evaluating
from fedaws.sparse import Rows, SparseRows
from fedaws.types import Params

KS = (1, 3, 5)


_CACHE = 4_000_000
"""Bytes of examples, as numbers, that are embedded at once."""


_SPARSE = 1024
"""Numbers that a sparse example is taken for: what its layers make of it, not the few that it has."""


def embed_all(encoder: nn.Module, theta: Params, x: Rows, normalize: bool) -> Tensor:
    """g(x) of all examples in evaluation mode (no dropout), in blocks, [N, d]."""

    @torch.no_grad()
    def embed_block(copy: nn.Module, part: Rows) -> Tensor:
        return embed(copy, theta, as_input(part), normalize)

    with evaluating(encoder):
        workers = Workers(own_copies(encoder))
        numbers = x[0].numel() if isinstance(x, Tensor) else _SPARSE
        return torch.cat(list(workers.map(embed_block, x.split(max(1, _CACHE // (4 * numbers * len(workers)))))))


@torch.no_grad()
def evaluate(
    encoder: nn.Module,
    theta: Params,
    W: Tensor,
    x: Rows,
    y: Rows,
    cfg: Config,
    label_weights: Tensor | None = None,
) -> dict[str, float]:
    """precision@1/3/5, the positive hinge on the test set, ρ, the largest cosine; for unit embeddings the bounds.

    For sets of labels also the propensity-scored precision, but not the bounds, which are of one label an example and
    of scores from which nothing was taken.
    """
    embeddings = embed_all(encoder, theta, x, cfg.model.normalize)
    ranking = rank(embeddings, W, max(KS), crowding(W, cfg.model.crowding))
    ks = [k for k in KS if k <= len(W)]
    measures = {f"precision@{k}": precision_at(ranking, y, k) for k in ks}
    if isinstance(y, SparseRows):
        if label_weights is not None:
            measures |= {f"psp@{k}": propensity_scored(ranking, y, label_weights, k) for k in ks}
        measures["test_loss"] = _mean_hinge(embeddings, y, W, cfg.clients.margin)
        return measures | separation(W)
    measures["test_loss"] = float(positive_hinge(embeddings, W[y], cfg.clients.margin).mean())
    measures |= separation(W)
    if cfg.model.normalize and not cfg.model.crowding:
        rho = measures["min_separation"]
        measures |= error_bounds(embeddings, y, W, rho, cfg.spread.margin, cfg.clients.margin)
    return measures


def _mean_hinge(embeddings: Tensor, labels: SparseRows, W: Tensor, margin: float) -> float:
    """Over all pairs of an example and one of its labels, in blocks."""
    pairs = zip(*(part.split(_CACHE // (4 * W.shape[1])) for part in (labels.row_of_each, labels.indices)), strict=True)
    total = sum(float(positive_hinge(embeddings[rows], W[own], margin).sum()) for rows, own in pairs)
    return total / max(1, len(labels.indices))
