"""Rows that are shared out: row i of W, or of whatever has a row a class, is with rank i mod world.

(Not ranges: where classes or features are numbered by how frequent they are, the first range would have all the work.)
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fedaws.core import rows as words
from fedaws.errors import FedawsError
from fedaws.machine.blocks import ROWS
from fedaws.ranks.group import Ranks


class SharedRows(Tensor):
    """A tensor [C, …] to everybody who reads and writes rows by number, of which this process has only its own part.

    Every rank reads and writes the same ones at the same time. What no rank can do alone is refused in one line.
    """

    part: Tensor  # [own rows, …]
    ranks: Ranks

    @staticmethod
    def __new__(cls, part: Tensor, count: int, ranks: Ranks) -> "SharedRows":
        wrapper: Any = Tensor._make_wrapper_subclass
        made: SharedRows = wrapper(cls, (count, *part.shape[1:]), dtype=part.dtype, device=part.device)
        return made

    def __init__(self, part: Tensor, count: int, ranks: Ranks) -> None:
        super().__init__()
        wanted = len(range(ranks.rank, count, ranks.world))
        assert len(part) == wanted, f"rank {ranks.rank} has {len(part)} of {count} rows, wanted {wanted}"
        self.part, self.ranks = part, ranks

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        answer = _ANSWERS.get(func)
        if answer is not None:
            return answer(*args, **(kwargs or {}))
        if func in _FACTS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        name = getattr(func, "__qualname__", None) or getattr(func, "__name__", str(func))
        raise FedawsError(
            f"{name} looks at all class embeddings at once, and they are shared out among ranks; train in one process "
            "(without torchrun), or load the finished run: fedaws.load(folder)"
        )

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise FedawsError(f"{func} of rows that are shared out among ranks; train in one process (without torchrun)")


def share(rows: Tensor, ranks: Ranks) -> SharedRows:
    """Of rows that everybody has the own part."""
    return SharedRows(rows[ranks.rank :: ranks.world].clone(), len(rows), ranks)


def row_blocks(rows: SharedRows) -> "list[Tensor]":
    """The numbers of all rows in order, in blocks of which each fits anywhere."""
    size = max(1, ROWS // max(1, rows.part[:1].numel()))
    return list(torch.arange(len(rows)).split(size))


def _take(rows: SharedRows, ids: Any) -> Tensor:
    """These rows, on every rank."""
    if not isinstance(ids, Tensor) or ids.dtype not in (torch.int32, torch.int64):
        raise FedawsError(f"rows shared out among ranks are read by their numbers, got {type(ids).__name__}")
    ranks, flat = rows.ranks, ids.flatten().long()
    owner = flat % ranks.world
    counts = torch.bincount(owner, minlength=ranks.world).tolist()
    own = rows.part.index_select(0, flat[owner == ranks.rank] // ranks.world)
    found = ranks.gather(own, counts)
    taken = own.new_empty(len(flat), *own.shape[1:])
    for rank, theirs in enumerate(found):
        taken.index_copy_(0, (owner == rank).nonzero()[:, 0], theirs)
    return taken.view(*ids.shape, *own.shape[1:])


def _put(rows: SharedRows, ids: Tensor, new: Tensor) -> SharedRows:
    places = _places_of(rows, ids)
    mine = places >= 0
    rows.part[places[mine]] = new[mine].to(rows.part.dtype)
    return rows


def _places_of(rows: SharedRows, ids: Tensor) -> Tensor:
    world = rows.ranks.world
    return torch.where(ids % world == rows.ranks.rank, ids // world, -1)


def _own_part(rows: SharedRows, count: int) -> slice:
    first, last = (count * r // rows.ranks.world for r in (rows.ranks.rank, rows.ranks.rank + 1))
    return slice(first, last)


def _put_together(rows: SharedRows, part: Tensor, count: int) -> Tensor:
    world = rows.ranks.world
    return torch.cat(rows.ranks.gather(part, [count * (r + 1) // world - count * r // world for r in range(world)]))


def _best_of(rows: SharedRows, scores: Tensor, ids: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Each rank has its k best, or as many as it has rows."""
    missing = k - scores.shape[1]
    if missing > 0:
        scores = torch.nn.functional.pad(scores, (0, missing), value=-torch.inf)
        ids = torch.nn.functional.pad(ids, (0, missing))
    counts = [len(scores)] * rows.ranks.world
    all_scores, all_ids = (torch.cat(rows.ranks.gather(part, counts), 1) for part in (scores, ids))
    best = all_scores.topk(k, dim=1)
    return best.values, all_ids.gather(1, best.indices)


def _whole(rows: SharedRows) -> Tensor:
    ranks, count = rows.ranks, len(rows)
    parts = ranks.gather(rows.part, [len(range(r, count, ranks.world)) for r in range(ranks.world)])
    made = rows.part.new_empty(rows.shape)
    for rank, part in enumerate(parts):
        made[rank :: ranks.world] = part
    return made


def _kept_beside(rows: SharedRows, width: tuple[int, ...], fill: float, dtype: torch.dtype) -> SharedRows:
    part = torch.full((len(rows.part), *width), fill, dtype=dtype, device=rows.device)
    return SharedRows(part, len(rows), rows.ranks)


def _new(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def new(rows: SharedRows, *args: Any, **options: Any) -> Tensor:
        return make(rows.part, *args, **options)

    return new


_ANSWERS: dict[Any, Callable[..., Any]] = {
    words.here: lambda rows: rows.part,
    words.whole: _whole,
    words.ids_of: lambda rows, places: places * rows.ranks.world + rows.ranks.rank,
    words.places_of: _places_of,
    words.summed: lambda rows, part: rows.ranks.sum_(part.clone(memory_format=torch.contiguous_format)),
    words.largest: lambda rows, part: rows.ranks.max_(part.clone()),
    words.own_part: _own_part,
    words.put_together: _put_together,
    words.best_of: _best_of,
    words.kept_beside: _kept_beside,
    words.changed: lambda rows, change: SharedRows(change(rows.part), len(rows), rows.ranks),
    Tensor.__getitem__: _take,
    Tensor.__setitem__: _put,
    Tensor.index_select: lambda rows, dim, index: _take(rows, index),
    Tensor.__repr__: lambda rows, **_: f"SharedRows({tuple(rows.shape)}, rank {rows.ranks.rank} of {rows.ranks.world})",
    Tensor.new_empty: _new(Tensor.new_empty),
    Tensor.new_zeros: _new(Tensor.new_zeros),
    Tensor.new_full: _new(Tensor.new_full),
}
"""All that such rows can do."""

_FACTS = {
    Tensor.__len__, Tensor.size, Tensor.dim, Tensor.is_floating_point,
    *(getattr(Tensor, name).__get__ for name in ("shape", "dtype", "device", "ndim", "is_sparse", "requires_grad")),
}  # fmt: skip
