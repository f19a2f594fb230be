r"""What a node learns of the others' private rows from the means that everybody is told.

After each round it knows μ and M of all rows, and its own row. From the last of these alone rows can be guessed that
have them: chance (:func:`fedaws.audit.row_theft.of_moments`). Over several rounds it also knows by which step each row
was moved between them, but for what training added; so rows W_s of each round are looked for with

.. math:: \min \sum_s \|\mu(W_s) - \mu_s\|^2 + \|M(W_s) - M_s\|^2 + \rho\, \|W_{s+1} - \mathrm{step}_s(W_s)\|^2 .

A passive node trains honestly; an active one tells of rows of its choice, which moves everybody's; and a server that
lies together with a node tells means of its choice, such as nodes do not refuse. Where the sums have noise, the running
means are known as the server has them, before anything is taken off for noise.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fedaws.audit.federation import one_row_each, rounds_of, short
from fedaws.audit.figures import Figure, Finding, mean
from fedaws.audit.row_theft import asked, match, of_moments
from fedaws.config import Config
from fedaws.core.method import SumSpread
from fedaws.core.methods import method_of
from fedaws.core.moments import whitening
from fedaws.core.noisy_sums import NOISE
from fedaws.core.schedule import schedule
from fedaws.core.sums import changes_told, means_of
from fedaws.data.federated import FederatedData
from fedaws.errors import FedawsError
from fedaws.hashing import hash64
from fedaws.types import Broadcast, Params, ServerState, Update

Who = Literal["passive", "active", "lying server"]


class Told(NamedTuple):
    """What is known after each round s = 0 … T."""

    own: Tensor  # [T + 1, d] the node's row, as it told of it
    means: list[Params]  # T + 1: μ and M of all rows
    steps: list[Params]  # T: the means by which rows were moved in round s + 1
    shares: list[float]  # T: and how much of the whitening was taken


@dataclass(frozen=True)
class SumTheft:
    """Cosines of the rows that were found with the true ones, each less the mean of all rows; over the others' rows."""

    who: Who
    clients: int
    rounds: int
    cosine: Figure  # their mean
    best: Figure  # that of the row found best, a try each
    stolen: float  # rows above 0.9, in a try
    stolen_by_chance: float  # the same of rows that have the last means

    def finding(self) -> Finding:
        """As a line of the table."""
        learns = f"the others' rows: best {self.best.value:.2f}, {self.stolen:.1f} of {self.clients - 1} above 0.9"
        where = f"private rows, {self.rounds} rounds: mean cosine"
        does = {
            "passive": ("a curious node", "looks at the means of all rows"),
            "active": ("a curious node", "tells of rows of its choice and looks at the means"),
            "lying server": ("the server with a node", "tells means of its choice and looks at the true ones"),
        }[self.who]
        return Finding("row-theft", does[0], f"{does[1]} ({where})", learns, self.cosine)


class Try(NamedTuple):
    """Cosines with the true rows, each less the mean of all."""

    found: Tensor  # [n] of the rows that were found
    guessed: Tensor  # [3, n] of rows that have the last means, three times


def sum_theft(cfg: Config, data: FederatedData, who: Who, rounds: int, seeds: tuple[int, ...] = (0,)) -> SumTheft:
    """Run short federations of private rows, one a seed, in which the first node is curious; measure what it finds."""
    return summary(who, rounds, [one_try(cfg, data, who, rounds, seed) for seed in seeds])


def one_try(cfg: Config, data: FederatedData, who: Who, rounds: int, seed: int) -> Try:
    """One such federation."""
    spread = method_of(cfg).own_spread
    one_row_each(method_of(cfg), data)
    if spread is None:
        raise FedawsError("sums tell of private rows alone; set privacy.rows=private, or use row_theft")
    told, W = watch_sums(short(cfg, rounds, seed), data, who, spread)
    rng, others = torch.Generator().manual_seed(hash64(seed, "audit")), W[1:]
    last = told.means[-1]["first"], told.means[-1]["second"], told.own[-1], len(others)
    starts = torch.stack([of_moments(*last, rng) for _ in range(3)])

    def measured(rows: Tensor) -> Tensor:
        return match(*(F.normalize(r - W.mean(0), dim=1) for r in (rows, others)))  # what all have alike is no find

    return Try(measured(explain(told, starts)), torch.stack([measured(rows) for rows in starts]))


