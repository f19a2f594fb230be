"""The processes that train together: who they are, and the few ways in which they talk.

Every call is made by all ranks in the same order; what is said to differ is only the argument.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Ranks:
    """So many processes, of which this is one; number 0 speaks for all and writes the run folder."""

    rank: int
    world: int

    @property
    def first(self) -> bool:
        """Whether this is the one that speaks for all."""
        return self.rank == 0

    def sum_(self, part: Tensor) -> Tensor:
        """Add up what all have, in place; everybody gets the same bits."""
        dist.all_reduce(part)
        return part

    def max_(self, part: Tensor) -> Tensor:
        """The largest that anybody has, number by number, in place."""
        dist.all_reduce(part, dist.ReduceOp.MAX)
        return part

    def gather(self, part: Tensor, counts: Sequence[int]) -> list[Tensor]:
        """Each rank's rows; `counts` says how many each has, which everybody knows."""
        most = max(counts)
        if not most:
            return [part] * self.world
        padded = part if len(part) == most else torch.cat([part, part.new_empty(most - len(part), *part.shape[1:])])
        found = [torch.empty_like(padded) for _ in range(self.world)]
        dist.all_gather(found, padded.contiguous())
        return [rows[:count] for rows, count in zip(found, counts, strict=True)]

    def exchange(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Send each rank its part, [rows, …]; returns what each has sent, however many rows these are."""
        sizes = torch.tensor([len(part) for part in parts])
        theirs = torch.empty_like(sizes)
        dist.all_to_all_single(theirs, sizes)
        received = parts[0].new_empty(int(theirs.sum()), *parts[0].shape[1:])
        dist.all_to_all_single(received, torch.cat(list(parts)), theirs.tolist(), sizes.tolist())
        return list(received.split(theirs.tolist()))

    def any(self, fact: bool) -> bool:
        """Whether it holds of any of them."""
        return bool(self.max_(torch.tensor([int(fact)])))

    def tell(self, text: str) -> str:
        """What the first of them has to say, to all."""
        words = torch.frombuffer(bytearray(text.encode()) or bytearray(1), dtype=torch.uint8)
        size = torch.tensor([len(text.encode())])
        dist.broadcast(size, 0)
        told = words if self.first else torch.empty(max(1, int(size)), dtype=torch.uint8)
        dist.broadcast(told, 0)
        return bytes(told[: int(size)].numpy()).decode()

    def wait(self) -> None:
        """Until all are here."""
        dist.barrier()

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """The first rank of each machine goes through this before the others, who find its caches filled."""
        first = os.environ.get("LOCAL_RANK", str(self.rank)) == "0"
        if not first:
            self.wait()
        yield
        if first:
            self.wait()


def current_ranks() -> Ranks | None:
    """The ranks that this process is one of; None where it is alone."""
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return None
    return Ranks(dist.get_rank(), dist.get_world_size())
