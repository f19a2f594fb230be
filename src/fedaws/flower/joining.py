"""Rows of those who come and go: a class that is new gets one, a class whose nodes have all left has none."""

import logging
from collections.abc import Mapping
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from fedaws.config import Config
from fedaws.core.attendance import entered
from fedaws.core.method import Method
from fedaws.core.newcomers import fresh_row
from fedaws.core.sums import HEARD
from fedaws.flower.federation import Federation
from fedaws.hashing import hash64
from fedaws.training.register import closed, here
from fedaws.types import ServerState

_LOG = logging.getLogger("flwr")


def late_classes(state: ServerState, online: set[int], joined: set[int] | None) -> set[int]:
    """The classes that need a row: first seen after the first round, removed and back, or beyond W."""
    late = set() if joined is None else online - joined
    late |= {c for c in online if c < len(state.W) and not bool(here(state)[c])}
    return late | set(range(len(state.W), max(online, default=-1) + 1))  # rows have no gaps


def with_room(state: ServerState, federation: Federation) -> ServerState:
    """The state of private rows with a place for every member, of whom some may have come since."""
    W = F.pad(state.W, (0, 0, 0, max(0, federation.num_classes - len(state.W))))
    heard = state.spread[HEARD]
    spread = state.spread | {HEARD: F.pad(heard, (0, len(federation.members) - len(heard)))}
    return replace(state, W=W, class_of=_class_of(federation), spread=spread)


def with_rows(
    state: ServerState, federation: Federation, late: set[int], enrolled: Mapping[int, Tensor], cfg: Config
) -> ServerState:
    """The state with a row for each class that comes: the one made at home, or one away from the others."""
    W = state.W
    for class_id in sorted(late):
        before, after = W[:class_id], W[class_id + 1 :]
        row, how = enrolled.get(class_id), "the row that it made at home"
        if row is None:
            rng = torch.Generator().manual_seed(hash64(cfg.seed, "newcomer", class_id))
            row, how = fresh_row(torch.cat([before, after]), rng), "a row away from the others"
        W = torch.cat([before, row[None], after])
        _LOG.info("class %d joins in round %d, with %s", class_id, state.round_num + 1, how)
    if len(W) > len(state.W):  # memories of one entry a class are begun anew
        state = replace(state, spread={}, weighting={})
    bias = None if state.bias is None else F.pad(state.bias, (0, len(W) - len(state.bias)))
    return replace(state, W=W, class_of=_class_of(federation), bias=bias)


def without_removed(state: ServerState, federation: Federation, method: Method) -> ServerState:
    """No row of a class whose nodes have all left: zeros that are not spread, never answered, and in no file."""
    before, present = here(state), torch.tensor([c not in federation.gone for c in range(len(state.W))])
    changed = present != before
    if not bool(changed.any()):
        return state
    for class_id in (before & ~present).nonzero().flatten().tolist():
        _LOG.info("class %d has left before round %d; its row is gone", class_id, state.round_num + 1)
    state = closed(state, present)
    if method.spread and state.spread:
        state = replace(state, spread=entered(state.spread, method.spread.init(state.W), changed))
    return state


def _class_of(federation: Federation) -> Tensor:
    return torch.tensor([member.class_id for member in federation.members])
