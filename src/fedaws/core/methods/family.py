r"""A client of several classes that gets its own rows only: a family's phone, a shop.

Between the paper's setting and plain FedAvg. A client's other own classes are legal negatives, with O its own classes:

.. math:: \max(0,\ 0.9 - s_y)^2 + \sum_{c \in O,\ c \ne y} \max(0,\ \nu - 1 + s_c)^2

which is eq. (11) over O. Classes of other clients are kept apart by the server, as `[spread]` says. Not in the paper.
"""

from functools import partial

import torch
from torch import Tensor

from fedaws.config import Config
from fedaws.core import spreadout
from fedaws.core.method import Method
from fedaws.types import ClassFacts


def method(cfg: Config, _: ClassFacts | None) -> Method:
    """FedAwS, with two classes a client unless the data say otherwise."""
    loss = partial(own_contrastive, margin=cfg.spread.margin, positive_margin=cfg.clients.margin)
    return Method("family", "several own rows", "own", loss, spreadout.make_spread(cfg), classes_per_client=2)


def own_contrastive(embeddings: Tensor, places: Tensor, rows: Tensor, margin: float, positive_margin: float) -> Tensor:
    """Losses [..., b] of embeddings [..., b, d], whose classes are at these places [..., b] of the rows [..., k, d]."""
    scores = embeddings @ rows.transpose(-1, -2)  # [..., b, k]
    own = places[..., None] == torch.arange(rows.shape[-2], device=rows.device)
    positive = (positive_margin - scores).clamp_min(0).square()
    negative = (margin - 1 + scores).clamp_min(0).square()
    return torch.where(own, positive, negative).sum(-1)
