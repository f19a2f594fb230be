"""Matrices of mostly zeros, row by row: examples with a few of very many features, and sets of labels."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from torch import Tensor


@dataclass(frozen=True, eq=False)
class SparseRows:
    """A matrix [rows, width]; row i holds `indices[starts[i]:starts[i + 1]]`, with these `values` (None: a set).

    It answers to the words that are used of a tensor of examples, so that who has examples need not ask which they are.
    A batch of rows is of the same type.

    >>> x = SparseRows(torch.tensor([0, 2, 1]), torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0, 2, 3]), width=3)
    >>> x.to_dense().tolist(), x.index_select(0, torch.tensor([1])).to_dense().tolist()
    ([[1.0, 0.0, 2.0], [0.0, 3.0, 0.0]], [[0.0, 3.0, 0.0]])
    """

    indices: Tensor  # [entries]
    values: Tensor | None  # [entries]
    starts: Tensor  # [rows + 1] int64
    width: int

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and width."""
        return len(self), self.width

    @property
    def dtype(self) -> torch.dtype:
        """Of the values; of the indices for sets."""
        return self.indices.dtype if self.values is None else self.values.dtype

    @property
    def device(self) -> torch.device:
        """Where the entries are."""
        return self.indices.device

    @property
    def numbers(self) -> Tensor:
        """The values; of sets ones, [entries]."""
        return torch.ones(len(self.indices), device=self.device) if self.values is None else self.values

    @property
    def counts(self) -> Tensor:
        """Entries of each row, [rows]."""
        return self.starts.diff()

    @property
    def row_of_each(self) -> Tensor:
        """The row of each entry, [entries]."""
        return torch.arange(len(self), device=self.device).repeat_interleave(self.counts, output_size=len(self.indices))

    def flaw(self) -> str | None:
        """What makes these parts no matrix, if anything does; without this no row may be taken.

        >>> SparseRows(torch.tensor([0, 2]), None, torch.tensor([0, 3]), width=3).flaw()
        'its rows do not end where its 2 entries do'
        """
        parts = [self.indices, self.starts, *([] if self.values is None else [self.values])]
        if any(part.ndim != 1 for part in parts) or self.starts.dtype != torch.int64 or not len(self.starts):
            return "its starts, indices and values are not lists"
        if self.indices.dtype not in (torch.int32, torch.int64):
            return f"its indices are {self.indices.dtype}, wanted int32 or int64"
        if self.values is not None and (not self.values.is_floating_point() or len(self.values) != len(self.indices)):
            return f"its values are {len(self.values)} of {self.values.dtype}, wanted {len(self.indices)} of float32"
        if int(self.starts[0]) != 0 or int(self.starts[-1]) != len(self.indices) or int(self.starts.min()) < 0:
            return f"its rows do not end where its {len(self.indices)} entries do"
        if bool((self.starts[1:] < self.starts[:-1]).any()):
            return "a row ends before it begins"
        return None if self.width >= 1 else f"its width is {self.width}"

    def to(self, device: torch.device) -> "SparseRows":
        """The same rows on a device."""
        return self.with_entries(lambda entries: entries.to(device), self.starts.to(device))

    def with_entries(self, pick: Callable[[Tensor], Tensor], starts: Tensor) -> "SparseRows":
        """Rows that begin at these `starts`, of what `pick` makes of the indices and of the values."""
        values = None if self.values is None else pick(self.values)
        return SparseRows(pick(self.indices), values, starts, self.width)

    def index_select(self, dim: int, numbers: Tensor) -> "SparseRows":
        """These rows, in this order, copied."""
        assert dim == 0
        first, counts = self.starts[numbers], self.counts[numbers]
        starts = starts_of(counts)
        shift = (first - starts[:-1]).repeat_interleave(counts, output_size=int(starts[-1]))
        entries = shift.add_(torch.arange(len(shift), device=self.device))
        return self.with_entries(lambda part: part.index_select(0, entries), starts)

    def __getitem__(self, rows: slice) -> "SparseRows":
        """A run of rows, sharing memory."""
        start, stop, step = rows.indices(len(self))
        assert step == 1
        starts = self.starts[start : max(start, stop) + 1]
        entries = slice(int(starts[0]), int(starts[-1]))
        return self.with_entries(lambda part: part[entries], starts - starts[0])

    def split(self, size: int) -> tuple["SparseRows", ...]:
        """Runs of at most `size` rows."""
        return tuple(self[start : start + size] for start in range(0, len(self), size))

    def to_dense(self) -> Tensor:
        """All of it, zeros included; entries that stand twice are added."""
        flat = self.numbers.new_zeros(len(self) * self.width)
        return flat.index_add_(0, self.row_of_each * self.width + self.indices, self.numbers).view(self.shape)

    def to_scipy(self) -> Any:
        """The same as scipy's csr_matrix; a set has ones.

        >>> SparseRows(torch.tensor([0, 2]), None, torch.tensor([0, 1, 2]), width=3).to_scipy().toarray().tolist()
        [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
        """
        parts = (part.cpu().numpy() for part in (self.numbers, self.indices, self.starts))
        return csr_matrix(tuple(parts), shape=self.shape)


