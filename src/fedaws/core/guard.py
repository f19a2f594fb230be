"""Where a private round differs from an ordinary one: who takes part, and what is seen of their work."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fedaws.core.aggregate import Aggregate
from fedaws.types import Memory, ServerState


def following(clip: float) -> Memory:
    """What the server keeps of a clip that follows the lengths of changes."""
    return {"length": torch.tensor(clip, dtype=torch.float64)}


def clip_of(state: ServerState) -> float:
    """That clip."""
    return float(state.clip["length"])


class Guard(NamedTuple):
    """`release(state, total)` is what the server goes on with in place of the cohort's summed work; `pick(available)`
    draws the cohort, by chances that nobody can compute; None: as `[clients]` says.
    """

    release: Callable[[ServerState, Aggregate], Aggregate]
    pick: Callable[[Tensor], Tensor] | None = None
