"""What a method's own functions do in a round beside its loss, each with its memory: spread rows, weigh clients, and
add up what private rows tell.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedaws.config import Config
from fedaws.core.aggregate import Aggregate
from fedaws.core.guard import clip_of
from fedaws.core.method import Method, When
from fedaws.core.rows import here
from fedaws.core.schedule import schedule
from fedaws.core.sums import HEARD
from fedaws.errors import FedawsError
from fedaws.types import Broadcast, Memory, ServerState


def send_beside(sent: Broadcast, state: ServerState, method: Method) -> Broadcast:
    """The broadcast with what only some methods send: the means that private rows need, the server's weights."""
    if method.own_spread:
        means = method.own_spread.memory.means(method.own_spread, state.spread, state.W)
        sent = replace(sent, means=means, heard=state.spread[HEARD][sent.cohort])
    if method.weighting:
        memory = state.weighting or method.weighting.init(state.W)
        weights = method.weighting.weights(memory, state.classes(sent.cohort))
        if weights.shape != sent.cohort.shape or not bool((weights > 0).all()):
            shape, count = tuple(weights.shape), len(sent.cohort)
            raise FedawsError(f"the method's weights have shape {shape} or are not positive; wanted {count} such")
        sent = replace(sent, weights=weights)
    return replace(sent, clip=clip_of(state)) if state.clip else sent


def spread_rows(
    state: ServerState, total: Aggregate, cfg: Config, method: Method, factor: float, rng: torch.Generator
) -> ServerState:
    """Line 14 on the rows that the server has; of private ones it adds up what they tell."""
    if method.own_spread:
        heard = method.own_spread.memory.hear(state.spread, total.sums, total.cohort, state.round_num + 1)
        return replace(state, spread=heard)
    if method.spread is None or not bool(total.rows.square().sum().isfinite()):  # diverged: the caller sees it
        return state
    memory = state.spread or method.spread.init(state.W)
    when = When(state.round_num, factor * cfg.class_lr, factor)
    after = method.spread.step(state.W, total.classes, when, rng, memory)
    if "spread.weight" in method.replaces:
        _check_lengths(here(state.W))
    return replace(state, spread=_same_kind(memory, after, "spread"))


def learn_weights(state: ServerState, total: Aggregate, method: Method) -> ServerState:
    """The server's weights of the clients, after their losses of this round."""
    if method.weighting is None or not len(total.cohort):
        return state
    memory = state.weighting or method.weighting.init(state.W)
    learnt = method.weighting.learn(memory, state.classes(total.cohort), total.losses)
    return replace(state, weighting=_same_kind(memory, learnt, "weighting"))


def settled(state: ServerState, cfg: Config, method: Method) -> ServerState:
    """The state with every private row after the step that it is owed: the rows as their owners would use them now."""
    spread = method.own_spread
    if spread is None:
        return state
    means = spread.memory.means(spread, state.spread, state.W)
    W = spread.step(state.W, means, schedule(cfg.train, state.round_num - 1))
    return replace(state, W=W, spread=spread.memory.init(spread, W, len(state.spread[HEARD])))


def _check_lengths(rows: Tensor) -> None:
    lengths = torch.linalg.vector_norm(rows, dim=1)
    if not bool(((lengths - 1).abs() < 1e-3).all()):  # nor is NaN
        raise FedawsError(
            f"the method's spread left rows of lengths {float(lengths.min()):.3g} to {float(lengths.max()):.3g}; "
            "wanted length 1, as by W.copy_(F.normalize(W, dim=1))"
        )


def _same_kind(before: Memory, after: Memory, owner: str) -> Memory:
    """The memory after a step, refused unless a checkpoint can hold it: tensors with the names and shapes of `init`."""

    def kinds(memory: Any) -> dict[str, str] | None:
        if not isinstance(memory, dict) or not all(isinstance(tensor, Tensor) for tensor in memory.values()):
            return None
        return {name: f"{tensor.dtype} {tuple(tensor.shape)}" for name, tensor in memory.items()}

    if kinds(before) is None:
        raise FedawsError(f"the method's {owner} starts with the memory {before!r}; wanted tensors by name, or {{}}")
    if kinds(after) != kinds(before):
        raise FedawsError(
            f"the method's {owner} gave the memory {kinds(after) or type(after).__name__}; wanted that of its init, "
            f"{kinds(before)}"
        )
    return after
