r"""Algorithm 1 on one screen: pick a cohort, send, train, aggregate, spread.

Everything that is simulated or deployed goes through these functions; only `run_clients` differs.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedaws.config import ClientsConfig, Config
from fedaws.core.aggregate import aggregate
from fedaws.core.defences import clip_to_median
from fedaws.core.guard import Guard
from fedaws.core.method import Method
from fedaws.core.methods import method_of
from fedaws.core.owners import learn_weights, send_beside, spread_rows
from fedaws.core.sampled_classes import sample_classes
from fedaws.core.schedule import schedule
from fedaws.core.server_step import step_all_rows, step_theta
from fedaws.errors import FedawsError
from fedaws.types import Broadcast, RunClients, ServerState, Update


def run_round(
    state: ServerState,
    available: Tensor,
    run_clients: RunClients,
    cfg: Config,
    rng: torch.Generator,
    num_examples: Tensor | None = None,
    in_place: bool = False,
    method: Method | None = None,
    guard: Guard | None = None,
) -> ServerState:
    """One round. `available` are the ids of the clients that can take part; `method` is by default the configured one;
    `guard` makes the round private; `in_place` as in :func:`finish_round`.
    """
    method = method or method_of(cfg)
    drawn = guard.pick if guard else None
    cohort = drawn(available) if drawn else sample_clients(available, cfg.clients, rng, num_examples)
    classes = None
    if method.rows == "all" and cfg.clients.sampled_classes is not None:
        classes = sample_classes(state.classes(cohort), cfg.clients.sampled_classes, len(state.W), rng)
    sent = send_beside(broadcast(state, cohort, method.rows == "all", classes), state, method)
    updates = run_clients(sent) if len(cohort) else ()  # by independent coins perhaps nobody takes part
    return finish_round(state, updates, cfg, rng, method, classes, guard, in_place)


def sample_clients(
    available: Tensor, cfg: ClientsConfig, rng: torch.Generator, num_examples: Tensor | None = None
) -> Tensor:
    """C^t: all of the available clients, or `per_round` of them, each as likely as the others or, draw by draw, in
    proportion to its examples; or each by a coin of its own, `per_round` of them on average.
    """
    if cfg.per_round == "all" or cfg.per_round >= len(available):
        return available
    if cfg.sampling == "examples":
        if num_examples is None:
            raise FedawsError("clients.sampling=examples needs the clients' numbers of examples")
        # The largest of log(u)/n are a draw without replacement in proportion to n (Efraimidis & Spirakis 2006).
        keys = torch.rand(len(available), generator=rng, dtype=torch.float64).log() / num_examples[available].cpu()
        chosen = keys.topk(cfg.per_round).indices
    elif cfg.sampling == "poisson":
        heads = torch.rand(len(available), generator=rng, dtype=torch.float64) < cfg.per_round / len(available)
        chosen = heads.nonzero()[:, 0]
    else:
        chosen = torch.randperm(len(available), generator=rng)[: cfg.per_round]
    return available[chosen.sort().values.to(available.device)]


def broadcast(state: ServerState, cohort: Tensor, all_rows: bool = False, classes: Tensor | None = None) -> Broadcast:
    """θ^t and the cohort's own rows, copied: never W. Only an oracle's clients get `all_rows`, or those of a sample of
    the `classes`, beside them.
    """
    shared = None if not all_rows else state.W if classes is None else state.W.index_select(0, classes)
    own = state.W[state.classes(cohort)]
    return Broadcast(cohort, state.theta, own, state.round_num, shared, classes)


def finish_round(
    state: ServerState,
    updates: Iterable[Update],
    cfg: Config,
    rng: torch.Generator,
    method: Method | None = None,
    classes: Tensor | None = None,
    guard: Guard | None = None,
    in_place: bool = False,
) -> ServerState:
    """Lines 11–14: average θ, put the rows together, spread them. `classes` are an oracle's sample, if it has one.

    `in_place` lets the new state take over the old one's W, tables and memories, too large to be copied every round.
    """
    method = method or method_of(cfg)
    factor = schedule(cfg.train, state.round_num)
    state = state if in_place else _copied(state)
    total = aggregate(state, clip_to_median(updates) if cfg.defence.clip == "median" else updates)
    total = guard.release(state, total) if guard else total
    state = step_theta(state, total.delta, cfg, method, factor)
    state = step_all_rows(state, total.shared, classes, cfg, method, factor)
    if method.trains_own_row and len(total.classes):
        state.W[total.classes] = F.normalize(total.rows, dim=1)
    state = spread_rows(state, total, cfg, method, factor, rng)
    state = learn_weights(state, total, method)
    return replace(state, round_num=state.round_num + 1, loss=total.loss, clip=total.clip or state.clip)


def _copied(state: ServerState) -> ServerState:
    """The state with storage of its own for all that a round may change in place."""
    mappings = ("theta", "optimizer", "row_optimizer", "tables", "spread", "weighting")
    copies: dict[str, Any] = {name: {k: v.clone() for k, v in getattr(state, name).items()} for name in mappings}
    return replace(state, W=state.W.clone(), **copies)
