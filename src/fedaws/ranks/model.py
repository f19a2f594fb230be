"""A model whose class embeddings, and perhaps whose table, are shared out; test examples too."""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from fedaws.core.local import embed
from fedaws.evaluate import Model
from fedaws.machine.blocks import EXAMPLES
from fedaws.models import evaluating
from fedaws.ranks.group import Ranks
from fedaws.ranks.tables import SharedTable, one_row_each
from fedaws.sparse import Rows, SparseRows


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
        if self.table is not None:
            assert isinstance(part, SparseRows)
            own = self._embed_bags(part, max(counts))
        else:
            own = super().embed(part) if len(part) else self.W.new_empty(0, self.W.shape[1])
        return torch.cat(self.ranks.gather(own, counts))

    @torch.no_grad()
    def _embed_bags(self, x: SparseRows, most: int) -> Tensor:
        """In as many blocks on every rank, as all of them look up each block together."""
        assert self.table is not None
        name, parts = self.table.name, []
        with evaluating(self.encoder):
            for start in range(0, most, EXAMPLES):
                block = x[min(start, len(x)) : min(start + EXAMPLES, len(x))]
                h, _ = self.table.look_up(self.theta[name], block)
                if len(h):
                    theta = self.theta | {name: h}
                    parts.append(embed(self.encoder, theta, one_row_each(torch.arange(len(h))), self.normalize))
        return torch.cat(parts) if parts else self.W.new_empty(0, self.W.shape[1])
