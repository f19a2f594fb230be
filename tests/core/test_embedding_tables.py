"""Sparse deltas of embedding tables: the same numbers as dense ones, and only the rows that a round touches."""

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedaws import Config, FederatedData, from_sparse
from fedaws.config import ServerConfig
from fedaws.core.algorithm import finish_round, run_round
from fedaws.core.embedding_tables import init_tables, mean_rows, step_table_
from fedaws.core.methods import method_of
from fedaws.models import build_encoder
from fedaws.runners import make_runner
from fedaws.runners.choose import choose
from fedaws.sparse import from_dense, from_lists, row_delta
from fedaws.training.train import initial_state
from fedaws.types import Broadcast, Memory, RunClients, ServerState, Update
from helpers import refusal


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_data(rows: int = 60, features: int = 40, labels: int = 8) -> FederatedData:
    x = torch.rand(rows, features, generator=rng(1)) * (torch.rand(rows, features, generator=rng(2)) < 0.15)
    sets = [[i % labels, (3 * i + 1) % labels] for i in range(rows)]
    return from_sparse(from_dense(x), from_lists(sets, labels))


def config(*settings: str) -> Config:
    base = ["model.name=bag", "model.embedding_dim=6", "model.hidden=[32]", "clients.per_round=5", "clients.lr=0.5"]
    return Config().override([*base, "clients.examples_per_step=3", "spread.center=true", *settings])


def start(cfg: Config, data: FederatedData) -> tuple[ServerState, torch.nn.Module]:
    encoder = build_encoder(cfg.model, data.x.shape[1:], 0)
    W = F.normalize(torch.randn(data.num_classes, 6, generator=rng(4)), dim=1)
    theta = {k: v.detach().clone() for k, v in encoder.named_parameters()}
    return ServerState(0, theta, W, data.class_of), encoder


def train(
    cfg: Config, data: FederatedData, rounds: int = 15, dense: bool = False, in_place: bool = False
) -> ServerState:
    state, encoder = start(cfg, data)
    run_clients = make_runner(cfg, method_of(cfg), data, encoder)
    run_clients = densely(run_clients) if dense else run_clients
    for t in range(rounds):
        state = run_round(state, data.available, run_clients, cfg, rng(t), data.num_examples, in_place)
    return state


def densely(run_clients: RunClients) -> RunClients:
    """The same clients, with zeros sent for the rows that they do not touch."""

    def run(sent: Broadcast) -> Iterable[Update]:
        for update in run_clients(sent):
            yield replace(update, delta={k: d.to_dense() if d.is_sparse else d for k, d in update.delta.items()})

    return run


def assert_same(a: ServerState, b: ServerState, atol: float = 1e-5) -> None:
    assert a.theta.keys() == b.theta.keys()
    for k in a.theta:
        torch.testing.assert_close(a.theta[k], b.theta[k], atol=atol, rtol=0)
    torch.testing.assert_close(a.W, b.W, atol=atol, rtol=0)


@pytest.mark.parametrize("hidden", ["[]", "[32]"])
def test_sparse_and_dense_deltas_give_the_same_parameters(hidden: str) -> None:
    cfg, data = config(f"model.hidden={hidden}", "server.table_optimizer=sgd", "server.lr=2.0"), make_data()
    assert_same(train(cfg, data), train(cfg, data, dense=True))


@pytest.mark.parametrize("optimizer", ["adagrad", "sgd"])
@pytest.mark.parametrize("method", ["fedaws", "softmax"])
@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_serial_and_pooled_agree(optimizer: str, method: str, weighting: str) -> None:
    settings = (f"server.table_optimizer={optimizer}", f"method={method}", f"clients.weighting={weighting}")
    data = make_data()
    serial = train(config(*settings, "train.runner=serial", "server.table_lr=0.1"), data)
    for block in ("auto", "2"):
        assert_same(train(config(*settings, f"train.block={block}", "server.table_lr=0.1"), data), serial)


