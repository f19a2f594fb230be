"""What a method is: the functions in which methods differ, and nothing else. Those that come with the package are in
`core/methods/`, a file each; one of your own is a value of this type, given to `fedaws.train`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from fedaws.config import Config, SpreadConfig
from fedaws.core import losses
from fedaws.core.optimizers import Optimizer
from fedaws.errors import FedawsError
from fedaws.types import Memory, Params, Sums

OwnLoss = Callable[[Tensor, Tensor], Tensor]
"""(embeddings [B, d], the client's own row w [d]) → losses [B]. Both may have leading dimensions that broadcast."""

PlacedLoss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(embeddings [..., b, d], places of their classes among the client's own rows [..., b], these rows [..., k, d]) →
losses [..., b]."""

SharedLoss = Callable[..., Tensor]
"""(embeddings [B, d], labels [B], all rows W [C, d] or a sample of them, sample=how they were drawn, or None) →
losses [B]."""

StartRows = Callable[[Tensor], Tensor]
"""Random unit rows [C, d] → W⁰."""

RowsKind = Literal["own", "private", "fixed", "secret", "all"]


class When(NamedTuple):
    """The round of a server step, and how far it may go."""

    round_num: int
    lr: float  # η of the class embeddings, the schedule's factor in it
    factor: float  # of the schedule alone: a step that has a bound of its own comes to rest with it


@dataclass(frozen=True)
class Spread:
    """How the server keeps the classes apart.

    Where people join and leave, W is of those who are there, and so are the entries of tensors in the memory that are
    as long as W; whole numbers in these are taken for ids of classes, or −1 for none.

    Attributes
    ----------
    step
        `step(W, classes, when, rng, memory)` changes W [C, d] in place, after the clients of these classes were heard,
        and gives its new memory: tensors by name. `when` says the round and how far to go, `rng` is for random numbers.
    init
        `init(W)` gives the memory before the first round; by default none.
    """

    step: Callable[[Tensor, Tensor, When, torch.Generator, Memory], Memory]
    init: Callable[[Tensor], Memory] = lambda W: {}

    def __post_init__(self) -> None:
        for part in (self.step, self.init):
            if not callable(part):
                raise FedawsError(f"Spread got a {type(part).__name__}; wanted functions: Spread(step, init=…)")


@dataclass(frozen=True)
class SumSpread:
    """How clients keep `private` rows apart: each moves its own, by means over all rows.

    `tell(rows)` gives, added up over these rows [m, d], what each tells of itself; `step(rows, means, factor)` moves
    each row by itself, by the mean of what all told; `factor` is the schedule's. `unknown(d)` is what a row is taken to
    tell that was not heard yet. `memory` is how the server makes means of what is told. `unsound(means)` says why no
    rows can have such means, or None.
    """

    tell: Callable[[Tensor], Params]
    step: Callable[[Tensor, Params, float], Tensor]
    unknown: Callable[[int], Params]
    memory: "SumMemory"
    unsound: Callable[[Params], str | None] = lambda means: None


class SumMemory(NamedTuple):
    """What the server keeps of what private rows told: `init(spread, W, clients)` before the first round,
    `hear(memory, told, cohort, rounds)` after so many, and `means(spread, memory, W)`, what everybody is sent.
    """

    init: Callable[[SumSpread, Tensor, int], Memory]
    hear: Callable[[Memory, Params, Tensor, int], Memory]
    means: Callable[[SumSpread, Memory, Tensor], Params]


@dataclass(frozen=True)
class Weighting:
    """The server's weights ω of the clients, where they are more than 1 or n_i.

    `weights(memory, classes)` gives those of a cohort by its classes, `learn(memory, classes, losses)` the memory after
    a round.
    """

    init: Callable[[Tensor], Memory]  # of W
    weights: Callable[[Memory, Tensor], Tensor]
    learn: Callable[[Memory, Tensor, Tensor], Memory]


class LastStep(NamedTuple):
    """After the last round, from what all clients tell once: `step(W, sums)` gives W, and a bias or None."""

    step: Callable[[Tensor, Sums], tuple[Tensor, Tensor | None]]
    wants_gram: bool = False


@dataclass(frozen=True)
class Method:
    """One row of a table.

    Attributes
    ----------
    name
        What it is called in records and reports.
    role
        What it is, in a few words, as in "Baseline-1".
    rows
        What of W a client is sent: its `own` row, which it trains; nothing, as it trains and keeps its row itself, a
        `private` one; its own row, `fixed` for good; nothing, as its fixed row is its `secret`; or `all` of W, which is
        then averaged like θ (only oracles and plain FedAvg do that).
    loss
        An `OwnLoss`; for several own rows a `PlacedLoss`, for `all` rows a `SharedLoss`.
    spread
        The server's step on W after each round; None: no such step.
    own_spread
        The clients' steps on their `private` rows.
    server
        The server's optimiser of θ; None: as `[server]` says.
    start
        W⁰ from random unit rows.
    weighting
        The server's weights of the clients; None: as `clients.weighting` says.
    last_step
        After the last round; None: as `train.last_step` says.
    classes_per_client
        How many classes a client's data have.
    needs
        What the server must know of the classes: their `features`, or the `cooccurrence` of labels.
    """

    name: str
    role: str
    rows: RowsKind
    loss: OwnLoss | PlacedLoss | SharedLoss
    spread: Spread | None = None
    own_spread: SumSpread | None = None
    server: Optimizer | None = None
    start: StartRows = lambda rows: rows
    weighting: Weighting | None = None
    last_step: LastStep | None = None
    classes_per_client: int = 1
    needs: frozenset[Literal["features", "cooccurrence"]] = frozenset()

    def __post_init__(self) -> None:
        if self.rows not in get_args(RowsKind):
            raise FedawsError(f"method {self.name!r} has rows={self.rows!r}; wanted {', '.join(get_args(RowsKind))}")
        if (self.rows == "private") != (self.own_spread is not None) or (self.own_spread and self.spread):
            raise FedawsError(f"method {self.name!r}: own_spread is for rows='private', and spread for all others")
        for part, kind in _PARTS.items():
            value = getattr(self, part)
            sound = callable(value) if kind is None else value is None or isinstance(value, kind)
            if not sound:
                got = value.__name__ if isinstance(value, type) else f"a {type(value).__name__}"
                wanted = "a function" if kind is None else f"{kind.__name__}{_MADE_BY.get(part, '')}"
                raise FedawsError(f"method {self.name!r} has {got} as its {part}; wanted {wanted}")

    @property
    def replaces(self) -> tuple[str, ...]:
        """The settings that do nothing, as functions that the package did not make from them are in their place."""
        spread = self.spread or self.own_spread
        replaced = {
            ("clients.margin", "clients.scale"): not _is_ours(self.loss),
            tuple(f"spread.{key}" for key in SpreadConfig.model_fields): spread and not _is_ours(spread.step),
            ("server.optimizer", "server.momentum"): self.server,
            ("clients.weighting",): self.weighting,
            ("train.ridge",): self.last_step,
        }
        return tuple(key for keys, there in replaced.items() if there for key in keys)

    @property
    def sends_row(self) -> bool:
        """Whether a client sends the row that it has trained to the server."""
        return self.rows == "own"

    @property
    def trains_own_row(self) -> bool:
        """Whether a client moves the row that it has."""
        return self.rows in ("own", "private")


_PARTS: dict[str, type | None] = {
    "loss": None, "spread": Spread, "own_spread": SumSpread, "server": Optimizer, "start": None, "weighting": Weighting,
    "last_step": LastStep,
}  # fmt: skip
_MADE_BY = {
    "spread": ", as in fedaws.Spread(step)",
    "server": ", as by fedaws.core.optimizers.from_torch(lambda parameters: torch.optim.AdamW(parameters, lr=0.01))",
}


def _is_ours(function: Any) -> bool:
    """Whether a function, or the class of an object, is the package's, which may have made it from settings."""
    return str(getattr(getattr(function, "func", function), "__module__", "")).partition(".")[0] == "fedaws"


def positive_loss(cfg: Config) -> OwnLoss:
    """The loss of an example and its own class alone: the paper's hinge; for g of any length the distance."""
    if not cfg.model.normalize:
        return losses.positive_distance
    return losses.hinge_of_score(cfg.clients.margin)
