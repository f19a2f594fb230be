r"""Rows that stay at home: a client keeps its own row w_i, and spreads it by sums over all rows that everybody is told.

A client in a round takes the step that its row is owed, trains it, keeps it, and tells the server of it only inside a
sum over the cohort: :math:`\sum_i \phi(w_i) - \phi(w_i^{told})`, by how much what it tells has changed since it was
last heard. The server adds these up, so that it has :math:`\sum_i \phi(w_i)` over everybody heard so far, and sends the
mean, the same to everybody, with the next θ. No row is sent; what the sums tell of single rows is in
docs/private-rows.md, and for cohorts that vary it is much.

With everybody in every round these are the numbers of the same spreading with rows in the clear. With cohorts a row
that was away takes one step by the newest means when its client is back.
"""

from functools import partial

import torch
from torch import Tensor

from fedaws.config import Config
from fedaws.core.method import SumSpread
from fedaws.core.moments import apart_
from fedaws.errors import FedawsError
from fedaws.types import Memory, Params

HEARD = "heard"
"""In the server's memory, beside the sums: which clients are in them, [N]."""


def make_sum_spread(cfg: Config) -> SumSpread:
    """The configured way of keeping rows apart that only needs sums."""
    if cfg.spread.regularizer == "moments":
        return SumSpread(tell_moments, partial(step_by_moments, whitening=cfg.spread.whitening), unknown_moments)
    raise FedawsError(
        f"privacy.rows=private cannot spread by spread.regularizer={cfg.spread.regularizer}, which needs pairs of "
        "rows; set spread.regularizer=moments"
    )


def tell_moments(rows: Tensor) -> Params:
    r"""Σ w and Σ w wᵀ.

    >>> tell_moments(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]))["first"]
    tensor([1., 2.])
    """
    return {"first": rows.sum(0), "second": rows.T @ rows}


def step_by_moments(rows: Tensor, means: Params, factor: float, whitening: float = 1.0) -> Tensor:
    """Centring and whitening of each row by itself."""
    return apart_(rows.clone(), means["first"], means["second"], factor * whitening)


def unknown_moments(dim: int) -> Params:
    """What a random unit row tells in the mean: 0 and I/d. Means of these alone move no row."""
    return {"first": torch.zeros(dim), "second": torch.eye(dim) / dim}


def nothing_heard(spread: SumSpread, W: Tensor, clients: int) -> Memory:
    """The server's memory before the first round."""
    sums = {name: torch.zeros_like(total, dtype=torch.float64) for name, total in spread.tell(W[:1]).items()}
    return {HEARD: torch.zeros(clients, dtype=torch.bool, device=W.device), **sums}


def hear(memory: Memory, changes: Params, cohort: Tensor) -> Memory:
    """The server's memory after a round: the changes added, the cohort marked as heard."""
    heard = memory[HEARD].clone()
    heard[cohort] = True
    return {HEARD: heard, **{name: memory[name] + change for name, change in changes.items()}}


def means_of(spread: SumSpread, memory: Memory, W: Tensor) -> Params:
    r"""What everybody is sent: the mean over all N clients, of which those not heard yet are taken for random rows.

    .. math:: \frac1N \Big(\sum_{i\ \text{heard}} \phi(w_i) + (N - n)\, \mathbb E\, \phi\Big)
    """
    clients = len(memory[HEARD])
    missing = clients - int(memory[HEARD].sum())
    unknown = {name: one.to(W.device) for name, one in spread.unknown(W.shape[1]).items()}
    return {name: ((memory[name] + missing * one) / clients).to(W.dtype) for name, one in unknown.items()}


def changes_told(spread: SumSpread, rows: Tensor, before: Tensor, heard: Tensor) -> Params:
    """By how much what these clients tell has changed: all of it for those who were not heard before; added up."""
    told = spread.tell(before[heard])
    return {name: total - told[name] for name, total in spread.tell(rows).items()}
