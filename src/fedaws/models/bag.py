"""The encoder of sparse examples: the mean of its features' embeddings, and a perceptron on top of it."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedaws.models.mlp import mlp
from fedaws.sparse import Rows, SparseRows, add_up, from_dense


class Bag(nn.Module):
    r"""x → h or MLP(h) with :math:`h = \sum_f x_f e_f / \sum_f x_f`, the paper's lookup and averaging (Section 6.2).

    Rows of the table start at about unit length, the layers with He's initialisation and zero biases: with PyTorch's
    own biases all embeddings start in one cone and nothing trains. `residual` adds h to the perceptron's output, whose
    last layer then starts at zero. No hidden layers: the table alone.
    """

    def __init__(self, features: int, hidden: Sequence[int], embedding_dim: int, residual: bool = False) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(features, embedding_dim).mul_(embedding_dim**-0.5))
        self.layers = mlp(embedding_dim, hidden, embedding_dim) if hidden else None
        self.residual = residual
        self.lookup = Lookup()
        if residual and self.layers is not None:
            last = self.layers[-1]
            assert isinstance(last, nn.Linear)
            nn.init.zeros_(last.weight)

    def forward(self, x: Rows) -> Tensor:
        """Embeddings, not yet of unit length, [B, d]; zeros for an example without features."""
        sparse = x if isinstance(x, SparseRows) else from_dense(x)
        h: Tensor = self.lookup(sparse, self.table)
        return self.after(h)

    def after(self, h: Tensor) -> Tensor:
        """What the layers make of the means [B, d] of the features' rows."""
        if self.layers is None:
            return h
        out: Tensor = self.layers(h)
        return h + out if self.residual else out


class Lookup(nn.Module):
    """The mean of the features' rows; a layer of its own, without parameters, so that a hook can see it."""

    def forward(self, x: SparseRows, table: Tensor) -> Tensor:
        """[B, d]."""
        h: Tensor = _WeightedMean.apply(table, x)  # type: ignore[no-untyped-call]
        return h


def entry_weights(x: SparseRows) -> Tensor:
    """Each entry over its row's sum, [entries].

    >>> entry_weights(from_dense(torch.tensor([[1.0, 3.0], [0.0, 5.0]]))).tolist()
    [0.25, 0.75, 1.0]
    """
    values, row_of_each = x.numbers, x.row_of_each
    totals = values.new_zeros(len(x)).index_add_(0, row_of_each, values)
    return values / totals.clamp_min(torch.finfo(values.dtype).tiny)[row_of_each]


class _WeightedMean(torch.autograd.Function):
    """`EmbeddingBag` whose gradient has the rows of the features that occur, each once.

    PyTorch's own sparse gradient has a row for every entry of the batch, which then are to be sorted and added up;
    the transposed bag gives the sums at once.
    """

    @staticmethod
    def forward(ctx: Any, table: Tensor, x: SparseRows) -> Tensor:
        weights, row_of_each = entry_weights(x), x.row_of_each
        ctx.save_for_backward(x.indices, row_of_each, weights)
        ctx.size = len(table)
        return F.embedding_bag(
            x.indices, table, x.starts[:-1].to(x.indices.dtype), mode="sum", per_sample_weights=weights
        )

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        indices, row_of_each, weights = ctx.saved_tensors
        return add_up(indices, row_of_each, gradient.contiguous(), weights, ctx.size), None


def table_names(encoder: nn.Module) -> tuple[str, ...]:
    """The trainable parameters that are looked up row by row, so that their gradients are sparse."""
    tables: list[Tensor] = [module.table for module in encoder.modules() if isinstance(module, Bag)]
    sparse = (nn.Embedding, nn.EmbeddingBag)
    tables += [module.weight for module in encoder.modules() if isinstance(module, sparse) and module.sparse]
    places = {id(table) for table in tables}
    return tuple(name for name, p in encoder.named_parameters() if p.requires_grad and id(p) in places)
