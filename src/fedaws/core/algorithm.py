r"""Algorithm 1 on one screen: pick a cohort, send, train, aggregate, spread.

Everything that is simulated or deployed goes through these functions; only `run_clients` differs.
"""

from collections.abc import Iterable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from fedaws.config import ClientsConfig, Config
from fedaws.core.aggregate import aggregate
from fedaws.core.embedding_tables import step_tables
from fedaws.core.methods import method_of
from fedaws.core.moments import due
from fedaws.core.optimizers import is_matrix, optimizer_step
from fedaws.core.sampling import as_rows_of_all, sample_classes
from fedaws.core.schedule import schedule
from fedaws.core.spreadout import no_neighbors_yet, spread_
from fedaws.errors import FedawsError
from fedaws.types import AVERAGE, CLASS_MATRIX, NEIGHBORS, Broadcast, Params, RunClients, ServerState, Update


def run_round(
    state: ServerState,
    available: Tensor,
    run_clients: RunClients,
    cfg: Config,
    rng: torch.Generator,
    num_examples: Tensor | None = None,
    in_place: bool = False,
) -> ServerState:
    """One round. `available` are the ids of the clients that can take part."""
    cohort = sample_clients(available, cfg.clients, rng, num_examples)
    all_rows, count = method_of(cfg).rows == "all", cfg.clients.sampled_classes
    if all_rows and count is not None:
        classes = sample_classes(state.classes(cohort), count, len(state.W), rng)
        updates = run_clients(broadcast(state, cohort, classes=classes))
        return finish_round(state, as_rows_of_all(updates, classes, len(state.W)), cfg, rng, in_place)
    return finish_round(state, run_clients(broadcast(state, cohort, all_rows)), cfg, rng, in_place)


def sample_clients(
    available: Tensor, cfg: ClientsConfig, rng: torch.Generator, num_examples: Tensor | None = None
) -> Tensor:
    """C^t: all of the available clients, or `per_round` of them, each as likely as the others or, draw by draw, in
    proportion to its examples.
    """
    if cfg.per_round == "all" or cfg.per_round >= len(available):
        return available
    if cfg.sampling == "examples":
        if num_examples is None:
            raise FedawsError("clients.sampling=examples needs the clients' numbers of examples")
        # The largest of log(u)/n are a draw without replacement in proportion to n (Efraimidis & Spirakis 2006).
        keys = torch.rand(len(available), generator=rng, dtype=torch.float64).log() / num_examples[available].cpu()
        chosen = keys.topk(cfg.per_round).indices
    else:
        chosen = torch.randperm(len(available), generator=rng)[: cfg.per_round]
    return available[chosen.sort().values.to(available.device)]


def broadcast(state: ServerState, cohort: Tensor, all_rows: bool = False, classes: Tensor | None = None) -> Broadcast:
    """θ^t and the cohort's own rows, copied: never W. Only an oracle's clients get `all_rows`, or those of a sample of
    the `classes`, beside θ.
    """
    theta = state.theta
    if all_rows or classes is not None:
        theta = {**theta, CLASS_MATRIX: state.W if classes is None else state.W.index_select(0, classes)}
    return Broadcast(cohort, theta, state.W.index_select(0, state.classes(cohort)), state.round_num, classes)


def finish_round(
    state: ServerState, updates: Iterable[Update], cfg: Config, rng: torch.Generator, in_place: bool = False
) -> ServerState:
    """Lines 11–14: average θ, put the rows together, spread them.

    `in_place` lets the new state take over the old one's W and tables, too large to be copied every round.
    """
    method, factor = method_of(cfg), schedule(cfg.train, state.round_num)
    total = aggregate(state, updates)
    theta, W, slots = _server_step(state, total.delta, cfg, factor, in_place)
    if cfg.server.average:
        slots = slots | {AVERAGE: _averaged(state, theta, cfg.server.average)}
    W = W if in_place or W is not state.W else W.clone()
    if method.rows == "own" and len(total.classes):
        W[total.classes] = F.normalize(total.rows, dim=1) if cfg.model.normalize else total.rows
    if method.spread and bool(total.rows.square().sum().isfinite()):  # else training diverged, and the caller sees it
        all_rows = due(cfg.spread.every, state.round_num, len(W), cfg.clients.per_round)
        known = _known_neighbors(state, cfg, in_place)
        slots = slots if known is None else slots | {NEIGHBORS: {"ids": known}}
        spread_(W, total.classes, cfg.spread, factor * cfg.class_lr, rng, factor, cfg.model.normalize, all_rows, known)
    return replace(state, round_num=state.round_num + 1, theta=theta, W=W, slots=slots, loss=total.loss)


def _server_step(
    state: ServerState, delta: Params, cfg: Config, factor: float, in_place: bool
) -> tuple[Params, Tensor, dict[str, Params]]:
    """The server's optimiser on the averaged delta, and the decay of its matrices; tables have their own.

    The optimiser sees delta / factor and its step is multiplied by the factor, which is what a learning-rate schedule
    does to any optimiser; for plain averaging the two cancel.
    """
    if not delta:
        return state.theta, state.W, state.slots
    direction = {k: d if factor == 1 else d / factor for k, d in delta.items() if not d.is_sparse}
    step, slots = optimizer_step(
        cfg.server.optimizer, direction, state.slots, cfg.server.lr * factor, cfg.server.momentum
    )
    tables, memory = step_tables(state, delta, cfg.server, factor, in_place)
    kept = 1 - cfg.server.weight_decay * cfg.server.lr * factor
    theta = {k: v * kept if kept < 1 and is_matrix(v) else v for k, v in state.theta.items() if k not in tables}
    theta = {k: tables[k] if k in tables else theta[k] + step[k] for k in state.theta}
    slots = slots | memory if memory else slots
    if method_of(cfg).rows != "all":
        return theta, state.W, slots
    if CLASS_MATRIX in tables:  # the rows of a sample
        W, rows = tables[CLASS_MATRIX], delta[CLASS_MATRIX].indices()[0]
        if cfg.model.normalize:
            W.index_copy_(0, rows, F.normalize(W.index_select(0, rows), dim=1))
        return theta, W, slots
    W = state.W + step[CLASS_MATRIX]
    return theta, F.normalize(W, dim=1) if cfg.model.normalize else W, slots


def _known_neighbors(state: ServerState, cfg: Config, in_place: bool) -> Tensor | None:
    """The classes' neighbours as far as they were found, if they are to be remembered; to be written to."""
    if NEIGHBORS not in state.slots:
        return no_neighbors_yet(cfg.spread, state.W)
    known = state.slots[NEIGHBORS]["ids"]
    return known if in_place else known.clone()


def _averaged(state: ServerState, theta: Params, decay: float) -> Params:
    """The exponential average of θ, over fewer rounds at the start, so that θ⁰ is soon forgotten."""
    decay = min(decay, (state.round_num + 1) / (state.round_num + 10))
    return {k: v.lerp(theta[k], 1 - decay) for k, v in state.averaged.items()}