def summary(who: Who, rounds: int, tries: list[Try]) -> SumTheft:
    """What they come to."""
    found, guessed = torch.stack([t.found for t in tries]), torch.cat([t.guessed for t in tries])
    return SumTheft(
        who,
        1 + found.shape[1],
        rounds,
        mean(found.flatten().tolist(), float(guessed.mean())),
        mean(found.amax(1).tolist(), float(guessed.amax(1).mean())),
        float((found > 0.9).sum(1).float().mean()),
        float((guessed > 0.9).sum(1).float().mean()),
    )


# --- to watch -------------------------------------------------------------------------------------------------------


def watch_sums(cfg: Config, data: FederatedData, who: Who, spread: SumSpread) -> tuple[Told, Tensor]:
    """What the first node and whoever helps it know after `train.rounds` rounds, and the true rows in the end."""
    dim, rounds = cfg.model.embedding_dim, cfg.train.rounds
    questions, steps = asked(rounds, dim, cfg.seed), list[Params]()

    def answer(given: Broadcast, honest: Update) -> Update:
        if who != "active":
            return honest
        assert given.heard is not None
        row = questions[given.round_num][None]
        return replace(honest, W=row, sums=changes_told(spread, row, given.W, given.heard))

    def send(sent: Broadcast) -> Broadcast:
        assert sent.means is not None
        to_and_fro = questions[sent.round_num // 2] * (-1) ** sent.round_num
        means = lie(to_and_fro) if who == "lying server" else sent.means
        steps.append(means)
        return replace(sent, means=means)

    states = [state for state, _ in rounds_of(cfg, data, 0, answer, send)]
    means = [_known(state, spread) for state in states]
    shares = [cfg.spread.whitening * schedule(cfg.train, number - 1) for number in range(rounds)]
    return Told(torch.stack([state.W[0] for state in states]), means, steps, shares), states[-1].W


def _known(state: ServerState, spread: SumSpread) -> Params:
    if NOISE not in state.spread:
        return means_of(spread, state.spread, state.W)
    first, second = (state.spread[name].to(state.W) for name in ("first", "second"))
    return {"first": first, "second": (second + second.T) / 2}


def lie(direction: Tensor, length: float = 0.3) -> Params:
    """Means that pass for those of unit rows, and push all of them away from a direction."""
    mean = length * direction
    rest = (1 - length**2) * torch.eye(len(direction)) / len(direction)
    return {"first": mean, "second": torch.outer(mean, mean) + rest}


# --- to find --------------------------------------------------------------------------------------------------------


def explain(told: Told, starts: Tensor, window: int = 10, steps: int = 300, stiff: float = 0.1) -> Tensor:
    """The others' rows [n, d] in the end, as part of rows of the last rounds that explain all that was told of them.

    The best of several searches, which begin with rows [S, n, d] that have the last means.
    """
    count = min(window, len(told.steps))
    own, means = told.own[-count - 1 :], told.means[-count - 1 :]
    moves = [_mover(*step) for step in zip(told.steps[-count:], told.shares[-count:], strict=True)]
    first, second = (torch.stack([m[name] for m in means]) for name in ("first", "second"))
    searches, clients = len(starts), 1 + starts.shape[1]
    paths = starts[:, None].repeat(1, count + 1, 1, 1).requires_grad_()  # [S, window + 1, n, d]
    optimizer = torch.optim.Adam([paths], lr=0.03)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    losses = torch.zeros(searches)
    for _ in range(steps):
        unit = F.normalize(paths, dim=-1)
        every = torch.cat([own.expand(searches, -1, -1)[:, :, None], unit], dim=2)
        off = (every.mean(2) - first).square().sum((-2, -1))
        off = off + (every.mT @ every / clients - second).square().sum((-3, -2, -1))
        moved = torch.stack([move(unit[:, s]) for s, move in enumerate(moves)], dim=1)
        losses = off + stiff * (unit[:, 1:] - moved).square().sum((-3, -2, -1)) / clients
        optimizer.zero_grad()
        losses.sum().backward()
        optimizer.step()
        falling.step()
    return F.normalize(paths.detach()[losses.argmin(), -1], dim=-1)


def _mover(means: Params, share: float) -> Callable[[Tensor], Tensor]:
    """The step that rows take by these means, with gradients: centring by μ, then so much of whitening."""
    mean = means["first"]
    linear = whitening(means["second"] - torch.outer(mean, mean), share)
    return lambda rows: F.normalize(F.normalize(rows - mean, dim=-1) @ linear, dim=-1)
