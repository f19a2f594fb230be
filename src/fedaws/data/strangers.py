"""Strangers: classes that have no client. Nobody trains on them: they tell how good a model is with new people."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, get_args

import torch
from torch import Tensor

from fedaws.config.mistakes import did_you_mean
from fedaws.data.arrays import channels_last
from fedaws.errors import FedawsError
from fedaws.hashing import hash64

Wanted = float | Sequence[str]
"""A share (below 1) or a number of classes, or patterns of their names."""
Part = Literal["strangers", "test_strangers"]
"""Strangers to choose by, and others, for the final figure alone."""
PARTS: tuple[Part, ...] = get_args(Part)
FEWEST = 2
"""A stranger is compared with another."""


@dataclass(frozen=True, repr=False)
class Strangers:
    """All examples of the classes without a client, in the order of the data: training examples, then test examples."""

    x: Tensor  # [N, …]
    people: Tensor  # [N] the number of the class in the data that they were taken from
    names: tuple[str, ...]  # of the people, in the order of these numbers

    def __repr__(self) -> str:
        """Without the numbers."""
        return f"Strangers({len(self.people):,} examples of {len(self.names):,} people)"

    def to(self, device: torch.device) -> "Strangers":
        """The same on a device."""
        return Strangers(self.x.to(device), self.people.to(device), self.names)


def strangers_of(
    sources: Sequence[tuple[Tensor, Tensor]], numbers: Sequence[int], names: Sequence[str]
) -> Strangers | None:
    """The examples of the classes of these numbers, out of all (x, y); None of no classes."""
    if not numbers:
        return None
    picked = [(x, y, torch.isin(y, torch.tensor(numbers))) for x, y in sources]
    x = torch.cat([x[rows] for x, _, rows in picked])
    people = torch.cat([y[rows] for _, y, rows in picked])
    return Strangers(channels_last(x), people, tuple(names[number] for number in numbers))


def draw_strangers(
    there: Sequence[int], names: Sequence[str], strangers: Wanted, test_strangers: Wanted, seed: int
) -> dict[Part, list[int]]:
    """Which of the classes that are `there` become strangers, by the number that each has.

    `names` [classes] are what patterns are held against. Those of the test are drawn first, so that they are the same
    people whatever is taken to choose by.

    >>> drawn = draw_strangers(range(10), "abcdefghij", strangers=2, test_strangers=["b", "[h-j]"], seed=0)
    >>> drawn["test_strangers"], len(drawn["strangers"])
    ([1, 7, 8, 9], 2)
    """
    requests: dict[Part, Wanted] = {"test_strangers": test_strangers, "strangers": strangers}
    named = {
        part: _named(part, each, there, names) for part, each in requests.items() if not isinstance(each, int | float)
    }
    both = set(named.get("strangers", ())) & set(named.get("test_strangers", ()))
    if both:
        raise FedawsError(
            f"strangers: {names[min(both)]!r} is also one of test_strangers; what is chosen by some is tested on others"
        )
    taken = {number for numbers in named.values() for number in numbers}
    rest = [number for number in there if number not in taken]
    order = torch.randperm(len(rest), generator=torch.Generator().manual_seed(hash64(seed, "strangers"))).tolist()
    drawn: dict[Part, list[int]] = {}
    for part, each in requests.items():
        count = 0 if part in named else _count(part, each, len(there))
        drawn[part] = named.get(part) or sorted(rest[i] for i in order[:count])
        order = order[count:]
        if len(drawn[part]) == 1:
            raise FedawsError(
                f"{part}={_shown(each)} is one class; wanted {FEWEST} or more, to compare them with each other"
            )
    if len(there) - sum(map(len, drawn.values())) < 2:
        raise FedawsError(
            f"strangers={_shown(strangers)} and test_strangers={_shown(test_strangers)} leave fewer than two of "
            f"{len(there)} classes to train; lower them"
        )
    return drawn


def renumbered(classes: int, away: Collection[int]) -> Tensor:
    """The new number of every class, [classes]: those that stay keep their order, those that are away have −1.

    >>> renumbered(4, away=[1]).tolist()
    [0, -1, 1, 2]
    """
    stays = torch.ones(classes, dtype=torch.int64)
    stays[list(away)] = 0
    return torch.where(stays > 0, stays.cumsum(0) - 1, -1)


def _named(part: Part, patterns: Wanted, there: Sequence[int], names: Sequence[str]) -> list[int]:
    assert not isinstance(patterns, int | float)
    if isinstance(patterns, str):
        raise FedawsError(f"{part}={patterns!r} is a text; wanted a number, or a list of names: [{patterns!r}]")
    numbers = set[int]()
    for pattern in patterns:
        matched = [number for number in there if fnmatchcase(names[number], pattern)]
        if not matched:
            hint = did_you_mean(pattern, names, f"the first is called {names[there[0]]!r}")
            raise FedawsError(f"{part}: no class is called {pattern!r}; {hint}")
        numbers.update(matched)
    return sorted(numbers)


def _count(part: Part, share: Wanted, classes: int) -> int:
    assert isinstance(share, int | float)
    if not 0 <= share < float("inf") or (share >= 1 and share != int(share)):
        raise FedawsError(f"{part}={_shown(share)}; wanted a share of the classes below 1, or a whole number of them")
    count = round(share * classes) if share < 1 else int(share)
    if count > classes or (share and not count):
        raise FedawsError(f"{part}={_shown(share)} is {count} of {classes} classes; wanted some of both")
    return count


def _shown(request: Wanted) -> str:
    return f"{request:g}" if isinstance(request, int | float) else f"{list(request)!r:.80}"
