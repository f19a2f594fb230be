"""The rounds of a run, one after the other, in a simulation."""

import time
from collections.abc import Iterable
from dataclasses import replace

import torch

from fedaws.config import Config
from fedaws.core.algorithm import run_round
from fedaws.core.guard import clip_of
from fedaws.core.last_step import take_last_step
from fedaws.core.method import LastStep
from fedaws.core.owners import settled
from fedaws.hashing import hash64
from fedaws.training.protection import Protection, noise_on_rows
from fedaws.training.register import Register
from fedaws.training.session import Session
from fedaws.types import Broadcast, RunClients, ServerState, Update


def run_rounds(
    cfg: Config,
    people: Register,
    state: ServerState,
    session: Session,
    run_clients: RunClients,
    last_step: LastStep | None,
    private: Protection | None,
) -> ServerState:
    """The state after the last round, or after the one with which the session is over."""
    guard = noise_on_rows(cfg, len(people.data.available)) if private is None else private.guard
    run_clients = _timed(run_clients, session)
    counts = people.data.num_examples
    session.reporter.on_start(cfg.train.rounds if session.over else state.round_num, cfg.train.rounds)
    while state.round_num < cfg.train.rounds and not session.over:
        # A generator of its own for every round: nothing random needs to be saved.
        rng = torch.Generator().manual_seed(hash64(cfg.seed, "round", state.round_num))
        if private is not None and private.spent_all:
            session.journal.checkpoint(replace(state, best=session.best))
            raise private.over(state.round_num)
        began = time.perf_counter()
        now = state.round_num
        available = people.available(now)
        method = people.method_in(now)
        state = people.begin(state)
        state = run_round(state, available, run_clients, cfg, rng, counts, in_place=True, method=method, guard=guard)
        if state.round_num == cfg.train.rounds:
            state = settled(state, cfg, method)
        if last_step is not None and state.round_num == cfg.train.rounds:
            state = people.ended(take_last_step(state, session.model_of(state).theta, last_step, people.ask(now)))
        clip = {"clip": clip_of(state)} if state.clip else {}
        session.after_round(state, time.perf_counter() - began, clip)
    return state


def _timed(run_clients: RunClients, session: Session) -> RunClients:
    """The same clients, with the time that they take counted; what a round takes beside them is the server's."""

    def run(sent: Broadcast) -> Iterable[Update]:
        began = time.perf_counter()
        for update in run_clients(sent):
            session.spend("clients", began)
            yield update
            began = time.perf_counter()
        session.spend("clients", began)

    return run
