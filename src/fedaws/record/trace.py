"""Which rows of W a run keeps, and after which rounds: enough to see the classes move, few for any number of them."""

import torch
from torch import Tensor

STEPS = 24  # rounds after the start
MOST_CLASSES = 256
MOST_NUMBERS = 65_536  # in a file: 256 kB


def trace_rounds(rounds: int) -> frozenset[int]:
    """The start and up to 24 rounds, dense at first, when the classes move most.

    >>> sorted(trace_rounds(96))[:6], max(trace_rounds(96))
    ([0, 1, 2, 3, 5, 6], 96)
    """
    return frozenset({0} | {-(-rounds * step**2 // STEPS**2) for step in range(1, STEPS + 1)})


def traced_classes(num_classes: int, dim: int, seed: int) -> Tensor:
    """The ids of the classes to keep: all, or a sample that the seed decides, the same for every method.

    >>> traced_classes(4, 32, seed=0).tolist(), len(traced_classes(670_091, 512, seed=0))
    ([0, 1, 2, 3], 128)
    """
    most = max(2, min(MOST_CLASSES, MOST_NUMBERS // dim))
    if num_classes <= most:
        return torch.arange(num_classes)
    return torch.randperm(num_classes, generator=torch.Generator().manual_seed(seed))[:most].sort().values
