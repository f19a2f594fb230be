r"""Who is there in which round: people join a federation while it trains, and leave it.

A class that is absent takes part in nothing: no client of its is asked, and its row, zeros, is in no spreading. Which
rounds a class is there follows from the settings and the seed alone, so that nothing of it needs to be saved.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedaws.config import Config, Moves
from fedaws.core.method import Spread, When
from fedaws.errors import FedawsError
from fedaws.hashing import hash64
from fedaws.types import Memory

NEVER = 1 << 62
"""The round in which somebody leaves who stays."""


@dataclass(frozen=True)
class Attendance:
    """Of each class its first round, and the first round without it."""

    joins: Tensor  # [C]
    leaves: Tensor  # [C]

    def present(self, round_num: int) -> Tensor:
        """Who is there in a round, [C]."""
        return (self.joins <= round_num) & (round_num < self.leaves)

    def newcomers(self, round_num: int) -> Tensor:
        """Who comes in this round, [C]; those of round 0 were there from the start."""
        return self.present(round_num) & (self.joins == round_num) & (round_num > 0)

    def without(self, classes: Tensor, round_num: int) -> "Attendance":
        """The same, but these have gone for good by this round."""
        leaves = self.leaves.clone()
        leaves[classes] = leaves[classes].clamp_max(round_num)
        return replace(self, leaves=leaves)

    @property
    def changes(self) -> list[int]:
        """The rounds that begin with somebody coming or going, the first among them."""
        rounds = torch.cat([self.joins, self.leaves[self.leaves < NEVER]]).unique()
        return sorted({0, *rounds.tolist()})

    @property
    def fewest(self) -> int:
        """Classes in the round that has the fewest."""
        return min(int(self.present(round_num).sum()) for round_num in self.changes)


def attendance_of(cfg: Config, num_classes: int) -> Attendance:
    """What `clients.join` and `clients.leave` say; refused unless two classes are there in every round.

    >>> late = attendance_of(Config(clients={"join": [[0, 0.5], [20, 1.0]], "leave": [[30, [2]]]}), 4)
    >>> [int(late.present(round_num).sum()) for round_num in (0, 19, 20, 30)]
    [2, 2, 4, 3]
    """
    rng = torch.Generator().manual_seed(hash64(cfg.seed, "joining"))
    order = torch.randperm(num_classes, generator=rng)
    joins = _moved(cfg.clients.join, order, "join", 0)
    leaves = _moved(cfg.clients.leave, order, "leave", NEVER)
    early = (leaves <= joins).nonzero().flatten().tolist()
    if early:
        one = early[0]
        raise FedawsError(
            f"class {one} leaves in round {int(leaves[one])} and joins in round {int(joins[one])}; wanted each of "
            f"clients.leave later than in clients.join ({len(early)} of {num_classes:,} classes are not)"
        )
    attendance = Attendance(joins, leaves)
    if (cfg.clients.join or cfg.clients.leave) and attendance.fewest < 2:
        raise FedawsError(
            f"clients.join and leave have a round with {attendance.fewest} of {num_classes:,} classes; wanted at "
            "least two, to tell apart"
        )
    return attendance


def _moved(moves: Moves, order: Tensor, key: str, otherwise: int) -> Tensor:
    """The round in which each class moves, [C]."""
    rounds = torch.full((len(order),), otherwise, dtype=torch.int64)
    for round_num, who in reversed(moves):  # of shares the earlier ones are parts of the later
        if isinstance(who, float):
            rounds[order[: round(who * len(order))]] = round_num
            continue
        unknown = [c for c in who if c >= len(order)]
        twice = [c for c in who if c < len(order) and int(rounds[c]) != otherwise]
        if unknown or twice:
            problem = f"class {unknown[0]} of {len(order):,}" if unknown else f"class {twice[0]} twice"
            raise FedawsError(f"clients.{key} has {problem}; wanted each of 0 … {len(order) - 1} at most once")
        rounds[list(who)] = round_num
    return rounds


# --- spreading those who are there ----------------------------------------------------------------------------------


def among(spread: Spread, present: Tensor) -> Spread:
    """The same spreading, over the rows of the classes that are there; the rows of others stay as they are."""
    ids = present.nonzero().squeeze(1)
    places = torch.full_like(present, -1, dtype=torch.int64)
    places[ids] = torch.arange(len(ids), device=ids.device)

    def step(W: Tensor, classes: Tensor, when: When, rng: torch.Generator, memory: Memory) -> Memory:
        rows, count = W[ids], len(W)
        part = {name: _numbered(t[ids], places) if _by_class(t, count) else t for name, t in memory.items()}
        after = spread.step(rows, places[classes], when, rng, part)
        W[ids] = rows
        whole = {name: t.clone() if _by_class(t, count) else after[name] for name, t in memory.items()}
        for name, t in whole.items():
            if _by_class(t, count):
                t[ids] = _numbered(after[name], ids)
        return whole

    return Spread(step, spread.init)


def entered(memory: Memory, fresh: Memory, changed: Tensor) -> Memory:
    """A spreading's memory with the entries of these classes [C] begun anew."""
    count = len(changed)
    return {
        name: torch.where(changed.view(-1, *[1] * (t.ndim - 1)), fresh[name], t) if _by_class(t, count) else t
        for name, t in memory.items()
    }


def _by_class(tensor: Tensor, num_classes: int) -> bool:
    """Whether it has an entry for each class: what a memory of this length is taken for."""
    return tensor.ndim > 0 and len(tensor) == num_classes


def _numbered(tensor: Tensor, numbers: Tensor) -> Tensor:
    """Ids of classes by other numbers; −1 stays, and so do numbers that are no ids."""
    if tensor.is_floating_point():
        return tensor
    return torch.where(tensor < 0, -1, numbers[tensor.long().clamp_min(0)]).to(tensor.dtype)
