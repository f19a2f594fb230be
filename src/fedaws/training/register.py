"""Who is there while a run trains: clients that come enrol, those that go are gone from W."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from fedaws.config import Config
from fedaws.core.attendance import Attendance, among, attendance_of, entered
from fedaws.core.method import Method
from fedaws.core.start import mean_rows
from fedaws.data import FederatedData
from fedaws.errors import FedawsError
from fedaws.evaluate import Model, TestSet
from fedaws.evaluate.model import REMOVED
from fedaws.models import batch_norms
from fedaws.runners.sums import ask_sums
from fedaws.types import AskSums, ServerState


@dataclass(frozen=True)
class Register:
    """The attendance of a run's classes, and what it means for each part of a round."""

    cfg: Config
    method: Method
    data: FederatedData
    encoder: nn.Module
    first: ServerState  # before any round, with every class's row
    ask_all: AskSums
    attendance: Attendance

    def begin(self, state: ServerState) -> ServerState:
        """The state with the rows of those who come, and without the rows of those who are not there.

        A newcomer's device gets θ and makes its own row of the mean of its unit embeddings; rows that nobody trains
        are those of the start.
        """
        now = state.round_num
        here, new = self._here(now), self.attendance.newcomers(now).to(state.W.device)
        if now not in self._changes or bool(here.all() & ~new.any()):
            return state
        W = state.W.masked_fill(~here[:, None], 0.0)
        if bool(new.any()):
            rows = self.first.W
            if self.method.trains_own_row or self.cfg.model.start_rows == "means":
                rows = mean_rows(self._ask(new)(state.theta, False), rows)
            W = torch.where(new[:, None], rows.to(W.dtype), W)
        spread = state.spread
        if self.method.spread and spread:
            spread = entered(spread, self.method.spread.init(W), new | ~here)
        return closed(replace(state, W=W, spread=spread), here)

    def ask(self, round_num: int) -> AskSums:
        """Asks those who are there."""
        return self._ask(self._here(round_num))

    def available(self, round_num: int) -> Tensor:
        """The clients that have examples and are there."""
        here, clients = self._here(round_num), self._clients
        return clients if bool(here.all()) else clients[here[self.data.class_of[clients]]]

    def method_in(self, round_num: int) -> Method:
        """The method, which spreads the rows of those who are there."""
        return spread_among(self.method, self._here(round_num))

    @cached_property
    def _changes(self) -> frozenset[int]:
        return frozenset(self.attendance.changes)

    @cached_property
    def _clients(self) -> Tensor:
        return self.data.available

    def _here(self, round_num: int) -> Tensor:
        return self.attendance.present(round_num).to(self.first.W.device)

    def ended(self, state: ServerState) -> ServerState:
        """After a last step, which makes rows for all: those who are gone stay so."""
        here = self._here(state.round_num - 1)
        return state if bool(here.all()) else closed(state, here)

    def _ask(self, classes: Tensor) -> AskSums:
        if bool(classes.all()):
            return self.ask_all
        theirs = classes[self.data.y].nonzero().squeeze(1)
        x, y = self.data.x.index_select(0, theirs), self.data.y[theirs]
        return ask_sums(self.encoder, replace(self.data, x=x, y=y))


def register_of(
    cfg: Config,
    method: Method,
    data: FederatedData,
    encoder: nn.Module,
    first: ServerState,
    ask: AskSums,
    forgotten: Sequence[int] = (),
    round_num: int = 0,
) -> Register:
    """The register of a run; `ask` asks everybody, and those `forgotten` are gone from this round on."""
    attendance = attendance_of(cfg, data.num_classes)
    if forgotten:
        why = _no_meaning(cfg, method, data, encoder)
        if why:
            raise FedawsError(f"a run from which class {forgotten[0]} was removed cannot go on: {why}; train anew")
        attendance = attendance.without(torch.tensor(forgotten), round_num)
    return Register(cfg, method, data, encoder, first, ask, attendance)


def check_moves(cfg: Config, method: Method, data: FederatedData, encoder: nn.Module) -> Attendance:
    """Refuse to let clients come and go where it has no meaning."""
    why = _no_meaning(cfg, method, data, encoder)
    if why and (cfg.clients.join or cfg.clients.leave):
        raise FedawsError(f"clients.join and clients.leave have no meaning here: {why}; leave them out")
    return attendance_of(cfg, data.num_classes)


def _no_meaning(cfg: Config, method: Method, data: FederatedData, encoder: nn.Module) -> str:
    """Why nobody can come or go; empty if they can."""
    reasons = {
        f"method={method.name} sends all of W to everybody, also rows of those who are not there": method.rows == "all",
        "who comes or goes changes the sums of private rows by theirs, which shows it": method.rows == "private",
        f"method={method.name} makes rows of what the server knows of all classes": bool(method.needs),
        "clients of several classes come with all of them": data.class_of.ndim > 1,
        "examples with sets of labels belong to several people": not isinstance(data.y_test, Tensor),
        f"model.norm={cfg.model.norm} has statistics of everybody's examples": bool(batch_norms(encoder)),
        "privacy.noise counts on the same clients in every round": cfg.privacy.noisy,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def test_of(data: FederatedData, state: ServerState | Model) -> TestSet | None:
    """The test examples of those who are there."""
    test = TestSet(data.x_test, data.y_test, data.label_weights)
    if state.bias is None or not isinstance(data.y_test, Tensor):
        return test
    known = here(state)[data.y_test].nonzero().squeeze(1)
    if len(known) == len(data.y_test):
        return test
    return TestSet(data.x_test.index_select(0, known), data.y_test[known], data.label_weights) if len(known) else None


def here(state: ServerState | Model) -> Tensor:
    """Which classes have a row, [C]."""
    everybody = torch.ones(len(state.W), dtype=torch.bool, device=state.W.device)
    return everybody if state.bias is None else state.bias > REMOVED


def spread_among(method: Method, here: Tensor) -> Method:
    """The method, which spreads the rows of those who are there."""
    if method.spread is None or bool(here.all()):
        return method
    return replace(method, spread=among(method.spread, here))


def closed(state: ServerState, here: Tensor) -> ServerState:
    """The state with no row of those who are not there, and scores that never answer them."""
    bias = state.W.new_zeros(len(here)) if state.bias is None else state.bias.masked_fill(state.bias <= REMOVED, 0.0)
    bias = bias.masked_fill(~here, REMOVED)
    W = state.W.masked_fill(~here[:, None], 0.0)
    return replace(state, W=W, bias=bias if bool(bias.any()) else None)
