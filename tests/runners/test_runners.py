from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedaws.config import ClientsConfig, Config, ModelConfig, ServerConfig, TrainConfig
from fedaws.core.aggregate import aggregate
from fedaws.core.algorithm import broadcast, run_round
from fedaws.core.methods import method_of
from fedaws.data import FederatedData, from_arrays
from fedaws.errors import FedawsError
from fedaws.models import build_encoder
from fedaws.runners import make_runner
from fedaws.runners.choose import choose
from fedaws.types import ServerState

UNEVEN = (9, 3, 16, 1, 7, 12)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_data(classes_per_client: int = 1, image: bool = False) -> FederatedData:
    y = torch.arange(len(UNEVEN)).repeat_interleave(torch.tensor(UNEVEN))
    shape = (len(y), 3, 8, 8) if image else (len(y), 10)
    return from_arrays(torch.randn(shape, generator=rng()), y, classes_per_client=classes_per_client)


def train(data: FederatedData, encoder: nn.Module, cfg: Config, rounds: int) -> ServerState:
    W = F.normalize(torch.randn(data.num_classes, cfg.model.embedding_dim, generator=rng(1)), dim=1)
    state = ServerState(0, {k: v.detach().clone() for k, v in encoder.named_parameters()}, W, data.class_of)
    run_clients = make_runner(cfg, method_of(cfg), data, encoder)
    for t in range(rounds):
        state = run_round(state, data.available, run_clients, cfg, rng(t), data.num_examples)
    return state


def config(runner: str, method: str, clients: ClientsConfig, block: int | str = "auto") -> Config:
    return Config.model_validate(
        {
            "method": method,
            "clients": clients,
            "model": ModelConfig(embedding_dim=8, hidden=(16,)),
            "server": ServerConfig(momentum=0.5),
            "train": TrainConfig(runner=runner, block=block, rounds=40),
        }
    )


def assert_same(a: ServerState, b: ServerState) -> None:
    torch.testing.assert_close(a.W, b.W, atol=1e-5, rtol=0)
    for k in a.theta:
        torch.testing.assert_close(a.theta[k], b.theta[k], atol=1e-5, rtol=0)
    assert a.loss == pytest.approx(b.loss, abs=1e-5)


@pytest.mark.parametrize("method", ["fedaws", "positive-only", "fixed", "softmax", "contrastive", "triplet", "fedavg"])
@pytest.mark.parametrize("weighting", ["uniform", "examples"])
@pytest.mark.parametrize("examples", [4, "all"])
def test_pooled_stacked_and_serial_agree_after_20_rounds(method: str, weighting: str, examples: int | str) -> None:
    data = make_data(2 if method == "fedavg" else 1)
    clients = ClientsConfig(examples_per_step=examples, lr=0.1, per_round=4, weighting=weighting)
    encoder = build_encoder(ModelConfig(embedding_dim=8, hidden=(16,)), (10,), seed=0)
    serial = train(data, encoder, config("serial", method, clients), 20)
    for runner in ("pooled", "stacked"):
        for block in ("auto", 3):
            assert_same(train(data, encoder, config(runner, method, clients, block), 20), serial)


@pytest.mark.parametrize(("optimizer", "momentum"), [("sgd", 0.0), ("sgd", 0.9), ("adam", 0.0), ("adagrad", 0.0)])
def test_stacked_and_serial_agree_over_several_local_steps(optimizer: str, momentum: float) -> None:
    data = make_data()
    lr = 0.1 if optimizer == "sgd" else 0.003
    clients = ClientsConfig(examples_per_step=4, lr=lr, local_steps=5, optimizer=optimizer, momentum=momentum)
    encoder = build_encoder(ModelConfig(embedding_dim=8, hidden=(16,)), (10,), seed=0)
    serial = train(data, encoder, config("serial", "fedaws", clients), 20)
    assert_same(train(data, encoder, config("stacked", "fedaws", clients), 20), serial)


