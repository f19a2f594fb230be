r"""What a node learns of the others' rows from its own: it knows the row that it sent and the row that it got back.

The spreading step is known, so rows of the others can be looked for that would have moved the node's own row as it was
moved, round after round:

.. math:: \min_{W'} \sum_t \gamma^{T - t} \big\| \mathrm{spread}([s_t; W'])_{own} - r_{t+1} \big\|^2

A passive node trains honestly and looks on; an active one sends rows of its choice, each of which asks another
question. Rows that the others move between the rounds blur the answers, so newer ones count more.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from fedaws.audit.federation import one_row_each, rounds_of, short
from fedaws.audit.figures import Figure, Finding, mean
from fedaws.config import Config, SpreadConfig
from fedaws.core.methods import method_of
from fedaws.core.moments import due
from fedaws.core.pairs import Pair, make_pair
from fedaws.core.schedule import schedule
from fedaws.core.spreadout import resolve_neighbors
from fedaws.data.federated import FederatedData
from fedaws.errors import FedawsError
from fedaws.hashing import hash64
from fedaws.types import Broadcast, Update

Kind = Literal["passive", "active"]


class Seen(NamedTuple):
    """What a node has seen in T rounds: its own row as it went and as it came back, and what else it was sent."""

    sent: Tensor  # [T, d]
    received: Tensor  # [T, d]
    mean: Tensor | None = None  # [d] of all rows, where everybody is told it (sums-only spreading),
    second: Tensor | None = None  # [d, d] and their second moment, Σ w wᵀ / C


@dataclass(frozen=True)
class RowTheft:
    """Cosines of the rows that were found with the true ones."""

    kind: Kind
    spreading: str
    rounds: int
    cosine: Figure  # mean over the others' rows; chance: rows spread at random, for `moments` what μ and M alone give
    best: Figure  # of the row found best, a try each
    stolen: float  # rows above 0.9, in a try
    others: int

    def finding(self) -> Finding:
        """As a line of the table."""
        does = {
            "passive": "watches how its own row is moved",
            "active": "sends rows of its choice and watches how they are moved",
        }[self.kind]
        learns = f"the others' rows: best {self.best.value:.2f}, {self.stolen:.1f} of {self.others} above 0.9"
        where = f"{self.spreading}, {self.rounds} rounds: mean cosine"
        return Finding("row-theft", "a curious node", f"{does} ({where})", learns, self.cosine)


def row_theft(
    cfg: Config, data: FederatedData, kind: Kind, rounds: int, seeds: tuple[int, ...] = (0,), node: int = 0
) -> RowTheft:
    """Run short federations, one a seed, in which `node` is curious; measure what it finds."""
    one_row_each(method_of(cfg), data)
    cosines, guessed, best = [], [], []
    for seed in seeds:
        run = short(cfg, rounds, seed)
        seen, W = watch(run, data, kind, node)
        others = torch.cat([W[:node], W[node + 1 :]])
        rng = torch.Generator().manual_seed(hash64(seed, "audit"))
        found = match(steal(seen, len(others), run, rng), others)
        cosines += found.tolist()
        best.append(float(found.max()))
        own = seen.received[-1]
        if cfg.spread.regularizer == "moments" and method_of(cfg).spread:
            told = W.mean(0), W.T @ W / len(W)
            guessed += [match(of_moments(*told, own, len(others), rng), others) for _ in range(5)]
        else:
            guessed += [match(guess(own, len(others), rng), others) for _ in range(20)]
    chance = float(torch.cat(guessed).mean())
    stolen = sum(c > 0.9 for c in cosines) / len(seeds)
    at_best = float(torch.stack([g.max() for g in guessed]).mean())
    return RowTheft(kind, spreading_of(cfg), rounds, mean(cosines, chance), mean(best, at_best), stolen, len(others))


def spreading_of(cfg: Config) -> str:
    """How rows are spread, in a word or two."""
    if method_of(cfg).spread is None:
        return "no spreading"
    if cfg.spread.regularizer != "nearest":
        return {"margin": "eq. (6)"}.get(cfg.spread.regularizer, cfg.spread.regularizer)
    return (
        f"eq. (7), k = {resolve_neighbors(cfg.spread, 10) if cfg.spread.neighbors == 'auto' else cfg.spread.neighbors}"
    )


# --- to watch -------------------------------------------------------------------------------------------------------


def watch(cfg: Config, data: FederatedData, kind: Kind, node: int) -> tuple[Seen, Tensor]:
    """What the node sees in `train.rounds` rounds, and the true W in the end."""
    sent: list[Tensor] = []
    questions = asked(cfg.train.rounds, cfg.model.embedding_dim, cfg.seed)

    def answer(given: Broadcast, honest: Update) -> Update:
        update = honest if kind == "passive" else replace(honest, W=questions[given.round_num][None])
        sent.append(update.W[0])
        return update

    states = [state for state, _ in rounds_of(cfg, data, node, answer)]
    received = torch.stack([state.W[node] for state in states[1:]])
    return Seen(torch.stack(sent), received), states[-1].W


def asked(rounds: int, dim: int, seed: int) -> Tensor:
    """The rows that an active node sends: random directions, at right angles as long as there are any, and back."""
    rng = torch.Generator().manual_seed(hash64(seed, "audit", 1))
    bases = [torch.linalg.qr(torch.randn(dim, dim, generator=rng)).Q for _ in range(rounds // (2 * dim) + 1)]
    return torch.cat([part for basis in bases for part in (basis, -basis)])[:rounds]


# --- to find --------------------------------------------------------------------------------------------------------


def steal(
    seen: Seen,
    others: int,
    cfg: Config,
    rng: torch.Generator,
    steps: int = 400,
    starts: int = 8,
    fade: float = 0.9,
    prior: float = 1e-6,
) -> Tensor:
    """The others' rows [n, d] that explain best what was seen, of some random starts.

    An error counts in proportion to how far the row was moved, and less the older it is. A step away from one neighbour
    alone tells that neighbour's row, and nothing need be looked for. That rows lie apart is known beforehand.
    """
    if seen.mean is not None and seen.second is not None:
        return of_moments(seen.mean, seen.second, seen.received[-1], others, rng)
    if cfg.spread.regularizer != "moments" and resolve_neighbors(cfg.spread, others + 1) == 1:
        return _agreed(_alone(seen, cfg), others, guess(seen.received[-1], others, rng))
    moved = respond(cfg)
    size = (seen.received - seen.sent).square().sum(-1)
    weights = fade ** torch.arange(len(seen.sent)).flip(0) / size.clamp_min(0.01 * float(size.max()) + 1e-12)
    rows = torch.stack([guess(seen.received[-1], others, rng) for _ in range(starts)]).requires_grad_()
    optimizer = torch.optim.Adam([rows], lr=0.05)
    schedule_of = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    losses = torch.zeros(starts)
    for _ in range(steps):
        found = F.normalize(rows, dim=-1)
        error = (moved(seen.sent, found) - seen.received).square().sum(-1)  # [starts, T]
        losses = (error * weights).sum(-1) / weights.sum() + prior * _crowded(found, seen.received[-1])
        optimizer.zero_grad()
        losses.sum().backward()
        optimizer.step()
        schedule_of.step()
    return F.normalize(rows.detach()[losses.argmin()], dim=-1)


def _crowded(rows: Tensor, own: Tensor) -> Tensor:
    """How much rows, and the own one among them, are in each other's way, [R]."""
    with_own = torch.cat([rows, own.expand(len(rows), 1, -1)], dim=1)
    cosines = with_own @ with_own.mT - torch.eye(with_own.shape[1])
    return cosines.clamp_min(0).square().sum((-2, -1))


