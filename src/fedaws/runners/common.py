"""What every runner needs of the data: a cohort's examples, and its weights ω."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from fedaws.config import Config
from fedaws.core.methods import method_of
from fedaws.data.batches import BatchPlan
from fedaws.data.federated import FederatedData, as_input


class Examples(NamedTuple):
    """The examples of m clients over E steps."""

    x: Tensor  # [m, E, b, …]
    y: Tensor  # [m, E, b]
    share: Tensor  # [m, E, b] of the step's mean; 0 for padding


class ClientData:
    """The clients' side of the data: nobody but a client's own update reads its examples."""

    def __init__(self, cfg: Config, data: FederatedData) -> None:
        self._plan = BatchPlan(data, cfg.clients, cfg.seed)
        self._x, self._y = data.x, data.y
        self._labels = method_of(cfg).rows == "all"  # a client with a row of its own has one class, and no use for y
        by_examples = cfg.clients.weighting == "examples"
        self._weights = data.num_examples.to(torch.float32) if by_examples else torch.ones(len(data.num_examples))

    def draw(self, clients: Tensor, round_num: int) -> Examples:
        """What these clients train on in this round."""
        numbers, share = self._plan.draw(clients, round_num)
        flat = numbers.flatten().to(self._x.device)
        x = as_input(self._x.index_select(0, flat)).unflatten(0, numbers.shape)
        y = self._y.index_select(0, flat).view(numbers.shape) if self._labels else self._y[:1].expand(numbers.shape)
        return Examples(x, y, share.to(self._x.device))

    def weights(self, clients: Tensor) -> Tensor:
        """n_i of each, or 1."""
        return self._weights.index_select(0, clients.cpu()).to(self._x.device)


def blocks(count: int, size: int) -> Iterator[slice]:
    """Slices of `size` that cover `count`."""
    return (slice(start, min(start + size, count)) for start in range(0, count, size))
