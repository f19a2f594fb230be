r"""Rows that stay at home: a client keeps its own row w_i, and spreads it by sums over all rows that everybody is told.

A client in a round takes the step that its row is owed, trains it, keeps it, and tells the server of it only inside a sum,
:math:`\sum_i \phi(w_i)`. The server sends the mean of what it heard, the same to everybody, with the next θ. Nobody, not
even the server, ever has a row that is not its own (docs/private-rows.md).

With everybody in every round these are the numbers of the same spreading with rows in the clear. With cohorts the server
keeps a running mean over about a quarter of the clients, as `due` would have it; a row that was away takes one step by the
newest mean when its client is back.
"""

from functools import partial

import torch
from torch import Tensor

from fedaws.config import Config, TrainConfig
from fedaws.core.method import SumSpread
from fedaws.core.moments import apart_
from fedaws.core.schedule import schedule
from fedaws.errors import FedawsError
from fedaws.types import Memory, Params

HEARD = "heard"
"""In the server's memory, beside the means: how much of them is there yet, from 0 before the first round to 1."""
_WINDOW = 4  # the means are over one client in so many


def make_sum_spread(cfg: Config) -> SumSpread:
    """The configured way of keeping rows apart that only needs sums."""
    if cfg.spread.regularizer == "moments":
        return SumSpread(tell_moments, partial(step_by_moments, whitening=cfg.spread.whitening))
    raise FedawsError(
        f"privacy.rows=private cannot spread by spread.regularizer={cfg.spread.regularizer}, which needs pairs of rows; "
        "set spread.regularizer=moments"
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


def nothing_heard(spread: SumSpread, W: Tensor) -> Memory:
    """The server's memory before the first round."""
    means = {name: torch.zeros_like(total) for name, total in spread.tell(W[:1]).items()}
    return {HEARD: W.new_zeros(()), **means}


def hear(memory: Memory, sums: Params, count: int, clients: int) -> Memory:
    r"""The server's memory after a round: with a = min(1, 4m/N) for a cohort of m among N clients,

    .. math:: h' = (1 - a) h + a, \qquad \bar\phi' = \frac{(1 - a) h \bar\phi + a \frac1m \sum_i \phi(w_i)}{h'}

    so that the first cohort counts in full, and with everybody in every round no earlier one counts.

    >>> memory = {"heard": torch.tensor(0.0), "first": torch.zeros(1)}
    >>> memory = hear(memory, {"first": torch.tensor([3.0])}, count=3, clients=24)  # a = ½, but it is all there is
    >>> memory["first"], hear(memory, {"first": torch.tensor([0.0])}, count=3, clients=24)["first"]  # ¼ · 1 of ¾
    (tensor([1.]), tensor([0.3333]))
    """
    if not count:
        return memory
    share = min(1.0, _WINDOW * count / clients)
    kept = (1 - share) * memory[HEARD]
    heard = kept + share
    means = {name: (kept * memory[name] + share / count * total) / heard for name, total in sums.items()}
    return {HEARD: heard, **means}


def settle(spread: SumSpread, rows: Tensor, memory: Memory, cfg: TrainConfig, round_num: int) -> Tensor:
    """Each row after the step that it is owed before this round, by what the server sends; before the first one none."""
    return rows if float(memory[HEARD]) == 0 else spread.step(rows, memory, schedule(cfg, round_num - 1))