@pytest.mark.parametrize("optimizer", ["adagrad", "sgd"])
def test_in_place_gives_the_same_numbers(optimizer: str) -> None:
    cfg, data = config(f"server.table_optimizer={optimizer}", "server.optimizer=adagrad", "server.lr=0.1"), make_data()
    assert_same(train(cfg, data, in_place=True), train(cfg, data), atol=0)


MEMORIES = ("theta", "optimizer", "row_optimizer", "tables", "spread", "weighting", "average")
REMEMBERING = ("spread.regularizer=nearest", "spread.neighbors=2", "spread.candidates=4", "spread.remember=true")


@pytest.mark.parametrize(
    "settings",
    [
        REMEMBERING,
        ("method=softmax", "spread.center=false"),
        ("method=softmax", "clients.sampled_classes=3", "spread.center=false"),
    ],
)
def test_in_place_or_not_three_rounds_give_the_same_state(settings: tuple[str, ...]) -> None:
    cfg, data = config("server.average=0.9", "server.optimizer=adam", "server.lr=0.1", *settings), make_data()
    states = []
    for in_place in (True, False):
        encoder = build_encoder(cfg.model, data.x.shape[1:], 0)
        state = initial_state(cfg, data, encoder)
        run_clients = make_runner(cfg, method_of(cfg), data, encoder)
        for t in range(3):
            old, before = state, deepcopy(state)
            state = run_round(old, data.available, run_clients, cfg, rng(t), data.num_examples, in_place)
            for part in () if in_place else MEMORIES:  # all of the old state is as it was
                assert all(old_tensor.equal(getattr(before, part)[k]) for k, old_tensor in getattr(old, part).items())
        states.append(state)
    first, second = states
    assert first.W.equal(second.W)
    for part in MEMORIES:
        ours, theirs = getattr(first, part), getattr(second, part)
        assert ours.keys() == theirs.keys(), part
        assert all(ours[k].equal(theirs[k]) for k in ours), part
    assert "table" not in first.average  # of tables there is none
    assert first.average
    assert not any(first.average[k].equal(first.theta[k]) for k in first.average)


def test_a_round_keeps_the_old_state_unless_it_may_take_it_over() -> None:
    cfg, data = config(), make_data()
    state, encoder = start(cfg, data)
    before = state.theta["table"].clone()
    run_clients = make_runner(cfg, method_of(cfg), data, encoder)
    for _ in range(2):
        kept = run_round(state, data.available, run_clients, cfg, rng(0))
    assert state.theta["table"].equal(before)
    taken = run_round(state, data.available, run_clients, cfg, rng(0), in_place=True)
    assert taken.theta["table"] is state.theta["table"]
    assert taken.theta["table"].equal(kept.theta["table"])


def test_rows_that_no_example_of_the_cohort_has_do_not_move() -> None:
    cfg, data = config("clients.per_round=1", "clients.examples_per_step=1"), make_data()
    state, encoder = start(cfg, data)
    after = run_round(state, data.available, make_runner(cfg, method_of(cfg), data, encoder), cfg, rng(0))
    moved = (after.theta["table"] != state.theta["table"]).any(1).nonzero().flatten().tolist()
    examples = [set(data.x[i : i + 1].indices.tolist()) for i in range(len(data.x))]
    assert set(moved) in examples


class _Whole(Tensor):
    """A table that refuses whatever would read or write all of it."""

    seen: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]
        if isinstance(result, Tensor) and result.shape[:1] == (1000,) and result.ndim == 2:
            cls.seen.append(func.__name__)
        return result


def test_nothing_of_the_tables_size_is_made_in_place() -> None:
    table = torch.zeros(1000, 4).as_subclass(_Whole)
    delta = row_delta(torch.tensor([3, 999]), torch.ones(2, 4), 1000)
    _Whole.seen.clear()
    memory = Memory(t=torch.zeros(1000))
    moved = step_table_("t", table, delta, memory, ServerConfig(), 1.0)
    assert set(_Whole.seen) == {"index_add_"}
    assert moved is table or moved.data_ptr() == table.data_ptr()


