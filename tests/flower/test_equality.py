"""The real apps give the numbers of `fedaws train`."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from safetensors.torch import load_file
from torch import nn

import fedaws
from fedaws import Config
from fedaws.config import SpreadConfig
from fedaws.flower import FedAwS, wire
from fedaws.flower.client_app import trained
from fedaws.flower.setup import create
from fedaws.models import build_encoder
from fedaws.record.folder import RunFolder
from fedaws.training.train import initial_state
from flower_trial import Trial
from helpers import refusal
from inprocess_grid import InProcessGrid, Node


def assert_same_model(trial: Trial, reference: fedaws.Run) -> None:
    theta, W, facts, _ = RunFolder(trial.place.run).load_model()
    assert facts.round == trial.config.train.rounds
    torch.testing.assert_close(W, reference.W, atol=1e-5, rtol=1e-4)
    for name, tensor in theta.items():
        torch.testing.assert_close(tensor, reference.theta[name], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    "settings",
    [
        [],
        ["clients.local_steps=3", "clients.momentum=0.5"],
        ["clients.per_round=2", "spread.regularizer=nearest", "spread.neighbors=2"],
        ["clients.weighting=examples", "clients.examples_per_step=all"],
        ["server.optimizer=adam", "server.lr=0.01", "server.momentum=0", "method=positive-only"],
        ["method=fixed", "server.average=0.5"],
        ["train.enroll=0.5", "server.average=0.5"],
        ["train.last_step=ridge"],
        ["train.last_step=lda"],
        ["method=agnostic", "options.step=2"],
        ["method=fixed-spread"],
        ["method=fixed", "train.enroll=0.5"],
        ["model.start_rows=means"],
        ["model.start_rows=means", "method=fixed-spread"],
    ],
    ids=lambda settings: " ".join(settings) or "preset",
)
def test_flower_and_the_simulation_give_the_same_model(
    trial: Callable[..., Trial], tiny: Config, settings: list[str]
) -> None:
    # Three classes, the first of them with two nodes of different size.
    made = trial(4, classes=3, config=tiny.override(settings))
    made.serve()
    assert_same_model(made, fedaws.train(made.data(), config=made.config))


def test_flower_and_the_simulation_measure_the_same(trial: Callable[..., Trial]) -> None:
    made = trial(4)
    made.serve()
    reference = fedaws.train(made.data(), config=made.config)
    rows = RunFolder(made.place.run).metrics()
    assert [row["round"] for row in rows] == [row["round"] for row in reference.metrics]
    for row, wanted in zip(rows, reference.metrics, strict=True):
        for name, value in wanted.items():
            assert name == "seconds" or row[name] == pytest.approx(value, abs=1e-4), name


def test_a_federation_of_the_configured_clients_is_fedaws_train(trial: Callable[..., Trial]) -> None:
    made = trial(4)
    made.serve()
    assert_same_model(made, fedaws.train(config=made.config))


def test_an_unauthenticated_simulation_gives_the_same_model_behind_its_flag(trial: Callable[..., Trial]) -> None:
    made = trial(4, trust_claims=True, federation="")
    made.nodes = {200 + i: Node(config={"partition-id": i, "num-partitions": 4}) for i in (2, 0, 3, 1)}
    made.serve()
    assert_same_model(made, fedaws.train(config=made.config))


def test_clients_of_two_classes_are_refused_in_one_line(
    trial: Callable[..., Trial], tiny: Config, tmp_path: Path
) -> None:
    made = trial(4, trust_claims=True, federation="", settings="data.classes_per_client=2")
    assert refusal(made.serve) == "data.classes_per_client=2 is not carried over Flower; set it to 1"
    two = tiny.override(["data.classes_per_client=2"])
    assert "set it to 1" in refusal(lambda: create(tmp_path / "two", two, 4))
    assert not (tmp_path / "two").exists()


def test_the_nodes_have_the_methods_options(trial: Callable[..., Trial], tiny: Config) -> None:
    made, seen = trial(4, config=tiny.override(["method=agnostic", "options.step=2", "train.rounds=1"])), list[Config]()

    def noted(message: Message, honest: Callable[[Message], Message]) -> Message:
        seen.append(wire.read_order(message.content).config)
        return honest(message)

    made.node(0).deliver = noted
    made.serve()
    assert [cfg.options for cfg in seen] == [{"step": 2}]


def test_rows_that_start_at_the_nodes_means_are_recorded(trial: Callable[..., Trial], tiny: Config) -> None:
    made = trial(4, config=tiny.override(["model.start_rows=means", "train.rounds=1"]))
    made.serve()
    first = load_file(made.place.run / "trace" / "W-00000000.safetensors")["rows"]
    reference = initial_state(made.config, made.data(), build_encoder(made.config.model, (6,), made.config.seed))
    torch.testing.assert_close(first, reference.W, atol=1e-5, rtol=1e-4)


def test_a_simulated_node_that_is_no_client_is_asked_once_who_it_is(trial: Callable[..., Trial]) -> None:
    made, kinds = trial(4, trust_claims=True, federation=""), list[str]()
    made.nodes = {200 + i: Node(config={"partition-id": i, "num-partitions": 5}) for i in range(5)}

    def noted(message: Message, honest: Callable[[Message], Message]) -> Message:
        kinds.append(message.metadata.message_type)
        return honest(message)

    made.nodes[204].deliver = noted
    made.serve()
    assert kinds == ["query"]


def test_without_the_flag_an_unregistered_node_takes_no_part(trial: Callable[..., Trial]) -> None:
    made = trial(4)
    made.nodes = {200 + i: Node(config={"partition-id": i}) for i in range(4)}
    assert "0 of 4 members online" in refusal(made.serve)


def test_the_strategy_drops_into_an_existing_server_app(tiny: Config) -> None:
    """Names of registered nodes and their classes, an encoder of one's own, Flower's own way of starting."""
    encoder = nn.Sequential(nn.Linear(6, 5))
    examples = {f"node-{i}": torch.randn(8, 6, generator=torch.Generator().manual_seed(i)) for i in range(3)}
    app, server = ClientApp(), ServerApp()
    found: list[FedAwS] = []

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return trained(message, examples[str(context.node_config["me"])], nn.Sequential(nn.Linear(6, 5)))

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAwS(
            {f"node-{i}": i for i in range(3)}, spread=SpreadConfig(weight=1.0), config=tiny, secret_rows=False
        )
        found.append(strategy)
        strategy.start(grid, ArrayRecord(encoder.state_dict()), num_rounds=tiny.train.rounds)

    nodes = {10 + i: Node(f"node-{i}", b"", {"me": f"node-{i}"}) for i in range(3)}
    InProcessGrid(app, nodes, {}).serve(server)
    data = fedaws.from_arrays(torch.cat([*examples.values()]), torch.arange(3).repeat_interleave(8))
    reference = fedaws.train(data, encoder, tiny.override(["spread.weight=1"]))
    assert found[0].state is not None
    torch.testing.assert_close(found[0].state.W, reference.W, atol=1e-5, rtol=1e-4)
