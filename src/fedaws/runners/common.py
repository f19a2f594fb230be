"""What every runner needs of the data: a cohort's examples, and its weights ω."""

from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from fedaws.config import Config
from fedaws.core.method import Method
from fedaws.core.sampled_classes import positions
from fedaws.core.schedule import image_size
from fedaws.data.augment import crop_and_flip, leave_out, resized
from fedaws.data.batches import BatchPlan
from fedaws.data.federated import FederatedData, as_input
from fedaws.hashing import hash64, hash_tensor
from fedaws.sparse import Rows, SparseRows
from fedaws.types import Broadcast


class Drawn(NamedTuple):
    """Which examples m clients use over E steps: small, whatever the examples are."""

    numbers: Tensor  # [m, E, b] into FederatedData.x
    share: Tensor  # [m, E, b] of the step's mean; 0 for padding
    draws: Tensor | None  # [m, E, b] a random number for each, if they are to be augmented
    size: int | None  # what images are resized to

    def part(self, block: slice) -> "Drawn":
        """Some of the clients'."""
        draws = None if self.draws is None else self.draws[block]
        return Drawn(self.numbers[block], self.share[block], draws, self.size)


class Examples(NamedTuple):
    """The examples of m clients over E steps."""

    rows: Rows  # [m · E · b, …], in the order of y
    y: Tensor  # [m, E, b]
    share: Tensor  # [m, E, b] of the step's mean; 0 for padding

    @property
    def x(self) -> Tensor:
        """Dense examples, [m, E, b, …]."""
        assert isinstance(self.rows, Tensor)
        return self.rows.view(*self.y.shape, *self.rows.shape[1:])


class ClientData:
    """The clients' side of the data: nobody but a client's own update reads its examples."""

    def __init__(self, cfg: Config, method: Method, data: FederatedData) -> None:
        self._cfg, self._plan = cfg, BatchPlan(data, cfg.clients, cfg.seed)
        self._x, self._y = data.x, data.y
        self._labels = method.rows == "all" or method.classes_per_client > 1  # of one class nobody needs y
        if method.rows != "all" and method.classes_per_client > 1:  # places among the client's own rows
            self._y = (data.y - data.class_of[:, 0].repeat_interleave(data.num_examples)) % data.num_classes
        augmented = cfg.data.augment != "none" or cfg.data.drop > 0
        self._chance = hash64(cfg.seed, "augment") if augmented else None
        self._first_client = data.first_client
        by_examples = cfg.clients.weighting == "examples"
        counts = data.num_examples.cpu()
        self._weights = counts.to(torch.float32) if by_examples else torch.ones(len(counts))

    def draw(self, clients: Tensor, round_num: int) -> Drawn:
        """What these clients train on in this round; not to be called by two threads at once."""
        numbers, share = self._plan.draw(clients, round_num)
        draws = None
        if self._chance is not None:  # of a client, its step and the place in its batch alone
            steps = round_num * numbers.shape[1] + torch.arange(numbers.shape[1])
            places = torch.arange(numbers.shape[2])
            numbered = clients.cpu()[:, None, None] + self._first_client
            draws = hash_tensor(self._chance, numbered, steps[:, None], places)
        return Drawn(numbers, share, draws, image_size(self._cfg.train, round_num))

    def examples(self, drawn: Drawn, classes: Tensor | None = None) -> Examples:
        """The examples themselves; their labels by their places in `classes`, if only rows of these were sent."""
        numbers, share, draws, size = drawn
        flat = numbers.flatten().to(self._x.device)
        y = self._y.index_select(0, flat).view(numbers.shape) if self._labels else self._y[:1].expand(numbers.shape)
        y = y if classes is None else positions(classes, y)
        share = share.to(self._x.device)
        if isinstance(self._x, SparseRows):
            rows = self._x.index_select(0, flat)
            return Examples(rows if draws is None else leave_out(rows, draws.flatten(), self._cfg.data.drop), y, share)
        x = self._x.index_select(0, flat) if draws is None else crop_and_flip(self._x, flat, draws.flatten())
        x = as_input(x) if size is None else resized(as_input(x), size)
        return Examples(x, y, share)

    def weights(self, sent: Broadcast, block: slice) -> Tensor:
        """Those of some of the clients: as the server says, or n_i of each, or 1."""
        if sent.weights is not None:
            return sent.weights[block]
        return self._weights.index_select(0, sent.cohort[block].cpu()).to(self._x.device)


def even_blocks(count: int, parts: int) -> Iterator[slice]:
    """So many slices that cover `count`, the larger ones first, none by more than 1.

    >>> [part.stop - part.start for part in even_blocks(10, 4)]
    [3, 3, 2, 2]
    """
    size, larger = divmod(count, parts)
    starts = accumulate([size + 1] * larger + [size] * (parts - larger), initial=0)
    return (slice(start, stop) for start, stop in pairwise(starts))
