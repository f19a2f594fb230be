"""The clients of a round, each run by the rank that has its examples; what they send comes together again."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from fedaws.ranks.group import Ranks
from fedaws.ranks.tables import SharedTable
from fedaws.types import Broadcast, Params, RunClients, Update


def over_ranks(
    run_clients: RunClients, ranks: Ranks, rank_of: Tensor, trains_rows: bool, table: SharedTable | None
) -> RunClients:
    """The same clients, client i run by `rank_of[i]`; every rank gets one update of all of them, with the same bits.

    Of a table each rank gets the change of its own rows.
    """

    def run(sent: Broadcast) -> Iterator[Update]:
        shares = [(rank_of[sent.cohort] == rank).nonzero()[:, 0] for rank in range(ranks.world)]
        own = shares[ranks.rank]
        part = replace(sent, cohort=sent.cohort[own], W=sent.W[own])
        if table is not None:
            part = replace(part, theta=table.looked_up(part))
        updates = list(run_clients(part)) if len(own) else []
        heard = _put_together(ranks, shares, updates, sent.W, trains_rows)
        total = float(heard[1].sum())
        delta = _summed(
            ranks, updates, total, {k: v for k, v in sent.theta.items() if table is None or k != table.name}
        )
        if table is not None:
            delta[table.name] = table.change(updates, total)
        rows, weights, losses = heard
        yield Update(sent.cohort, delta, rows, weights, losses)

    return run


def _put_together(
    ranks: Ranks, shares: list[Tensor], updates: list[Update], rows: Tensor, trains_rows: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """All clients' rows, weights and losses, in the cohort's order."""
    numbers = rows[0].numel() if trains_rows else 0
    told = [
        torch.cat([u.weights[:, None].float(), u.loss[:, None].float(), u.W.flatten(1)[:, :numbers]], 1)
        for u in updates
    ]
    own = torch.cat(told) if told else rows.new_empty(0, 2 + numbers)
    whole = own.new_empty(len(rows), 2 + numbers)
    for places, theirs in zip(shares, ranks.gather(own, [len(s) for s in shares]), strict=True):
        whole.index_copy_(0, places, theirs)
    trained = whole[:, 2:].reshape(rows.shape) if trains_rows else rows
    return trained, whole[:, 0].contiguous(), whole[:, 1].contiguous()


def _summed(ranks: Ranks, updates: list[Update], total: float, theta: Params) -> Params:
    """Σ ω_i Δ_i of the layers, in one message."""
    if not theta:
        return {}
    flat = next(iter(theta.values())).new_zeros(sum(p.numel() for p in theta.values()))
    for update in updates:
        changes = torch.cat([update.delta[name].flatten() for name in theta])
        flat.add_(changes, alpha=float(update.weights.sum()) / total)
    parts = ranks.sum_(flat).split([p.numel() for p in theta.values()])
    return {name: part.view_as(p) for (name, p), part in zip(theta.items(), parts, strict=True)}
