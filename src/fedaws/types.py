"""The three things that travel: the server's state, what it sends, what comes back."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from torch import Tensor

Params = dict[str, Tensor]

CLASS_MATRIX = "<W>"
"""Name (which no module can have) of W among the shared parameters of the oracles, whose clients see all of it."""


AVERAGE = "average"
"""The slot of the exponential average of θ."""
NEIGHBORS = "neighbors"
"""The slot of the neighbours of each class that mining has found so far."""
ROW_SQUARES = "row_squares"
"""The slot of the tables' row-wise Adagrad: a number for each row."""


@dataclass(frozen=True)
class ServerState:
    """Everything the server keeps between two rounds.

    `class_of[i]` is the class of client i; None means that client i *is* class i, as in the paper's notation.
    """

    round_num: int
    theta: Params
    W: Tensor  # [C, d]
    class_of: Tensor | None = None  # [clients]
    slots: dict[str, Params] = field(default_factory=dict)  # the server optimiser's memory
    loss: float = float("nan")  # the last cohort's mean loss

    @property
    def averaged(self) -> Params:
        """The θ to evaluate and keep: the server's running average, if it keeps one."""
        return self.slots.get(AVERAGE, self.theta)

    def classes(self, cohort: Tensor) -> Tensor:
        """The classes of these clients, [m]."""
        return cohort if self.class_of is None else self.class_of[cohort]


@dataclass(frozen=True)
class Broadcast:
    """What a block of m clients is sent: the encoder, and to each client its own class embedding, never W."""

    cohort: Tensor  # [m] client ids
    theta: Params
    W: Tensor  # [m, d], row j belongs to client cohort[j] alone
    round_num: int = 0
    classes: Tensor | None = None  # an oracle's sample: whose rows of W are sent beside θ; None: everybody's, or none


@dataclass(frozen=True)
class Update:
    """What a block of m clients sends back.

    `delta` is the weighted mean of θ_i − θ over the block, so that a block of one client and a block of a thousand are
    added up by the same line; `W` has the clients' rows one by one. The delta of an embedding table is a sparse tensor
    of the rows that the block's examples touch.
    """

    cohort: Tensor  # [m]
    delta: Params
    W: Tensor  # [m, d]
    weights: Tensor  # [m] n_i, or 1
    loss: Tensor  # [m] mean local loss


RunClients = Callable[[Broadcast], Iterable[Update]]
