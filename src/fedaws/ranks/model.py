"""A model whose class embeddings, and perhaps whose table, are shared out; test examples too."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from fedaws.core.local import embed
from fedaws.data.federated import as_input
from fedaws.evaluate import Model
from fedaws.machine.blocks import EXAMPLES
from fedaws.models import evaluating
from fedaws.ranks.group import Ranks
from fedaws.ranks.tables import SharedTable, one_row_each
from fedaws.sparse import Rows, SparseRows
from fedaws.types import Params


@dataclass(frozen=True, kw_only=True)
class SharedModel(Model):
    """Every rank embeds a part of the examples, and has the embeddings of all."""

    ranks: Ranks
    table: SharedTable | None = None

    def embed(self, x: Rows) -> Tensor:
        """g(x) of all examples, [N, d]."""
        ends = [len(x) * r // self.ranks.world for r in range(self.ranks.world + 1)]
        counts = [stop - start for start, stop in pairwise(ends)]
        part = x[ends[self.ranks.rank] : ends[self.ranks.rank + 1]]
        own = torch.cat(list(self.blocks(self.theta, part, max(counts))))
        return torch.cat(self.ranks.gather(own, counts))

    @torch.no_grad()
    def blocks(self, theta: Params, x: Rows, most: int) -> Iterator[Tensor]:
        """g(x) of this rank's examples under θ, `EXAMPLES` at a time. Whoever has most has `most`: all ranks go through
        as many blocks, as they look up each together; the last ones of who has fewer are empty.
        """
        with evaluating(self.encoder):
            for start in range(0, most, EXAMPLES):
                block = x[min(start, len(x)) : min(start + EXAMPLES, len(x))]
                if self.table is not None:
                    assert isinstance(block, SparseRows)
                    h, _ = self.table.look_up(theta[self.table.name], block)
                    block, of_block = one_row_each(torch.arange(len(h))), theta | {self.table.name: h}
                else:
                    of_block = theta
                if len(block):
                    yield embed(self.encoder, of_block, as_input(block), self.normalize)
                else:
                    yield self.W.new_empty(0, self.W.shape[1])
