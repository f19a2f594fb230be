"""Who may see what: a node gets θ and its own row, by its registered identity."""

import logging
from collections.abc import Callable

import pytest
import torch
from flwr.app import Message

from fedaws import Config
from fedaws.core.algorithm import broadcast
from fedaws.core.start import random_rows
from fedaws.flower import strategy as strategy_module
from fedaws.flower import wire
from fedaws.flower.strategy import FedAwS, first_rows
from fedaws.types import Broadcast, ServerState
from flower_trial import Trial, as_told
from inprocess_grid import Node


def rows_of_the_run(monkeypatch: object) -> list[torch.Tensor]:
    """Every W that a run has, before and after each round."""
    seen: list[torch.Tensor] = []

    def noted(state: ServerState, cohort: torch.Tensor) -> Broadcast:
        seen.append(state.W.clone())
        return broadcast(state, cohort)

    monkeypatch.setattr(strategy_module, "broadcast", noted)  # type: ignore[attr-defined]
    return seen


def traces(received: list[bytes], row: torch.Tensor) -> int:
    """How often three numbers of the row that follow one another are in what a node received."""
    data, pieces = b"".join(received), row.numpy().astype("<f4")
    return sum(data.count(pieces[i : i + 3].tobytes()) for i in range(len(pieces) - 2))


def test_no_byte_of_another_row_is_ever_sent_to_a_node(trial: Callable[..., Trial], monkeypatch: object) -> None:
    made, seen = trial(4), rows_of_the_run(monkeypatch)
    made.serve()
    assert len(seen) == made.config.train.rounds
    for member in made.members:
        received = made.node(member.client).received
        for W in seen:
            assert traces(received, W[member.class_id]) >= 3  # the search finds what is there
            for other in set(range(4)) - {member.class_id}:
                assert traces(received, W[other]) == 0


def test_what_a_node_is_told_does_not_give_it_the_first_rows(trial: Callable[..., Trial], monkeypatch: object) -> None:
    made, seen = trial(4, secret_rows=True), rows_of_the_run(monkeypatch)
    messages: list[Message] = []
    made.node(0).deliver = lambda message, honest: (messages.append(message), honest(message))[1]
    made.serve()
    guessed = random_rows(wire.read_order(messages[0].content).config, 4)
    assert not torch.isclose(guessed, seen[0], atol=1e-3).all(1).any()


def test_settings_that_flower_hands_to_every_node_are_warned_of(
    trial: Callable[..., Trial], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    trial(4, settings="spread.weight=3.25").serve()
    assert "every node is told settings='spread.weight=3.25'" in caplog.text


def test_without_secret_rows_the_first_rows_are_those_of_the_seed(
    trial: Callable[..., Trial], monkeypatch: object
) -> None:
    made, seen = trial(4), rows_of_the_run(monkeypatch)
    made.serve()
    assert torch.equal(seen[0], random_rows(made.config, 4))


def test_secret_rows_differ_from_run_to_run_and_are_spread_over_the_sphere() -> None:
    W = first_rows(Config().override(["model.embedding_dim=8"]), 20_000, secret=True)
    assert float((W.norm(dim=1) - 1).abs().max()) < 1e-6
    assert float(W.mean(0).abs().max()) < 5 * (8 * 20_000) ** -0.5  # five standard errors, 1/√(d·n) each
    assert float((W.T @ W / 20_000 - torch.eye(8) / 8).abs().max()) < 5 * 20_000**-0.5 / 8 * 2**0.5
    assert not torch.equal(W, first_rows(Config().override(["model.embedding_dim=8"]), 20_000, secret=True))


def test_a_node_that_claims_another_class_gets_nothing_of_it(trial: Callable[..., Trial], monkeypatch: object) -> None:
    made, seen = trial(4), rows_of_the_run(monkeypatch)
    made.node(1).config["class-id"] = 0
    made.node(1).config["partition-id"] = 0
    made.serve()
    assert all(traces(made.node(1).received, W[0]) == 0 for W in seen)


def test_a_stranger_and_a_known_name_with_another_key_are_sent_nothing(trial: Callable[..., Trial]) -> None:
    made = trial(4)
    made.nodes[900] = Node("nobody", b"key", {})
    made.nodes[901] = Node("node-0", as_told(made.members[1].public_key or ""), {})
    made.nodes[902] = Node("", made.node(0).public_key, {})
    made.serve()
    assert [made.nodes[i].received for i in (900, 901, 902)] == [[], [], []]


def test_nodes_are_asked_who_they_are_only_behind_the_flag(trial: Callable[..., Trial], tiny: Config) -> None:
    made = trial(4)
    kinds: list[str] = []

    def noted(message: Message, honest: Callable[[Message], Message]) -> Message:
        kinds.append(message.metadata.message_type)
        return honest(message)

    made.node(0).deliver = noted
    made.serve()
    assert set(kinds) == {"train"}


def test_evaluation_sends_nothing() -> None:
    strategy = FedAwS({"a": 0, "b": 1})
    assert strategy.configure_evaluate(1, None, None, None) == []  # type: ignore[arg-type]
