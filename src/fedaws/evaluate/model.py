"""A trained model: how examples become embeddings, and embeddings scores of classes."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from fedaws.core.local import embed
from fedaws.data.federated import as_input
from fedaws.evaluate.precision import Ranking, crowding, rank
from fedaws.evaluate.theory import on_sphere
from fedaws.machine.blocks import ROWS
from fedaws.machine.threads import Workers, own_copies
from fedaws.models import evaluating
from fedaws.sparse import Rows
from fedaws.types import Params

_SPARSE = 1024
"""Numbers that a sparse example is taken for: what its layers make of it, not the few that it has."""

REMOVED = -1e30
"""The bias of a removed class: no example overcomes it, and being finite it can be saved."""


@dataclass(frozen=True)
class Model:
    """Encoder, θ and W: what is evaluated, examined, saved and used.

    The score of class c is w_c · g(x) + b_c, less its crowding: by how much it is near to others.
    """

    encoder: nn.Module
    theta: Params
    W: Tensor  # [C, d]
    normalize: bool = True  # whether g(x) is put on the unit sphere
    bias: Tensor | None = None  # [C] b_c
    crowding: float = 0.0  # so much of a class's mean cosine with its ten nearest is taken from its scores

    def embed(self, x: Rows) -> Tensor:
        """g(x) of all examples in evaluation mode (no dropout), in blocks, [N, d]."""

        @torch.no_grad()
        def embed_block(copy: nn.Module, part: Rows) -> Tensor:
            return embed(copy, self.theta, as_input(part), self.normalize)

        with evaluating(self.encoder):
            workers = Workers(own_copies(self.encoder))
            numbers = x[0].numel() if isinstance(x, Tensor) else _SPARSE
            size = max(1, ROWS // (numbers * len(workers)))
            return torch.cat(list(workers.map(embed_block, x.split(size))))

    def rank(self, embeddings: Tensor, k: int) -> Ranking:
        """The k best classes of each embedding and their scores; a removed class is never among them."""
        known = len(self.W) if self.bias is None else int((self.bias > REMOVED).sum())
        return rank(embeddings, self.W, min(k, known), self.shift)

    @cached_property
    def shift(self) -> Tensor | None:
        """What is taken from the classes' scores, [C]: crowding less bias; None for nothing."""
        crowd = crowding(self.W, self.crowding)
        if self.bias is None:
            return crowd
        return -self.bias if crowd is None else crowd - self.bias

    @cached_property
    def on_sphere(self) -> bool:
        """Whether embeddings and rows are unit vectors and scores nothing but their cosines."""
        return self.normalize and self.shift is None and on_sphere(self.W, 1.1e-4)
