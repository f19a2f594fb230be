"""The question after the last round: asked of all nodes, answered with sums alone."""

import json
from collections.abc import Callable

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from torch import nn

import fedaws
from fedaws import Config
from fedaws.flower import FedAwS, wire
from fedaws.flower.client_app import summed, trained
from fedaws.flower.questions import SUMS
from fedaws.flower.wire import Limits, Rejected
from fedaws.record.folder import RunFolder
from flower_trial import Trial
from helpers import refusal
from inprocess_grid import InProcessGrid, Node

Honest = Callable[[Message], Message]


def last_questions(made: Trial, client: int) -> list[tuple[Message, Message]]:
    """What a node is asked after the last round, and what it answers."""
    found: list[tuple[Message, Message]] = []

    def noted(message: Message, honest: Honest) -> Message:
        reply = honest(message)
        if message.metadata.message_type == SUMS:
            found.append((message, reply))
        return reply

    made.node(client).deliver = noted
    return found


@pytest.mark.parametrize("gram", [False, True])
def test_a_node_answers_with_its_number_of_examples_and_their_sums_and_nothing_else(
    trial: Callable[..., Trial], tiny: Config, gram: bool
) -> None:
    step = "train.last_step=ridge" if gram else "train.enroll=1"
    made = trial(4, config=tiny.override([step, "train.rounds=2"]))
    found = last_questions(made, 1)
    made.serve()
    ((asked, reply),) = found
    arrays = reply.content.array_records["arrays"]
    sizes = {name: len(array.data) for name, array in arrays.items()}
    # 128 bytes of NumPy's header, then float32 numbers of d = 5.
    assert sizes == {"sum": 128 + 4 * 5} | ({"gram": 128 + 4 * 25} if gram else {})
    assert dict(reply.content.metric_records["metrics"]) == {"num-examples": 8}
    assert set(reply.content) == {"arrays", "metrics"}
    # All else on the wire is Flower's own packing: of six or eight objects, names and ids of some hundred bytes.
    whole = sum(len(item.deflate()) for item in get_all_nested_objects(reply).values())
    assert whole - sum(sizes.values()) < 2000
    assert set(asked.content.config_records["own"]) == {"client-id", "class-id", "gram"}


def test_no_row_is_sent_with_the_last_question(trial: Callable[..., Trial], tiny: Config) -> None:
    made = trial(4, config=tiny.override(["train.enroll=1", "train.rounds=1"]))
    found = last_questions(made, 1)
    made.serve()
    ((asked, _),) = found
    data = b"".join(item.deflate() for item in get_all_nested_objects(asked).values())
    for row in RunFolder(made.place.run).load_model().W.numpy():
        assert row[:3].tobytes() not in data


def test_a_run_without_a_last_step_asks_nothing_more(trial: Callable[..., Trial], tiny: Config) -> None:
    made = trial(4, config=tiny.override(["train.rounds=2"]))
    found = last_questions(made, 0)
    made.serve()
    assert found == []


def test_a_node_that_does_not_answer_is_asked_again_and_its_class_keeps_its_row(
    trial: Callable[..., Trial], tiny: Config
) -> None:
    made = trial(4, config=tiny.override(["train.enroll=1e6", "train.rounds=2"]), deadline=0.5)
    asked: list[str] = []

    def silent(message: Message, honest: Honest) -> Message | None:
        if message.metadata.message_type != SUMS:
            return honest(message)
        asked.append("sums")
        return None

    made.node(1).deliver = silent
    made.serve()
    assert len(asked) == 3
    W = RunFolder(made.place.run).load_model().W
    made.settings["folder"] = str(made.place.root / "without")
    made.settings["config"] = str(made.place.root / "plain.toml")
    (made.place.root / "plain.toml").write_text(made.config.override(["train.enroll=0"]).to_toml())
    made.serve()
    plain = RunFolder(made.place.root / "without").load_model().W
    torch.testing.assert_close(W[1], plain[1])
    assert not torch.isclose(W[[0, 2, 3]], plain[[0, 2, 3]], atol=1e-3).all(1).any()


def test_too_few_sums_end_the_run_with_one_line_and_it_can_go_on(trial: Callable[..., Trial], tiny: Config) -> None:
    made = trial(4, config=tiny.override(["train.enroll=1", "train.rounds=2"]), deadline=0.3, quorum=0.75)
    for client in (1, 2):
        made.node(client).deliver = lambda message, honest: (
            None if message.metadata.message_type == SUMS else honest(message)
        )
    assert "2 of 4 members told their sums" in refusal(made.serve)
    for client in (1, 2):
        made.node(client).deliver = lambda message, honest: honest(message)
    made.serve()
    assert RunFolder(made.place.run).finished


