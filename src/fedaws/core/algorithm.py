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
from fedaws.core.aggregate import Aggregate, aggregate
from fedaws.core.defences import clip_to_median
from fedaws.core.embedding_tables import step_table_
from fedaws.core.guard import Guard
from fedaws.core.method import Method, Weighting, When
from fedaws.core.methods import method_of
from fedaws.core.optimizers import is_matrix
from fedaws.core.sampling import sample_classes, sampled_change
from fedaws.core.schedule import schedule
from fedaws.core.start import server_optimizer
from fedaws.core.sums import HEARD
from fedaws.errors import FedawsError
from fedaws.types import Broadcast, Memory, Params, RunClients, ServerState, Update


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
    `guard` makes the round private.

    `in_place` lets the new state take over the old one's W, tables and memories, too large to be copied every round.
    """
    method = method or method_of(cfg)
    drawn = guard.pick if guard else None
    cohort = drawn(available) if drawn else sample_clients(available, cfg.clients, rng, num_examples)
    classes = None
    if method.rows == "all" and cfg.clients.sampled_classes is not None:
        classes = sample_classes(state.classes(cohort), cfg.clients.sampled_classes, len(state.W), rng)
    sent = broadcast(state, cohort, method.rows == "all", classes)
    if method.own_spread:
        means = method.own_spread.memory.means(method.own_spread, state.spread, state.W)
        sent = replace(sent, means=means, heard=state.spread[HEARD][cohort])
    if method.weighting:
        sent = replace(sent, weights=_server_weights(state, method.weighting, cohort))
    finish = finish_round_ if in_place else finish_round
    updates = run_clients(sent) if len(cohort) else ()  # by independent coins perhaps nobody takes part
    return finish(state, updates, cfg, rng, method, classes, guard)


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
) -> ServerState:
    """Lines 11–14: average θ, put the rows together, spread them. `classes` are an oracle's sample, if it has one."""
    return finish_round_(_copied(state), updates, cfg, rng, method, classes, guard)


def finish_round_(
    state: ServerState,
    updates: Iterable[Update],
    cfg: Config,
    rng: torch.Generator,
    method: Method | None = None,
    classes: Tensor | None = None,
    guard: Guard | None = None,
) -> ServerState:
    """The same, with the old state's W, tables and memories changed in place."""
    method, factor = method or method_of(cfg), schedule(cfg.train, state.round_num)
    total = aggregate(state, clip_to_median(updates) if cfg.defence.clip == "median" else updates)
    total = guard.release(state, total) if guard else total
    state = replace(_step_theta(state, total.delta, cfg, method, factor), loss=total.loss)
    if total.shared is not None:
        state = _step_all_rows(state, total.shared, classes, cfg, method, factor)
    W = state.W
    if method.trains_own_row and len(total.classes):
        W[total.classes] = F.normalize(total.rows, dim=1)
    if method.spread and bool(total.rows.square().sum().isfinite()):  # else training diverged, and the caller sees it
        when = When(state.round_num, factor * cfg.class_lr, factor)
        memory = state.spread or method.spread.init(W)
        moved = method.spread.step(W, total.classes, when, rng, memory)
        state = replace(state, spread=_same_kind(memory, moved, "spread"))
    if method.own_spread:
        heard = method.own_spread.memory.hear(state.spread, total.sums, total.cohort, state.round_num + 1)
        state = replace(state, spread=heard)
    if method.weighting and len(total.cohort):
        state = replace(state, weighting=_learnt_weights(state, total, method))
    return replace(state, round_num=state.round_num + 1)


def settled(state: ServerState, cfg: Config, method: Method) -> ServerState:
    """The state with every private row after the step that it is owed: the rows as their owners would use them now."""
    spread = method.own_spread
    if spread is None:
        return state
    W = spread.step(
        state.W, spread.memory.means(spread, state.spread, state.W), schedule(cfg.train, state.round_num - 1)
    )
    return replace(state, W=W, spread=spread.memory.init(spread, W, len(state.spread[HEARD])))


def _server_weights(state: ServerState, weighting: Weighting, cohort: Tensor) -> Tensor:
    memory = state.weighting or weighting.init(state.W)
    weights = weighting.weights(memory, state.classes(cohort))
    if weights.shape != cohort.shape or not bool((weights > 0).all()):
        raise FedawsError(
            f"the method's weights have shape {tuple(weights.shape)} or are not positive; wanted {len(cohort)} such"
        )
    return weights


