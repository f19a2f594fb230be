r"""A bag's embedding table, shared out by features: feature f is with rank f mod world.

No row of the table travels. Each rank adds up, for every example of every rank, the rows that it has; these sums are
[examples, d], however many features an example has. So the clients run on h as if it were a table with one row an
example, and what comes back for these rows is added up, by the same weights, at the features' owners:

.. math:: h_j = \sum_f x_{jf} e_f, \qquad \Delta e_f = \sum_j x_{jf} \Delta h_j
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedaws.models.bag import Bag, entry_weights
from fedaws.ranks.group import Ranks
from fedaws.runners.common import ClientData, Drawn, Examples
from fedaws.sparse import SparseRows, add_up, row_delta
from fedaws.types import Broadcast, Params, Update


class BagClients(ClientData):
    """Clients whose examples were looked up already: example j has the one feature j, whose row is h_j."""

    def draw(self, clients: Tensor, round_num: int) -> Drawn:
        """As many as the clients would draw, numbered from 0."""
        drawn = super().draw(clients, round_num)
        return Drawn(torch.arange(drawn.numbers.numel()).view_as(drawn.numbers), drawn.share, None, None)

    def examples(self, drawn: Drawn, classes: Tensor | None = None) -> Examples:
        """The examples of these numbers."""
        return Examples(one_row_each(drawn.numbers.flatten()), self._y[:1].expand(drawn.numbers.shape), drawn.share)

    def features(self, clients: Tensor, round_num: int) -> SparseRows:
        """What the clients really have, in the order of those numbers."""
        rows = super().examples(super().draw(clients, round_num)).rows
        assert isinstance(rows, SparseRows)
        return rows


class _Asked(NamedTuple):
    """What all ranks asked this one for: entries of their examples, numbered through from the first rank's on."""

    places: Tensor  # [entries] of the features in the own part of the table
    examples: Tensor  # [entries]
    weights: Tensor  # [entries]
    counts: list[int]  # examples of each rank
    size: int  # rows of the own part


class SharedTable:
    """The own part of the table's rows is a parameter of the encoder, as every other; only who looks up is told."""

    def __init__(self, ranks: Ranks, name: str, clients: BagClients) -> None:
        self.name = name
        self._ranks, self._clients = ranks, clients
        self._round: tuple[Tensor, _Asked] | None = None  # h of the own clients' examples, and what all asked for

    def looked_up(self, sent: Broadcast) -> Params:
        """θ for the clients of this rank, whose table has a row for each of their examples."""
        x = self._clients.features(sent.cohort, sent.round_num)
        self._round = self.look_up(sent.theta[self.name], x)
        return sent.theta | {self.name: self._round[0]}

    def change(self, updates: list[Update], total: float) -> Tensor:
        """Σ ω_i Δ_i of the own part of the table, a sparse tensor, from the changes of all examples' h."""
        assert self._round is not None
        h, asked = self._round
        own = h.zero_()  # the round has no more use for it
        for update in updates:
            delta = update.delta[self.name].coalesce()
            own.index_copy_(0, delta.indices()[0], delta.values() * (float(update.weights.sum()) / total))
        changes = torch.cat(self._ranks.gather(own, asked.counts))
        if not len(asked.places):
            return row_delta(asked.places, changes[:0], asked.size)
        return add_up(asked.places, asked.examples, changes, asked.weights, asked.size)

    def look_up(self, table: Tensor, x: SparseRows) -> tuple[Tensor, _Asked]:
        """h of this rank's examples [B, d], and what all asked for; every rank asks at the same time."""
        questions = [_Question.read(message) for message in self._ranks.exchange(self._questions(x))]
        sums = [question.answer(table) for question in questions]
        h = torch.stack(self._ranks.exchange(sums)).sum(0)
        counts = [len(question.counts) for question in questions]
        firsts = [sum(counts[:rank]) for rank in range(len(counts))]
        parts = zip(questions, firsts, strict=True)
        return h, _Asked(
            torch.cat([question.places for question in questions]).long(),
            torch.cat([question.examples + first for question, first in parts]),
            torch.cat([question.weights for question in questions]),
            counts,
            len(table),
        )

    def _questions(self, x: SparseRows) -> list[Tensor]:
        weights, row_of_each, owner = entry_weights(x), x.row_of_each, x.indices % self._ranks.world
        messages = []
        for rank in range(self._ranks.world):
            at = (owner == rank).nonzero()[:, 0]
            counts = torch.bincount(row_of_each[at], minlength=len(x))
            places = x.indices[at] // self._ranks.world
            messages.append(_Question(counts, places, weights[at]).message())
        return messages


class _Question(NamedTuple):
    """The entries of some examples that are with one rank."""

    counts: Tensor  # [examples] entries of each
    places: Tensor  # [entries]
    weights: Tensor  # [entries]

    def message(self) -> Tensor:
        """All in one tensor of int32."""
        head = torch.tensor([len(self.counts)], dtype=torch.int32)
        return torch.cat([head, self.counts.int(), self.places.int(), self.weights.float().view(torch.int32)])

    @classmethod
    def read(cls, message: Tensor) -> "_Question":
        """What such a tensor says."""
        count = int(message[0])
        places, weights = message[1 + count :].chunk(2) if len(message) > 1 + count else (message[:0], message[:0])
        return cls(message[1 : 1 + count], places, weights.view(torch.float32))

    @property
    def examples(self) -> Tensor:
        """The example of each entry."""
        return torch.arange(len(self.counts)).repeat_interleave(self.counts.long(), output_size=len(self.places))

    def answer(self, table: Tensor) -> Tensor:
        """The weighted sum of each example's rows, [examples, d]."""
        if not len(self.counts) or not len(self.places):
            return table.new_zeros(len(self.counts), table.shape[1])
        starts = (self.counts.cumsum(0) - self.counts).int()
        return F.embedding_bag(self.places, table, starts, mode="sum", per_sample_weights=self.weights)


def one_row_each(numbers: Tensor) -> SparseRows:
    """Examples with one feature each, these."""
    return SparseRows(numbers, None, torch.arange(len(numbers) + 1), max(1, len(numbers)))


def keep_own_rows(encoder: nn.Module, ranks: Ranks) -> str | None:
    """Leave of a bag's table the rows that are this rank's; its name, None for an encoder without one."""
    for prefix, module in encoder.named_modules():
        if isinstance(module, Bag) and module.table.requires_grad:
            module.table = nn.Parameter(module.table.detach()[ranks.rank :: ranks.world].clone())
            return f"{prefix}.table" if prefix else "table"
    return None
