"""Where a private round differs from an ordinary one: who takes part, and what is seen of their work."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from fedaws.core.aggregate import Aggregate
from fedaws.types import ServerState


class Guard(NamedTuple):
    """`release(state, total)` is what the server goes on with in place of the cohort's summed work; `pick(available)`
    draws the cohort, by chances that nobody can compute; None: as `[clients]` says.
    """

    release: Callable[[ServerState, Aggregate], Aggregate]
    pick: Callable[[Tensor], Tensor] | None = None