def _same_kind(before: Memory, after: Memory, owner: str) -> Memory:
    """The memory after a step, refused unless a checkpoint can hold it: tensors with the names and shapes of `init`."""

    def kinds(memory: Any) -> dict[str, str] | None:
        if not isinstance(memory, dict) or not all(isinstance(tensor, Tensor) for tensor in memory.values()):
            return None
        return {name: f"{tensor.dtype} {tuple(tensor.shape)}" for name, tensor in memory.items()}

    if kinds(after) != kinds(before):
        raise FedawsError(
            f"the method's {owner} gave the memory {kinds(after) or type(after).__name__}; wanted that of its init, "
            f"{kinds(before)}"
        )
    return after


def _copied(state: ServerState) -> ServerState:
    """The state with storage of its own for all that a round may change in place."""
    mappings = ("theta", "optimizer", "row_optimizer", "tables", "spread", "weighting")
    copies: dict[str, Any] = {name: {k: v.clone() for k, v in getattr(state, name).items()} for name in mappings}
    return replace(state, W=state.W.clone(), **copies)


def _step_theta(state: ServerState, delta: Params, cfg: Config, method: Method, factor: float) -> ServerState:
    """The server's optimiser on the averaged delta, and the decay of θ's matrices; tables have their own optimiser.

    The optimiser sees delta / factor and its step is multiplied by the factor, which is what a learning-rate schedule
    does to any optimiser; for plain averaging the two cancel.
    """
    if not delta:
        return state
    server, lr = server_optimizer(cfg, method), cfg.server.lr * factor
    dense = {k: state.theta[k] for k, d in delta.items() if not d.is_sparse}
    direction = {k: delta[k] if factor == 1 else delta[k] / factor for k in dense}
    step, optimizer = Params(), state.optimizer
    if dense:  # an encoder may be a table alone
        step, optimizer = server.step(dense, direction, state.optimizer or server.init(dense), lr)
    kept = 1 - cfg.server.weight_decay * lr
    theta = {k: (v * kept if kept < 1 and is_matrix(v) else v) + step[k] for k, v in dense.items()}
    tables = dict(state.tables)
    for name in delta.keys() - dense.keys():
        theta[name] = step_table_(name, state.theta[name], delta[name], tables, cfg.server, factor)
    theta = {k: theta[k] for k in state.theta}
    average = _averaged(state, {k: theta[k] for k in dense}, cfg.server.average)
    return replace(state, theta=theta, optimizer=optimizer, tables=tables, average=average)


def _step_all_rows(
    state: ServerState, shared: Tensor, classes: Tensor | None, cfg: Config, method: Method, factor: float
) -> ServerState:
    """The server's optimiser on W, which an oracle's clients all train; of a sample only the rows sent are moved."""
    memory = dict(state.row_optimizer)
    if classes is None:
        server = server_optimizer(cfg, method)
        direction = {"W": shared if factor == 1 else shared / factor}
        step, memory = server.step({"W": state.W}, direction, memory or server.init(direction), cfg.server.lr * factor)
        W = state.W + step["W"]
        return replace(state, W=F.normalize(W, dim=1) if cfg.model.normalize else W, row_optimizer=memory)
    change = sampled_change(shared, classes, len(state.W))
    W, rows = step_table_("W", state.W, change, memory, cfg.server, factor), change.indices()[0]
    if cfg.model.normalize:
        W.index_copy_(0, rows, F.normalize(W.index_select(0, rows), dim=1))
    return replace(state, W=W, row_optimizer=memory)


def _averaged(state: ServerState, theta: Params, decay: float) -> Params:
    """The exponential average of θ, over fewer rounds at the start, so that θ⁰ is soon forgotten; not of tables, of
    which a round may touch few rows.
    """
    if not decay:
        return {}
    decay = min(decay, (state.round_num + 1) / (state.round_num + 10))
    return {k: state.averaged[k].lerp(v, 1 - decay) for k, v in theta.items()}


def _learnt_weights(state: ServerState, total: Aggregate, method: Method) -> Memory:
    assert method.weighting is not None
    memory = state.weighting or method.weighting.init(state.W)
    learnt = method.weighting.learn(memory, state.classes(total.cohort), total.losses)
    return _same_kind(memory, learnt, "weighting")
