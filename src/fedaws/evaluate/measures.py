"""All measures of a model on a test set, as one flat dict of fractions and distances."""

import torch
from torch import Tensor, nn

from fedaws.config import Config
from fedaws.core.local import embed
from fedaws.core.losses import positive_hinge
from fedaws.data.federated import as_input
from fedaws.evaluate.precision import precision_at, rank
from fedaws.evaluate.theory import error_bounds, separation
from fedaws.models import evaluating
from fedaws.parallel import Workers, own_copies
from fedaws.types import Params

KS = (1, 3, 5)


_CACHE = 4_000_000
"""Bytes of examples, as numbers, that are embedded at once."""


def embed_all(encoder: nn.Module, theta: Params, x: Tensor, normalize: bool) -> Tensor:
    """g(x) of all examples in evaluation mode (no dropout), in blocks, [N, d]."""

    @torch.no_grad()
    def embed_block(copy: nn.Module, part: Tensor) -> Tensor:
        return embed(copy, theta, as_input(part), normalize)

    with evaluating(encoder):
        workers = Workers(own_copies(encoder))
        size = max(1, _CACHE // (4 * x[0].numel() * len(workers)))
        return torch.cat(list(workers.map(embed_block, x.split(size))))


@torch.no_grad()
def evaluate(encoder: nn.Module, theta: Params, W: Tensor, x: Tensor, y: Tensor, cfg: Config) -> dict[str, float]:
    """precision@1/3/5, the positive hinge on the test set, ρ, the largest cosine; for unit embeddings the bounds."""
    embeddings = embed_all(encoder, theta, x, cfg.model.normalize)
    ranking = rank(embeddings, W, max(KS))
    measures = {f"precision@{k}": precision_at(ranking, y, k) for k in KS if k <= len(W)}
    measures["test_loss"] = float(positive_hinge(embeddings, W[y], cfg.clients.margin).mean())
    measures |= separation(W)
    if cfg.model.normalize:
        rho = measures["min_separation"]
        measures |= error_bounds(embeddings, y, W, rho, cfg.spread.margin, cfg.clients.margin)
    return measures