def _alone(seen: Seen, cfg: Config) -> Tensor:
    r"""The row that would explain a round if it were the only one that pushed, of each round that has such a one.

    A bounded step with one neighbour is r = ((1 + f) s − f w) / ‖…‖, and w has unit length.
    """
    factors = torch.tensor([schedule(cfg.train, t) for t in range(cfg.train.rounds)])[:, None]
    cosine = (seen.sent * seen.received).sum(1, keepdim=True)
    # ‖(1 + f) s − N r‖ = f: N² − 2 (1 + f) N s·r + (1 + f)² − f² = 0
    half = (1 + factors) * cosine
    inside = half.square() - (1 + factors).square() + factors.square()
    lengths = half + inside.clamp_min(0).sqrt() * torch.tensor([[1.0], [-1.0]])[:, None]  # [2, T, 1]
    rows = ((1 + factors) * seen.sent - lengths * seen.received) / factors.clamp_min(1e-6)
    sound = (inside.squeeze(1) >= 0) & ((seen.received - seen.sent).norm(dim=1) > 1e-5)
    return F.normalize(rows[:, sound].flatten(0, 1), dim=1)


def _agreed(candidates: Tensor, count: int, unknown: Tensor) -> Tensor:
    """Distinct candidates, those first that most others agree with; then as many of the unknown as are wanted."""
    near = candidates @ candidates.T > 0.95
    kept: list[Tensor] = []
    for number in near.sum(1).argsort(descending=True, stable=True):
        row = candidates[number]
        if all(float(row @ other) < 0.8 for other in kept):
            kept.append(row)
    return torch.cat([torch.stack(kept[:count]), unknown])[:count] if kept else unknown