def test_tiny_steps_at_a_schedules_end_agree_under_an_adaptive_server() -> None:
    # θ_i − θ would have lost its digits where θ is 10⁶ times as large as a step; Adagrad would blow the rest up.
    data = make_data()
    encoder = build_encoder(ModelConfig(embedding_dim=8, hidden=(16,)), (10,), seed=0)
    states = []
    for runner in ("serial", "stacked", "pooled"):
        clients = ClientsConfig(examples_per_step=4, lr=1e-4)
        tree = config(runner, "fedaws", clients).model_dump() | {
            "server": ServerConfig(optimizer="adagrad", lr=0.1),
            "train": TrainConfig(runner=runner, rounds=60),
        }
        states.append(train(data, encoder, Config.model_validate(tree), 60))
    for k in states[0].theta:
        torch.testing.assert_close(states[1].theta[k], states[0].theta[k], atol=2e-5, rtol=0)
        torch.testing.assert_close(states[2].theta[k], states[0].theta[k], atol=2e-5, rtol=0)


def test_convolutions_agree_too() -> None:
    data, clients = make_data(image=True), ClientsConfig(examples_per_step=4, lr=0.1)
    encoder = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 8))
    serial = train(data, encoder, config("serial", "fedaws", clients), 5)
    assert_same(train(data, encoder, config("pooled", "fedaws", clients), 5), serial)
    assert_same(train(data, encoder, config("stacked", "fedaws", clients), 5), serial)


@pytest.mark.parametrize("method", ["fedaws", "softmax"])
@pytest.mark.parametrize("block", ["auto", 3])
def test_pooled_stacked_and_serial_agree_on_weights_that_the_server_gives(method: str, block: int | str) -> None:
    data, clients = make_data(), ClientsConfig(examples_per_step=4, lr=0.1, weighting="examples")
    encoder = build_encoder(ModelConfig(embedding_dim=8, hidden=(16,)), (10,), seed=0)
    theta = {k: v.detach() for k, v in encoder.named_parameters()}
    state = ServerState(0, theta, F.normalize(torch.randn(6, 8, generator=rng(1)), dim=1), data.class_of)
    omega = torch.tensor([0.5, 4.0, 0.1, 1.0, 2.0, 0.4])  # of a sum of 8, unlike n_i and unlike each other
    sent = replace(broadcast(state, data.available, method == "softmax"), weights=omega)
    totals = {}
    for runner in ("serial", "pooled", "stacked"):
        cfg = config(runner, method, clients, block)
        updates = list(make_runner(cfg, method_of(cfg), data, encoder)(sent))
        assert torch.cat([update.weights for update in updates]).equal(omega)
        totals[runner] = aggregate(state, updates)
        if runner == "serial":
            for k in theta:  # one client an update: the mean by hand
                mean = sum(w * update.delta[k] for w, update in zip(omega, updates, strict=True)) / 8
                torch.testing.assert_close(totals["serial"].delta[k], mean, atol=1e-6, rtol=0)
    for other in (totals["pooled"], totals["stacked"]):
        assert other.loss == pytest.approx(totals["serial"].loss, abs=1e-6)
        torch.testing.assert_close(other.rows, totals["serial"].rows, atol=1e-5, rtol=0)
        torch.testing.assert_close(other.shared, totals["serial"].shared, atol=1e-6, rtol=0)
        for k in theta:
            torch.testing.assert_close(other.delta[k], totals["serial"].delta[k], atol=1e-6, rtol=0)


def test_a_local_step_is_the_papers_line_7() -> None:
    # One client, one step, by hand: θ − η∇, (w − η∇)/‖·‖ with g = x/‖x‖·sign: a 1×1 linear encoder in 2 dimensions.
    data = from_arrays([[1.0, 0.0], [0.0, 1.0]], [0, 1])
    encoder = nn.Linear(2, 2, bias=False)
    cfg = Config(method="positive-only", clients=ClientsConfig(lr=0.5), model=ModelConfig(embedding_dim=2))
    state = ServerState(0, {"weight": torch.eye(2)}, torch.tensor([[0.6, 0.8], [0.6, 0.8]]))
    cfg = Config.model_validate(cfg.model_dump() | {"train": TrainConfig(runner="serial", schedule="constant")})
    after = run_round(state, torch.tensor([0]), make_runner(cfg, method_of(cfg), data, encoder), cfg, rng())
    # g = (1, 0), s = 0.6, loss (0.9 − 0.6)² = 0.09, dloss/ds = −0.6, so w moves by +0.5·0.6·g = (0.3, 0).
    assert after.loss == pytest.approx(0.09)
    torch.testing.assert_close(after.W[0], F.normalize(torch.tensor([0.9, 0.8]), dim=0))
    # dloss/dg = −0.6·w; through the normalisation only its part orthogonal to g: (0, −0.48); x = (1, 0): first column.
    torch.testing.assert_close(after.theta["weight"], torch.tensor([[1.0, 0.0], [0.24, 1.0]]))


