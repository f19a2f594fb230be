r"""What the server makes of the clients' updates (Algorithm 1, lines 12–13): Σ ω_i θ_i, and the rows of W."""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from fedaws.core.embedding_tables import mean_rows
from fedaws.types import Memory, Params, ServerState, Update


class Aggregate(NamedTuple):
    """The cohort's work, added up."""

    delta: Params  # Σ ω_i (θ_i − θ); empty if nobody answered
    classes: Tensor  # [u] the classes that were heard from, sorted
    rows: Tensor  # [u, d] their new rows
    loss: float  # Σ ω_i loss_i
    shared: Tensor | None  # the same mean of the changes of the shared rows, if there are any
    losses: Tensor  # [m] of the clients one by one,
    cohort: Tensor  # [m] who are these
    sums: Params  # change of what their private rows tell, added up
    inside: int = 0  # how many changes were no longer than the clip
    clip: Memory | None = None  # of the next round, if it follows the changes


def aggregate(state: ServerState, updates: Iterable[Update]) -> Aggregate:
    r"""Add up a stream of updates; ω_i is each client's weight over the sum of the weights that arrived.

    .. math:: \sum_i \omega_i (\theta^{t,i} - \theta^t), \qquad
              \tilde w_c = \sum_{i \in c} \omega_i w_i \Big/ \sum_{i \in c} \omega_i

    Several clients of one class give the weighted mean of their rows. A client that is absent or was rejected sends
    nothing, and its row is not in the result.
    """
    total, delta, loss, inside = 0.0, Params(), 0.0, 0
    shared: Tensor | None = None
    sums = Params()
    tables: dict[str, list[tuple[float, Tensor]]] = {}
    cohorts, rows, weights, losses = [], [], [], []
    for update in updates:
        weight = float(update.weights.sum())
        total += weight
        loss += float((update.loss * update.weights).sum())
        for name, change in update.delta.items():  # a running mean: nothing to do for the first block
            if change.is_sparse:  # other rows in every block: added up once, at the end
                tables.setdefault(name, []).append((weight, change))
            else:
                delta[name] = _mean_so_far(delta.get(name), change, weight / total)
        if update.shared is not None:
            shared = _mean_so_far(shared, update.shared, weight / total)
        for name, part in (update.sums or {}).items():
            sums[name] = sums[name] + part if name in sums else part
        inside += 0 if update.inside is None else int(update.inside.sum())
        cohorts.append(update.cohort)
        rows.append(update.W)
        weights.append(update.weights)
        losses.append(update.loss)
    if not cohorts:
        nobody = torch.empty(0, dtype=torch.int64, device=state.W.device)
        none = state.W.new_empty(0, state.W.shape[1])
        return Aggregate({}, nobody, none, 0.0, None, state.W.new_empty(0), nobody, sums)
    delta |= {name: mean_rows(parts, total) for name, parts in tables.items()}
    cohort = torch.cat(cohorts)
    of_clients, all_rows, all_weights = state.classes(cohort), torch.cat(rows), torch.cat(weights)
    if of_clients.ndim == 2:  # several rows a client, each with the client's weight
        all_weights = all_weights.repeat_interleave(of_clients.shape[1])
        all_rows, of_clients = all_rows.flatten(0, 1), of_clients.flatten()
    classes, class_rows = _rows_by_class(of_clients, all_rows, all_weights)
    return Aggregate(delta, classes, class_rows, loss / total, shared, torch.cat(losses), cohort, sums, inside)


def _mean_so_far(mean: Tensor | None, change: Tensor, share: float) -> Tensor:
    return change if mean is None else mean.lerp(change, share)


def _rows_by_class(classes: Tensor, rows: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The classes, and the weighted mean of each one's rows."""
    if bool((classes[1:] > classes[:-1]).all()):  # one client a class, in order: the usual case needs no sorting
        return classes, rows
    unique, group = classes.unique(return_inverse=True)
    if len(unique) == len(classes):  # one client a class: no mean to take, the rows only change places
        return unique, rows[group.argsort()]
    weights = weights.to(rows.dtype)
    share = weights / weights.new_zeros(len(unique)).index_add_(0, group, weights)[group]
    return unique, rows.new_zeros(len(unique), rows.shape[1]).index_add_(0, group, rows * share[:, None])