Respond = Callable[[Tensor, Tensor], Tensor]
"""(own rows sent [T, d], the others' rows [R, n, d]) → the own rows that come back [R, T, d]."""


def respond(cfg: Config) -> Respond:
    """What the configured spreading makes of a node's own row in each round, as a function with gradients.

    `cfg` is that of the rounds that were watched, whose step sizes follow its schedule; one spreading step a round.
    """
    if method_of(cfg).spread is None:
        return lambda sent, others: sent.expand(len(others), *sent.shape)
    numbers = range(cfg.train.rounds)
    factors = torch.tensor([schedule(cfg.train, t) for t in numbers])
    if cfg.spread.optimizer != "sgd":
        raise FedawsError(
            f"the attack on rows knows no spread.optimizer={cfg.spread.optimizer}; got a run with it, wanted sgd"
        )
    every = cfg.spread.every
    moments_due = torch.tensor([due(every, t, 2, "all") for t in numbers])
    spread, pair = cfg.spread, make_pair(cfg.spread)

    def moved(sent: Tensor, others: Tensor) -> Tensor:
        rows = _together(sent, others)
        center, whiten = spread.center or pair is None, spread.whiten or pair is None
        if center or whiten:
            shares = spread.whitening * factors * whiten
            rows = torch.where(moments_due[:, None, None], _by_moments(rows, center, shares), rows)
        if pair is None:
            return rows[..., 0, :]
        return _pushed(rows, spread, pair, spread.weight * factors * cfg.class_lr, factors)

    return moved


def _together(sent: Tensor, others: Tensor) -> Tensor:
    """The own row of each round before the others' rows, [R, T, 1 + n, d]."""
    starts, rounds = len(others), len(sent)
    own = sent[None, :, None].expand(starts, -1, -1, -1)
    return torch.cat([own, others[:, None].expand(-1, rounds, -1, -1)], dim=2)


def _by_moments(rows: Tensor, center: bool, shares: Tensor) -> Tensor:
    """Centring, and so much of whitening in each round, as `core.moments` has them; [R, T, 1 + n, d]."""
    off = rows - rows.mean(-2, keepdim=True) if center else rows
    directions = F.normalize(off, dim=-1)
    gram = off.mT @ off
    step = shares[:, None, None] / (3 * _largest_eigenvalue(gram)[..., None, None])
    return F.normalize(directions - step * (directions @ gram), dim=-1)


@torch.no_grad()
def _largest_eigenvalue(gram: Tensor) -> Tensor:
    """By the power method, which is enough for a guess; [...]."""
    v = gram.sum(-1, keepdim=True) + gram[..., :1]
    for _ in range(10):
        v = F.normalize(gram @ v, dim=-2)
    largest: Tensor = torch.linalg.matrix_norm(gram @ v)
    return largest