def test_the_last_round_is_written_down_as_it_was_and_not_as_the_question_after_it(
    trial: Callable[..., Trial], tiny: Config
) -> None:
    made = trial(4, config=tiny.override(["train.enroll=1", "train.rounds=2"]), deadline=0.5)

    def silent(message: Message, honest: Honest) -> Message | None:
        return None if message.metadata.message_type == SUMS else honest(message)

    made.node(1).deliver = silent
    made.serve()
    *_, last = map(json.loads, (made.place.run / "participants.jsonl").read_text().splitlines())
    assert last == {
        "round": 2,
        "asked": 4,
        "replies": 4,
        "dropped": {},
        "answered": ["node-0", "node-1", "node-2", "node-3"],
    }


@pytest.mark.parametrize("settings", [[], ["server.average=0.5"]])
def test_a_second_start_after_a_failed_last_step_ends_as_if_it_had_not_failed(
    tiny: Config, settings: list[str]
) -> None:
    cfg = tiny.override(["train.enroll=1", "train.rounds=3", *settings])
    x = torch.randn(3, 8, 6, generator=torch.Generator().manual_seed(0))
    failing, told, app = [True], list[str](), ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return trained(message, x[int(str(context.node_config["me"]))], nn.Sequential(nn.Linear(6, 5)))

    @app.query("sums")
    def tell(message: Message, context: Context) -> Message:
        if failing[0]:
            raise RuntimeError("out of battery")
        return summed(message, x[int(str(context.node_config["me"]))], nn.Sequential(nn.Linear(6, 5)))

    encoder = nn.Sequential(nn.Linear(6, 5))
    first = ArrayRecord({k: v.clone() for k, v in encoder.state_dict().items()})
    nodes = {10 + i: Node(f"node-{i}", b"", {"me": str(i)}) for i in range(3)}
    grid = InProcessGrid(app, nodes, {})
    strategy = FedAwS({f"node-{i}": i for i in range(3)}, config=cfg, secret_rows=False)
    told.append(refusal(lambda: strategy.start(grid, first, num_rounds=3, timeout=5)))
    failing[0] = False
    result = strategy.start(grid, first, num_rounds=3, timeout=5)
    assert told[0].startswith("0 of 3 members told their sums")
    reference = fedaws.train(fedaws.from_arrays(x.flatten(0, 1), torch.arange(24) // 8), encoder, cfg)
    assert strategy.state is not None
    assert strategy.state.round_num == 3
    torch.testing.assert_close(strategy.state.W, reference.W, atol=1e-5, rtol=1e-4)
    assert list(result.train_metrics_clientapp) == [3]  # nothing but the last round came again


def sums(count: object, total: list[float], gram: list[list[float]] | None = None) -> RecordDict:
    arrays = {"sum": Array(np.array(total, np.float32))}
    if gram is not None:
        arrays["gram"] = Array(np.array(gram, np.float32))
    return RecordDict({"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": count})})  # type: ignore[dict-item]


def reason(content: RecordDict, gram: bool = False) -> str:
    with pytest.raises(Rejected) as rejected:
        wire.read_sums(content, 2, gram, Limits())
    return rejected.value.reason


def test_sums_that_unit_embeddings_can_have_are_read_as_they_were_sent() -> None:
    # Three embeddings: (1, 0), (0, 1), (0, 1).
    found = wire.read_sums(sums(3, [1, 2], [[1, 0], [0, 2]]), 2, True, Limits())
    assert (found.counts.tolist(), found.sums.tolist()) == ([3], [[1.0, 2.0]])
    assert found.gram is not None
    assert found.gram.tolist() == [[1.0, 0.0], [0.0, 2.0]]


def test_a_blank_example_whose_embedding_is_nothing_may_be_among_them() -> None:
    # Two embeddings: (1, 0), and (0, 0) of a blank picture. The trace is below their number, as it may be.
    found = wire.read_sums(sums(2, [1, 0], [[1, 0], [0, 0]]), 2, True, Limits())
    assert found.gram is not None
    assert float(found.gram.trace()) == 1.0


@pytest.mark.parametrize(
    ("content", "gram", "wanted"),
    [
        (sums(3, [3, 3]), False, "norm"),  # √18 > 3
        (sums(0, [0, 0]), False, "examples"),
        (sums(2.0, [0, 0]), False, "examples"),
        (sums(3, [float("nan"), 0]), False, "not-finite"),
        (sums(3, [0, 0, 0]), False, "shape"),
        (sums(3, [0, 0], [[1, 0], [0, 2]]), False, "records"),  # more than was asked
        (sums(3, [0, 0]), True, "records"),
        (sums(3, [0, 0], [[3, 0], [0, 3]]), True, "norm"),  # the trace is the number of examples
        (sums(3, [0, 0], [[-1, 0], [0, 0]]), True, "norm"),  # nor is it negative
        (sums(3, [0, 0], [[1, 1], [0, 2]]), True, "norm"),  # not symmetric
        (sums(3, [0, 0], [[4, 0], [0, -1]]), True, "norm"),  # a negative square
        (RecordDict({**sums(3, [0, 0]), "own": ConfigRecord({"x": 1})}), False, "records"),
    ],
)
def test_sums_that_cannot_be_are_dropped_each_for_its_reason(content: RecordDict, gram: bool, wanted: str) -> None:
    assert reason(content, gram) == wanted
