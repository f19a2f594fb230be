r"""Rows that stay at home: a client keeps its own row w_i, and spreads it by sums over all rows that everybody is told.

A client in a round takes the step that its row is owed, trains it, keeps it, and tells the server of it only inside a
sum over the cohort: :math:`\sum_i \phi(w_i) - \phi(w_i^{told})`, by how much what it tells has changed since it was
last heard. The server adds these up, so that it has :math:`\sum_i \phi(w_i)` over everybody heard so far, and sends the
mean, the same to everybody, with the next θ. No row is sent; what the sums tell of single rows is in
docs/private-rows.md, and for cohorts that vary it is much: over Flower only sums over everybody are told.

With everybody in every round these are the numbers of the same spreading with rows in the clear. With cohorts a row
that was away takes one step by the newest means when its client is back.
"""

import torch
from torch import Tensor

from fedaws.core.method import SumMemory, SumSpread
from fedaws.core.moments import apart_
from fedaws.types import Memory, Params

HEARD = "heard"
"""In the server's memory, beside the sums: how many rounds were done when each client was last counted; 0: never."""


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


def unsound_moments(means: Params, slack: float = 1e-3) -> str | None:
    """Why no unit rows have such means, if so: ‖μ‖ ≤ 1, tr M = 1, M = Mᵀ, and M − μμᵀ has no negative eigenvalue.

    >>> unsound_moments({"first": torch.zeros(2), "second": torch.eye(2)})
    'their second moment has trace 2, wanted 1'
    """
    mean, second = means["first"].double(), means["second"].double()
    if not bool(mean.isfinite().all() and second.isfinite().all()):
        return "they are not finite"
    if float(mean.norm()) > 1 + slack:
        return f"their mean has length {float(mean.norm()):.3g}, wanted at most 1"
    if abs(float(second.trace()) - 1) > slack:
        return f"their second moment has trace {float(second.trace()):.3g}, wanted 1"
    if float((second - second.T).abs().max()) > slack:
        return "their second moment is not symmetric"
    least = float(torch.linalg.eigvalsh(second - torch.outer(mean, mean)).min())
    return f"their variance in some direction is {least:.3g}" if least < -slack else None


def nothing_heard(spread: SumSpread, W: Tensor, clients: int) -> Memory:
    """The server's memory before the first round."""
    sums = {name: torch.zeros_like(total, dtype=torch.float64) for name, total in spread.tell(W[:1]).items()}
    return {HEARD: torch.zeros(clients, dtype=torch.int64, device=W.device), **sums}


def hear(memory: Memory, changes: Params, cohort: Tensor, rounds: int) -> Memory:
    """The server's memory after so many rounds: the changes added, the cohort marked as heard, if any were told."""
    if not changes:
        return memory
    heard = memory[HEARD].clone()
    heard[cohort] = rounds
    return {HEARD: heard, **{name: memory[name] + change for name, change in changes.items()}}


def means_of(spread: SumSpread, memory: Memory, W: Tensor) -> Params:
    r"""What everybody is sent: the mean over all N clients, of which those not heard yet are taken for random rows.

    .. math:: \frac1N \Big(\sum_{i\ \text{heard}} \phi(w_i) + (N - n)\, \mathbb E\, \phi\Big)
    """
    clients = len(memory[HEARD])
    missing = clients - int((memory[HEARD] > 0).sum())
    unknown = {name: one.to(W.device) for name, one in spread.unknown(W.shape[1]).items()}
    return {name: ((memory[name] + missing * one) / clients).to(W.dtype) for name, one in unknown.items()}


def changes_told(spread: SumSpread, rows: Tensor, before: Tensor, heard: Tensor) -> Params:
    """By how much what these clients tell has changed: all of it for those who were not heard before; added up."""
    told = spread.tell(before[heard > 0])
    return {name: total - told[name] for name, total in spread.tell(rows).items()}


EXACT = SumMemory(nothing_heard, hear, means_of)
"""Without noise: the exact sum over everybody heard so far, from changes."""