def _pushed(rows: Tensor, spread: SpreadConfig, pair: Pair, steps: Tensor, factors: Tensor) -> Tensor:
    """The own rows [R, T, d] after a step on pairs."""
    own, others = rows[..., 0, :], rows[..., 1:, :]
    count = rows.shape[-2]
    k = resolve_neighbors(spread, count)
    if spread.regularizer == "nearest" and k == "all":
        shares = 4 * steps / (1 + 4 * steps * count)
        shares = shares.minimum(factors / count) if spread.bounded else shares
        return F.normalize(own - shares[:, None] * rows.sum(-2), dim=-1)
    if k == "all":
        weights = 2 * pair.slope_((others @ own[..., None]).squeeze(-1))
        if spread.bounded:
            steps = steps.minimum(factors / (2 * _smoothness(rows.detach(), pair)))
        slopes = weights.new_zeros(weights.shape[:-1])
    else:
        weights, degrees = _mined_weights(rows, pair, int(k))
        slopes = weights.sum(-1) / 2
        if spread.bounded:
            steps = steps.minimum(factors / (2 * (slopes + pair.curvature * degrees)).clamp_min(1e-9))
    gradient = (weights[..., None, :] @ others).squeeze(-2)
    if pair.of_distance:
        gradient = gradient - 2 * slopes[..., None] * own
    return F.normalize(own - steps[..., None] * gradient, dim=-1)


def _mined_weights(rows: Tensor, pair: Pair, k: int) -> tuple[Tensor, Tensor]:
    """φ' of the pairs that the own row is in, by the other row, [R, T, n]; and how many these are, [R, T]."""
    itself = torch.eye(rows.shape[-2], dtype=torch.bool)
    scores, nearest = (rows @ rows.mT).masked_fill(itself, -torch.inf).topk(min(k, len(itself) - 1), dim=-1)
    slopes = pair.slope_(scores.clone())
    table = torch.zeros(*rows.shape[:-1], len(itself)).scatter(-1, nearest, slopes)
    mined = torch.zeros_like(table).scatter(-1, nearest, torch.ones_like(slopes))
    both, counted = table + table.mT, mined + mined.mT
    return both[..., 0, 1:], counted[..., 0, 1:].sum(-1)


@torch.no_grad()
def _smoothness(rows: Tensor, pair: Pair) -> Tensor:
    """M of the bounded step over all pairs, as `core.spreadout.smoothness` has it, of many at once; [R, T]."""
    scores = rows @ rows.mT
    bound = 2 * pair.curvature * _largest_eigenvalue(scores)
    slopes = pair.slope_(scores)
    slope = (slopes.sum(-1) - slopes.diagonal(dim1=-2, dim2=-1)).amax(-1)
    x = bound
    for _ in range(30):
        x = (bound * (x + slope).square()).pow(1 / 3)
    return slope + x


# --- to measure -----------------------------------------------------------------------------------------------------


def match(found: Tensor, true: Tensor) -> Tensor:
    """The cosine of each true row with the found row that is taken for it, each for one; [n].

    >>> match(torch.tensor([[0.0, 1.0], [0.6, 0.8]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    tensor([0.6000, 1.0000])
    """
    cosines = true @ found.T
    rows, columns = linear_sum_assignment(cosines.numpy(), maximize=True)
    return cosines[torch.as_tensor(rows), torch.as_tensor(columns)]


def guess(own: Tensor, others: int, rng: torch.Generator) -> Tensor:
    """Who has seen nothing guesses that the others' rows lie apart from each other and from the own one, [n, d]."""
    rows = torch.cat([own[None], F.normalize(torch.randn(others, len(own), generator=rng), dim=1)])
    for _ in range(50):
        push = (rows @ rows.T).fill_diagonal_(0).clamp_min(0) @ rows
        push[0] = 0
        rows = F.normalize(rows - 0.2 * push, dim=1)
    return rows[1:]


def of_moments(
    mean: Tensor, second: Tensor, own: Tensor, others: int, rng: torch.Generator, steps: int = 300
) -> Tensor:
    r"""Rows [n, d] that have, with the own one among them, this mean μ and this second moment Σ w wᵀ / C.

    .. math:: \min_{W'} \big\|\tfrac1C \textstyle\sum w - \mu\big\|^2 + \big\|\tfrac1C W^T W - M\big\|^2

    It is all that a node can say where only these are sent: chance for spreading by sums. Of two rows it is the other.
    """
    rows = guess(own, others, rng).requires_grad_()
    optimizer = torch.optim.Adam([rows], lr=0.05)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        every = torch.cat([own[None], F.normalize(rows, dim=1)])
        off = (every.mean(0) - mean).square().sum() + (every.T @ every / len(every) - second).square().sum()
        optimizer.zero_grad()
        off.backward()
        optimizer.step()
        falling.step()
    return F.normalize(rows.detach(), dim=1)