Rows = Tensor | SparseRows
"""Examples, [N, …]."""


def from_dense(x: Tensor) -> SparseRows:
    """The entries of a matrix that are not zero."""
    rows, columns = x.nonzero(as_tuple=True)
    return SparseRows(columns, x[rows, columns], starts_of(torch.bincount(rows, minlength=len(x))), x.shape[1])


def from_lists(rows: list[list[int]], width: int) -> SparseRows:
    """Sets of labels.

    >>> from_lists([[4], [], [0, 2]], width=5).starts.tolist()
    [0, 1, 1, 3]
    """
    counts = torch.tensor([len(row) for row in rows], dtype=torch.int64)
    return SparseRows(
        torch.tensor([label for row in rows for label in row], dtype=torch.int64), None, starts_of(counts), width
    )


def from_numpy(indices: NDArray[Any], values: NDArray[Any] | None, starts: NDArray[Any], width: int) -> SparseRows:
    """Rows of these parts, sharing their memory."""
    numbers = None if values is None else torch.from_numpy(values)
    return SparseRows(torch.from_numpy(indices), numbers, torch.from_numpy(starts), width)


def is_scipy(x: Any) -> bool:
    """Whether this is one of scipy's sparse matrices or arrays."""
    return hasattr(x, "tocsr")


def starts_of(counts: Tensor) -> Tensor:
    """Where the rows begin, and the last one ends, from their numbers of entries."""
    return F.pad(counts.cumsum(0), (1, 0))


def add_up(ids: Tensor, numbers: Tensor, rows: Tensor, weights: Tensor | None, size: int) -> Tensor:
    r"""Σ_j weights_j · rows[numbers_j] over all j of one id: a sparse tensor [size, d] of the ids that occur.

    A sort and one pass over the rows, a tenth of what `index_add_` takes.

    >>> add_up(torch.tensor([2, 0, 2]), torch.tensor([0, 1, 1]), torch.eye(2), None, 4).to_dense().tolist()
    [[0.0, 1.0], [0.0, 0.0], [1.0, 1.0], [0.0, 0.0]]
    """
    ordered, order = in_order(ids)
    return add_up_ordered(ordered, numbers[order], rows, None if weights is None else weights[order], size)


def add_up_ordered(ids: Tensor, numbers: Tensor, rows: Tensor, weights: Tensor | None, size: int) -> Tensor:
    """The same of ids that are sorted."""
    unique, counts = ids.unique_consecutive(return_counts=True)
    sums = F.embedding_bag(numbers, rows, counts.cumsum(0) - counts, mode="sum", per_sample_weights=weights)
    return row_delta(unique, sums, size)


def in_order(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Non-negative ids sorted, and where each stood; equal ones stay in their order.

    A number and its place in one word are sorted by NumPy, several times as fast as torch sorts pairs on a CPU.

    >>> in_order(torch.tensor([5, 0, 5, 2]))
    (tensor([0, 2, 5, 5]), tensor([1, 3, 0, 2]))
    """
    bits = max(len(ids) - 1, 0).bit_length()
    if ids.device.type != "cpu" or not len(ids) or int(ids.max()).bit_length() + bits > 63:
        return ids.sort(stable=True)
    words = (ids.to(torch.int64) << bits) | torch.arange(len(ids))
    words.numpy().sort()
    return (words >> bits).to(ids.dtype), words & ((1 << bits) - 1)


def row_delta(ids: Tensor, rows: Tensor, size: int) -> Tensor:
    """Changes of a few rows of a tensor with `size` of them, each id once, in order."""
    return torch.sparse_coo_tensor(
        ids[None].to(torch.int64), rows, (size, *rows.shape[1:]), is_coalesced=True, check_invariants=False
    )
