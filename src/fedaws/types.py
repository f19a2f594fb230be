"""The three things that travel: the server's state, what it sends, what comes back."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

Params = dict[str, Tensor]
Memory = dict[str, Tensor]
"""What one owner (an optimiser, a way of spreading, …) keeps between two rounds, under names of its own."""


@dataclass(frozen=True)
class ServerState:
    """Everything the server keeps between two rounds; each memory belongs to one owner and to nobody else.

    `class_of[i]` is the class of client i, or has its k classes; None: client i *is* class i, as in the paper.
    """

    round_num: int
    theta: Params
    W: Tensor  # [C, d]; of private rows what the clients have kept, which only a simulation has in one place
    class_of: Tensor | None = None  # [clients] or [clients, k]
    optimizer: Memory = field(default_factory=dict)  # of the server's optimiser of θ; empty before its first step
    row_optimizer: Memory = field(default_factory=dict)  # of its optimiser of W, where clients train all of W
    tables: Memory = field(default_factory=dict)  # of the optimiser of embedding tables
    spread: Memory = field(default_factory=dict)  # of the method's way of spreading
    weighting: Memory = field(default_factory=dict)  # of the method's weights of clients
    clip: Memory = field(default_factory=dict)  # what changes are cut to, if that follows their lengths
    average: Params = field(default_factory=dict)  # the exponential average of θ, if there is one
    best: Memory = field(default_factory=dict)  # the model to be kept, if not the last: of the lowest strangers' EER
    bias: Tensor | None = None  # [C] added to the classes' scores, after a last step that gives one
    loss: float = float("nan")  # the last cohort's mean loss

    @property
    def averaged(self) -> Params:
        """The θ to evaluate and keep: the server's running average, of whatever it averages."""
        return self.theta | self.average

    def classes(self, cohort: Tensor) -> Tensor:
        """The classes of these clients, [m] or [m, k]."""
        return cohort if self.class_of is None else self.class_of[cohort]


@dataclass(frozen=True)
class Broadcast:
    """What a block of m clients is sent: the encoder, and to each client its own class embedding, never W."""

    cohort: Tensor  # [m] client ids
    theta: Params
    W: Tensor  # [m, d] or [m, k, d], row j (k rows) belongs to client cohort[j] alone
    round_num: int = 0
    shared: Tensor | None = None  # [C or S, d] an oracle's: all rows, or those of `classes`, which everybody gets
    classes: Tensor | None = None  # [S] whose rows are shared; None: everybody's, or none
    weights: Tensor | None = None  # [m] the server's weights of the clients; None: their own n_i, or 1
    means: Params | None = None  # of what all private rows tell, to everybody the same; then W is what clients have
    heard: Tensor | None = None  # [m] how many rounds were done when what they told was last counted; 0: never
    clip: float | None = None  # what changes are cut to, before the schedule's factor; None: privacy.clip


@dataclass(frozen=True)
class Update:
    """What a block of m clients sends back.

    `delta` is the weighted mean of θ_i − θ over the block, so that a block of one client and a block of a thousand are
    added up by the same line; `W` has the clients' rows one by one. The delta of an embedding table is a sparse tensor
    of the rows that the block's examples touch.
    """

    cohort: Tensor  # [m]
    delta: Params
    W: Tensor  # [m, d] or [m, k, d]
    weights: Tensor  # [m] n_i, or 1
    loss: Tensor  # [m] mean local loss
    shared: Tensor | None = None  # the weighted mean change of the shared rows, where there are any
    sums: Params | None = None  # change of what private rows tell, added up over the block; the server reads no row
    inside: Tensor | None = None  # [m] whose change was no longer than what it would have been cut to


RunClients = Callable[[Broadcast], Iterable[Update]]


@dataclass(frozen=True)
class Sums:
    """What all clients can tell of their embeddings, added up: of each class the number and the sum of its unit
    embeddings, and of all together the second moment.
    """

    counts: Tensor  # [C]
    sums: Tensor  # [C, d]
    gram: Tensor | None = None  # [d, d] Σ z zᵀ


AskSums = Callable[[Params, bool], Sums]
"""(θ, whether the second moment is wanted) → what the clients tell; asked of all of them, once."""


@dataclass(frozen=True)
class ClassFacts:
    """What the server may know of the classes beside their embeddings; None: nothing of that kind."""

    features: Tensor | None = None  # [C, f]
    cooccurrence: Tensor | None = None  # sparse [C, C]: how many training examples have both labels

    def to(self, device: torch.device) -> "ClassFacts":
        """The same facts on a device."""
        return ClassFacts(*(None if t is None else t.to(device) for t in (self.features, self.cooccurrence)))