def test_row_wise_adagrad_begins_with_a_zero_for_each_row_and_sgd_with_nothing() -> None:
    tables = {"t": torch.ones(3, 2)}
    assert init_tables(tables, ServerConfig(table_optimizer="sgd")) == {}
    assert init_tables(tables, ServerConfig(table_optimizer="adagrad"))["t"].tolist() == [0, 0, 0]


def test_row_wise_adagrad_by_hand() -> None:
    cfg = ServerConfig(table_optimizer="adagrad", table_lr=0.5)
    table, memory = torch.zeros(3, 2), Memory()
    change = row_delta(torch.tensor([1]), torch.tensor([[3.0, 4.0]]), 3)  # length 5: a step of 0.5 along it
    step_table_("t", table, change, memory, cfg, 1.0)
    torch.testing.assert_close(table, torch.tensor([[0, 0], [0.3, 0.4], [0, 0]]))
    step_table_("t", table, change, memory, cfg, 1.0)  # length 5 √2 so far
    torch.testing.assert_close(table[1], torch.tensor([0.3, 0.4]) * (1 + 0.5**0.5))
    assert memory["t"].tolist() == [0, 50, 0]


def test_plain_sgd_on_the_table_has_its_own_learning_rate() -> None:
    cfg = ServerConfig(lr=0.1, table_optimizer="sgd", table_lr=100.0)
    change, memory = row_delta(torch.tensor([0]), torch.tensor([[0.01]]), 2), Memory()
    table = step_table_("t", torch.zeros(2, 1), change, memory, cfg, 1.0)
    assert table.flatten().tolist() == pytest.approx([1, 0])
    assert not memory


def test_the_mean_of_sparse_deltas_counts_absent_rows_as_zero() -> None:
    a = row_delta(torch.tensor([0, 2]), torch.tensor([[1.0], [2.0]]), 4)
    b = row_delta(torch.tensor([2, 3]), torch.tensor([[6.0], [4.0]]), 4)
    assert mean_rows([(1.0, a), (3.0, b)], 4.0).to_dense().flatten().tolist() == [0.25, 0, 5, 3]


def test_half_the_schedules_factor_is_half_the_step_of_row_wise_adagrad() -> None:
    cfg, rows = ServerConfig(table_lr=0.5), torch.tensor([[3.0, 4.0]])
    for factor in (1.0, 0.5):  # the clients' steps have the factor in them already
        change, memory = row_delta(torch.tensor([0]), factor * rows, 1), Memory()
        table = step_table_("t", torch.zeros(1, 2), change, memory, cfg, factor)
        torch.testing.assert_close(table, 0.5 * factor * rows / 5)
        assert memory["t"].tolist() == [25]


def test_a_schedule_scales_the_tables_step() -> None:
    data = make_data()
    cfg = config("train.schedule=linear", "train.rounds=4", "server.table_lr=0.2", "model.hidden=[]")
    state, encoder = start(cfg, data)
    run_clients = make_runner(cfg, method_of(cfg), data, encoder)
    for factor in (1.0, 0.75, 0.5, 0.25):
        after = run_round(replace(state, tables={}), data.available, run_clients, cfg, rng(0))
        lengths = (after.theta["table"] - state.theta["table"]).norm(dim=1)
        assert float(lengths.max()) == pytest.approx(0.2 * factor, rel=1e-3)  # the first step of a row is full
        state = after


def test_nobody_answers_and_nothing_moves() -> None:
    cfg, data = config(), make_data()
    state, _ = start(cfg, data)
    assert finish_round(state, [], cfg, rng(0)).theta["table"].equal(state.theta["table"])


@pytest.mark.parametrize("setting", ["clients.local_steps=2", "clients.optimizer=adam", "train.runner=stacked"])
def test_a_table_needs_one_local_sgd_step(setting: str) -> None:
    cfg = config(setting)
    message = refusal(lambda: choose(cfg, build_encoder(cfg.model, (40,), 0)))
    assert "needs one local SGD step" in message
    assert setting in message