def test_auto_takes_the_fastest_that_fits() -> None:
    mlp, conv = nn.Linear(3, 2), nn.Conv2d(1, 1, 1)
    one, five = Config(), Config(clients=ClientsConfig(local_steps=5))
    assert choose(one, mlp) == choose(one, conv) == "pooled"
    assert choose(five, mlp) == "stacked"
    assert choose(five, conv) == "serial"


def test_pooled_refuses_what_it_cannot_do() -> None:
    with pytest.raises(
        FedawsError, match=r"needs one local SGD step, got clients.local_steps=5.*set train.runner=stacked"
    ):
        choose(Config(clients=ClientsConfig(local_steps=5), train=TrainConfig(runner="pooled")), nn.Linear(1, 1))


def test_rounds_keep_no_graph_and_no_growing_state() -> None:
    data, clients = make_data(), ClientsConfig(examples_per_step=4, lr=0.1)
    encoder = build_encoder(ModelConfig(embedding_dim=8, hidden=(16,)), (10,), seed=0)
    for runner in ("serial", "pooled", "stacked"):
        state = train(data, encoder, config(runner, "fedaws", clients), 3)
        assert not any(t.requires_grad for t in [state.W, *state.theta.values()])
        assert state.optimizer.keys() == {f"momentum/{k}" for k in state.theta}
        assert not state.row_optimizer | state.tables | state.spread | state.weighting | state.average


class WithIdleWeight(nn.Module):
    """An encoder with a parameter that takes no part."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.idle = nn.Linear(10, 8), nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)


def test_every_runner_leaves_an_idle_parameter_alone() -> None:
    data, clients = make_data(), ClientsConfig(examples_per_step=4, lr=0.1)
    for runner in ("serial", "pooled", "stacked"):
        state = train(data, WithIdleWeight(), config(runner, "fedaws", clients), 2)
        assert state.theta["idle"].tolist() == [1.0, 1.0]


class Transposed(nn.Module):
    """An encoder whose embeddings lie in memory dimension by dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 10, generator=rng()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.weight @ x.T).T


def reused() -> nn.Module:
    relu, twice = nn.ReLU(), nn.Linear(9, 9)
    return nn.Sequential(nn.Linear(10, 9), relu, twice, relu, twice, relu, nn.Linear(9, 8))


@pytest.mark.parametrize(
    "encoder",
    [
        lambda: nn.Sequential(nn.Linear(10, 5), nn.Linear(5, 9), nn.ReLU(), nn.Linear(9, 8)),
        lambda: nn.Sequential(nn.Linear(10, 9), nn.Flatten(), nn.ReLU(), nn.Linear(9, 8, bias=False)),
        reused,
        Transposed,
    ],
    ids=["a linear bottleneck", "flattened late", "layers used twice", "transposed"],
)
@pytest.mark.parametrize(("steps", "runner"), [(1, "pooled"), (1, "stacked"), (3, "stacked")])
def test_odd_encoders_train_alike_in_every_runner(encoder: Callable[[], nn.Module], steps: int, runner: str) -> None:
    data, clients = make_data(), ClientsConfig(examples_per_step=4, lr=0.1, local_steps=steps)
    results = []
    for name in ("serial", runner):
        torch.manual_seed(0)
        results.append(train(data, encoder(), config(name, "fedaws", clients), 5))
    assert_same(*results)
