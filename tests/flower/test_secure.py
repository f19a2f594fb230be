"""Secure sums through the real apps: the model of the simulation, and a server that sees sums alone."""

import logging
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

import fedaws
from fedaws import Config
from fedaws.flower import secure, wire
from fedaws.flower.federation import read_federation, write_federation
from fedaws.flower.questions import ENROLL, SUMS
from fedaws.flower.strategy import FedAwS
from fedaws.flower.wire import Expected, Limits, Rejected
from fedaws.privacy.secure_sums import Entry, Round, letter_size
from fedaws.privacy.sum_keeper import KEY_FILE, PEERS_FILE
from fedaws.record.folder import RunFolder
from flower_trial import Trial, make_trial
from helpers import refusal

Honest = Callable[[Message], Message]
SECURE = ["privacy.secure_sums=true", "privacy.min_cohort=3"]


@pytest.fixture
def secured(trial: Callable[..., Trial], tiny: Config) -> Callable[..., Trial]:
    """A federation of the tiny data that gives secure sums."""

    def make(clients: int = 4, classes: int | None = None, more: tuple[str, ...] = (), **settings: Any) -> Trial:
        return trial(clients, classes=classes, config=tiny.override([*SECURE, *more]), **settings)

    return make


def model_of(made: Trial) -> dict[str, torch.Tensor]:
    theta, W, *_ = RunFolder(made.place.run).load_model()
    return theta | {"W": W}


def lost(made: Trial, client: int, kind: str, rounds: range) -> None:
    """A node whose answers to one of the trips never come in these rounds."""
    done = [0]

    def deliver(message: Message, honest: Honest) -> Message | None:
        if message.metadata.message_type == "train":
            done[0] = cast(int, message.content.config_records["config"]["server-round"])
        return None if message.metadata.message_type == kind and done[0] in rounds else honest(message)

    made.node(client).deliver = deliver


# --- the same model -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        [],
        ["privacy.double_masks=false"],
        ["clients.local_steps=3", "clients.momentum=0.5"],
        ["clients.per_round=3"],
        ["method=fixed", "server.average=0.5"],
        ["method=fixed", "clients.weighting=examples", "clients.examples_per_step=all"],
    ],
    ids=lambda settings: " ".join(settings) or "preset",
)
def test_secure_sums_and_the_simulation_give_the_same_model(secured: Callable[..., Trial], settings: list[str]) -> None:
    # Three classes, the first of them with two nodes of different size; twelve rounds of half a step a client.
    made = secured(4, classes=3, more=tuple(settings), max_examples=10)
    made.serve()
    reference = fedaws.train(made.data(), config=made.config)
    for name, tensor in model_of(made).items():
        wanted = reference.W if name == "W" else reference.theta[name]
        torch.testing.assert_close(tensor, wanted, atol=1e-5, rtol=1e-4)
    last = RunFolder(made.place.run).metrics()[-1]
    assert (last["replies"], last["rejected"]) == (3 if "clients.per_round=3" in settings else 4, 0)
    assert last["loss"] == pytest.approx(reference.metrics[-1]["loss"], abs=1e-4)


@pytest.mark.parametrize("double", ["true", "false"])
def test_nodes_that_drop_out_at_either_stage_cost_their_own_part_alone(
    tmp_path: Path, tiny: Config, double: str
) -> None:
    """The same as with everything in the clear, when the first node's change does not arrive in rounds 2 to 5."""
    config = tiny.override(["data.classes=5"])
    hidden = config.override([*SECURE, f"privacy.double_masks={double}"])
    made = [make_trial(tmp_path / str(i), cfg, 5, deadline=0.3) for i, cfg in enumerate([config, hidden])]
    for each in made:
        lost(each, 0, "train", range(2, 6))
        lost(each, 1, "query.open", range(2, 8))
        each.serve()
    clear, masked = (model_of(each) for each in made)
    for name, tensor in masked.items():
        torch.testing.assert_close(tensor, clear[name], atol=1e-5, rtol=1e-4)
    assert made[1].remembered()["rejected"]["late"] == 4 + (6 if double == "true" else 4)


@pytest.mark.parametrize(("double", "kinds"), [("true", ["train", "query.open"]), ("false", ["train"])])
def test_a_round_in_which_nobody_is_missing_takes_two_trips_with_double_masks_and_one_without(
    secured: Callable[..., Trial], double: str, kinds: list[str]
) -> None:
    made, seen = secured(more=(f"privacy.double_masks={double}", "train.rounds=2")), list[str]()
    made.node(0).deliver = lambda message, honest: (seen.append(message.metadata.message_type), honest(message))[1]
    made.serve()
    assert seen == kinds * 2


# --- what the server sees -------------------------------------------------------------------------------------------


def replies_of(made: Trial) -> list[Message]:
    seen: list[Message] = []

    def deliver(message: Message, honest: Honest) -> Message:
        reply = honest(message)
        seen.append(reply)
        return reply

    made.node(0).deliver = deliver
    made.serve()
    return seen


@pytest.mark.parametrize(("method", "row"), [("fedaws", {"row"}), ("fixed", set())])
def test_nothing_is_in_the_clear_but_who_answers_and_the_row_of_methods_that_send_it(
    secured: Callable[..., Trial], method: str, row: set[str]
) -> None:
    first, second, *_ = replies_of(secured(more=(f"method={method}", "train.rounds=1")))
    assert set(first.content) == {"arrays", "own"}
    assert set(first.content["own"]) == {"client-id", "class-id", "round", "number", "letters"} | row
    assert [(a.dtype, name) for name, a in first.content["arrays"].items()] == [("uint32", "sum")]
    assert set(second.content) == {"own"}
    assert set(second.content["own"]) == {"number", "shares"}


def test_a_vector_of_a_real_run_looks_uniform(secured: Callable[..., Trial]) -> None:
    """Mean of 2³² values on [0, 1) is 1/2, its standard deviation 12^−½; five standard errors."""
    vectors = [
        reply.content["arrays"]["sum"].numpy() / 2**32
        for reply in replies_of(secured(more=("method=fixed",)))
        if "arrays" in reply.content
    ]
    numbers = np.concatenate(vectors)
    assert abs(numbers.mean() - 0.5) < 5 * (12 * len(numbers)) ** -0.5
    assert len(np.unique(numbers)) > 0.999 * len(numbers)


def test_below_the_threshold_the_server_learns_nothing_and_says_so(
    secured: Callable[..., Trial], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    made = secured(5, more=("data.classes=5",), deadline=0.3)
    for client in (0, 1, 2):
        lost(made, client, "query.open", range(1, 100))
    assert "round 1 had no quorum 3 times" in refusal(made.serve)
    assert "2 nodes opened their shares, wanted 3; the sum of 5 stays masked; nothing can be learnt" in caplog.text


def test_too_few_vectors_are_not_opened(
    secured: Callable[..., Trial], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    made = secured(deadline=0.3)
    for client in (0, 1):
        lost(made, client, "train", range(1, 100))
    asked = list[str]()
    made.node(2).deliver = lambda message, honest: (asked.append(message.metadata.message_type), honest(message))[1]
    assert "no quorum 3 times" in refusal(made.serve)
    assert "2 masked replies, wanted 3; nothing can be learnt from them" in caplog.text
    assert asked == ["train"] * 3


# --- what spoils a sum ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("double", ["true", "false"])
def test_another_theta_to_one_node_spoils_the_sum_and_tells_nothing(
    secured: Callable[..., Trial], double: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    made = secured(more=(f"privacy.double_masks={double}",))

    def deliver(message: Message, honest: Honest) -> Message:
        if message.metadata.message_type == "train":
            arrays = message.content.array_records["arrays"]
            name = next(iter(arrays))
            arrays[name] = Array(arrays[name].numpy() * np.float32(1.001))
        return honest(message)

    made.node(2).deliver = deliver
    assert "no quorum 3 times" in refusal(made.serve)
    assert ("the sum is spoilt" if double == "false" else "stays masked") in caplog.text


def test_a_node_that_adds_more_than_its_bound_is_noticed_in_the_sum() -> None:
    theta, limits = {"w": torch.zeros(100)}, Limits(1.0, 1.0, 10)
    layout = secure.layout_of(theta, limits)
    honest = secure.Part({"w": torch.full((100,), 0.1)}, 10, 0.5, 0.0, 0.0, {})
    vector = secure.encoded(honest, layout, Config(), limits, 2)
    mean = secure.decoded(vector + vector, layout, theta, 2, 2, limits)
    assert mean.weight == pytest.approx(2)
    assert mean.loss == pytest.approx(0.5)
    assert mean.norm == pytest.approx(1)
    lie = vector.copy()
    lie[:100] = 2**30 - 1  # every coordinate at the bound, the norm ten times it
    with pytest.raises(Rejected, match="the mean change of 2 nodes has norm 5"):
        secure.decoded(vector + lie, layout, theta, 2, 2, limits)


def test_a_change_beyond_the_bound_is_shortened_by_the_node() -> None:
    theta, limits = {"w": torch.zeros(4)}, Limits(1.0, 1.0, 10)
    layout = secure.layout_of(theta, limits)
    far = secure.Part({"w": torch.tensor([30.0, 0.0, 40.0, 0.0])}, 10, 0.5, 0.0, 0.0, {})
    mean = secure.decoded(secure.encoded(far, layout, Config(), limits, 1), layout, theta, 1, 1, limits)
    torch.testing.assert_close(mean.delta["w"], torch.tensor([0.6, 0.0, 0.8, 0.0]))


def test_weights_by_examples_stay_inside_the_sum() -> None:
    """(1·3 + 3·1) / 4 from two nodes with 1 and 3 examples."""
    theta, limits = {"w": torch.zeros(1)}, Limits(10.0, 10.0, 3)
    layout = secure.layout_of(theta, limits, [Entry("rows", (2,), 1.0)])
    cfg = Config().override(["clients.weighting=examples"])
    parts = [
        secure.Part({"w": torch.tensor([3.0])}, 1, 1.0, 0.0, 0.0, {"rows": torch.tensor([1.0, 0.0])}),
        secure.Part({"w": torch.tensor([1.0])}, 3, 0.0, 0.0, 0.0, {"rows": torch.tensor([0.0, 1.0])}),
    ]
    vectors = [secure.encoded(part, layout, cfg, limits, 2) for part in parts]
    mean = secure.decoded(vectors[0] + vectors[1], layout, theta, 2, 2, limits)
    torch.testing.assert_close(mean.delta["w"], torch.tensor([1.5]))
    assert mean.loss == pytest.approx(0.25)
    torch.testing.assert_close(mean.extra["rows"], torch.tensor([0.25, 0.75]))


# --- what a node refuses --------------------------------------------------------------------------------------------


def failures(made: Trial, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> str:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    refusal(made.serve)
    return caplog.text


def test_a_node_with_peers_answers_nothing_in_the_clear(
    secured: Callable[..., Trial], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = secured(settings="privacy.secure_sums=false")
    assert "in the clear; it gives secure sums alone" in failures(made, monkeypatch, caplog)


@pytest.mark.parametrize("kind", [SUMS, ENROLL])
def test_a_node_with_peers_answers_no_question_about_itself_alone(secured: Callable[..., Trial], kind: str) -> None:
    """The direction of its mean embedding is a template of its person, as good as its row."""
    made, reasons = secured(more=("train.rounds=1",)), list[str]()

    def asked(message: Message, honest: Honest) -> Message:
        if message.metadata.message_type == "train":
            own = dict(message.content.config_records["own"])
            own.pop("row", None)
            told = RecordDict({**message.content, "own": ConfigRecord({**own, "gram": False})})
            question = Message(told, message.metadata.dst_node_id, kind)
            question.metadata.__dict__["_message_id"] = question.object_id
            reply = honest(question)
            reasons.append(str(reply.error.reason) if reply.has_error() else "answered")
        return honest(message)

    made.node(0).deliver = asked
    made.serve()
    assert ["it gives secure sums alone" in reason for reason in reasons] == [True]


def test_a_node_without_peers_says_what_it_lacks(
    secured: Callable[..., Trial], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = secured()
    for node in made.nodes.values():
        del node.config["peers"]
    assert "start this node with --node-config 'peers=" in failures(made, monkeypatch, caplog)


def test_the_nodes_own_terms_hold_whatever_the_server_says(
    secured: Callable[..., Trial], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = secured(more=("privacy.min_cohort=4",), settings="privacy.min_cohort=2 clients.per_round=3")
    assert "a sum of 3 nodes; this node gives its part to 4 or more" in failures(made, monkeypatch, caplog)


def test_a_sum_is_answered_and_opened_once(secured: Callable[..., Trial]) -> None:
    made, errors = secured(more=("train.rounds=1",)), list[str]()

    def twice(message: Message, honest: Honest) -> Message:
        reply = honest(message)
        errors.append(str(honest(message).error.reason))
        return reply

    made.node(0).deliver = twice
    made.serve()
    assert "a number is answered once" in errors[0]
    assert "opened already" in errors[1]


def test_a_run_goes_on_after_the_server_has_forgotten_its_last_sum(secured: Callable[..., Trial]) -> None:
    made = secured(more=("train.rounds=2",))
    made.serve()
    made.settings["folder"] = str(made.place.root / "anew")
    made.serve()
    assert RunFolder(made.place.root / "anew").finished


def test_a_node_trains_by_the_settings_of_its_first_sum_alone(
    secured: Callable[..., Trial], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """More local steps, no clipping or another rate would make the sum more telling."""
    made = secured(more=("train.rounds=2",))
    made.serve()
    made.settings |= {"folder": str(made.place.root / "anew"), "settings": "clients.lr=7.0"}
    assert "has changed how this node is to train" in failures(made, monkeypatch, caplog)


def test_a_round_whose_sum_some_have_opened_is_tried_again_over_the_same_nodes(secured: Callable[..., Trial]) -> None:
    """Three of six a round; the second try would draw others, whom those that opened would refuse."""
    made = secured(6, more=("clients.per_round=3", "train.rounds=1", "data.classes=6"), deadline=0.3)
    asked, deaf = list[int](), list[int]()

    def listening(client: int) -> Callable[[Message, Honest], Message | None]:
        def deliver(message: Message, honest: Honest) -> Message | None:
            if message.metadata.message_type == "train":
                asked.append(client)
            elif len(deaf) < 2:  # of the first try's three two do not open
                deaf.append(client)
                return None
            return honest(message)

        return deliver

    for client in range(6):
        made.node(client).deliver = listening(client)
    made.serve()
    assert len(asked) == 6
    assert asked[:3] == asked[3:]


def test_a_node_whose_key_for_sums_is_not_listed_yet_is_not_asked(secured: Callable[..., Trial]) -> None:
    made = secured(5, classes=4, more=("train.rounds=2",))
    found = read_federation(made.place.federation)
    members = [*found.members[:4], replace(found.members[4], sums_key=None)]
    write_federation(made.place.federation, members, found.example_shape, "float32", "test.npz", found.sums)
    made.serve()
    assert made.node(4).received == []
    assert RunFolder(made.place.run).metrics()[-1]["replies"] == 4


# --- files and settings ---------------------------------------------------------------------------------------------


def test_init_gives_each_node_a_key_of_its_own_and_the_others_public_ones(secured: Callable[..., Trial]) -> None:
    made = secured()
    listed = {m.name: m.sums_key for m in read_federation(made.place.federation).members}
    assert len(set(listed.values())) == 4
    for member in made.members:
        folder = made.place.node(member.name)
        assert stat.S_IMODE((folder / KEY_FILE).stat().st_mode) == 0o600
        text = (folder / PEERS_FILE).read_text()
        assert all(f'{name} = "{key}"' in text for name, key in listed.items())
        assert "min_cohort = 3" in text


def test_without_secure_sums_no_such_files_are_made(trial: Callable[..., Trial]) -> None:
    made = trial()
    assert not (made.place.node("node-0") / PEERS_FILE).exists()
    assert "sums" not in made.place.federation.read_text()


REFUSED = {
    "method=agnostic": "weighs clients by their losses",
    "train.enroll=0.5": "ask each node for sums of its own",
    "train.last_step=ridge": "ask each node for sums of its own",
    "model.start_rows=means": "asks each node for sums of its own",
    "clients.weighting=examples": "needs a node's number of examples beside its row",
    "clients.per_round=2": "is below privacy.min_cohort=3",
    "privacy.min_cohort=9": "4 nodes are fewer than privacy.min_cohort=9",
}


@pytest.mark.parametrize("setting", REFUSED)
def test_what_sums_cannot_give_is_refused_in_one_line(tiny: Config, setting: str) -> None:
    config = tiny.override([*SECURE, setting])
    line = refusal(lambda: FedAwS({f"node-{i}": i for i in range(4)}, config=config))
    assert REFUSED[setting] in line


def test_a_federation_without_keys_for_sums_is_refused(trial: Callable[..., Trial]) -> None:
    made = trial(settings=" ".join(SECURE))
    assert "fedaws flower init -s privacy.secure_sums=true" in refusal(made.serve)


# --- messages at the edge -------------------------------------------------------------------------------------------


NAMES = ("a", "b", "c")
ABOUT = Round("0" * 32, 5, NAMES, 2, True, b"")
THETA = {"w": torch.zeros(3)}
LAYOUT = secure.layout_of(THETA, Limits())
LENGTH = 3 + 4


def good_reply() -> RecordDict:
    own = {"client-id": 1, "class-id": 2, "round": 4, "number": 5, "letters": [bytes(letter_size(ABOUT))] * 3}
    row = wire.row_bytes(torch.tensor([1.0, 0.0]))
    arrays = ArrayRecord({"sum": Array(np.zeros(LENGTH, np.uint32))})
    return RecordDict({"arrays": arrays, "own": ConfigRecord(own | {"row": row})})  # type: ignore[arg-type]


def read(content: RecordDict) -> secure.MaskedReply:
    expected = Expected(3, 1, 2, THETA, 2, Limits())
    return secure.read_masked(content, expected, ABOUT, LAYOUT, [], with_row=True)


def test_a_good_masked_reply_passes() -> None:
    assert read(good_reply()).masked.vector.tolist() == [0] * LENGTH


BAD_OWN: list[tuple[str, Any]] = [
    ("client-id", 0),
    ("class-id", 1),
    ("round", 5),
    ("number", 4),
    ("number", 5.0),
    ("letters", []),
    ("letters", [b"", b"", b""]),
    ("letters", [bytes(letter_size(ABOUT))] * 4),
    ("letters", b"abc"),
    ("letters", [1, 2, 3]),
    ("row", b"1234"),
    ("row", wire.row_bytes(torch.tensor([3.0, 0.0]))),
    ("more", 1),
]


@pytest.mark.parametrize(("key", "value"), BAD_OWN)
def test_a_masked_reply_that_is_not_what_it_must_be_is_rejected(key: str, value: Any) -> None:
    content = good_reply()
    content.config_records["own"][key] = value
    with pytest.raises(Rejected):
        read(content)


@pytest.mark.parametrize(
    "arrays",
    [
        {"sum": np.zeros(LENGTH - 1, np.uint32)},
        {"sum": np.zeros(LENGTH, np.int32)},
        {"sum": np.zeros(LENGTH, np.float32)},
        {"w": np.zeros(LENGTH, np.uint32)},
        {},
    ],
    ids=["short", "signed", "float", "named", "none"],
)
def test_a_vector_of_another_kind_is_rejected(arrays: dict[str, np.ndarray]) -> None:
    content = good_reply()
    content["arrays"] = ArrayRecord({name: Array(a) for name, a in arrays.items()})
    with pytest.raises(Rejected):
        read(content)


@pytest.mark.parametrize(("rows", "size"), [([], 2), ([Entry("first", (2,), 2.0)], 3)])
def test_a_second_vector_that_was_not_asked_for_or_is_of_another_size_is_rejected(rows: list[Entry], size: int) -> None:
    content = good_reply()
    content.array_records["arrays"]["rows"] = Array(np.zeros(size, np.uint32))
    with pytest.raises(Rejected):
        secure.read_masked(content, Expected(3, 1, 2, THETA, 2, Limits()), ABOUT, LAYOUT, rows, with_row=True)


@pytest.mark.parametrize("own", [{}, {"number": 4, "shares": [b""] * 2}, {"number": 5, "shares": [b"1", b"2"]}])
def test_opened_shares_of_another_kind_are_rejected(own: dict[str, Any]) -> None:
    with pytest.raises(Rejected):
        secure.read_opened(RecordDict({"own": ConfigRecord(own)}), ABOUT, ["a", "b"])


SUM: dict[str, Any] = {"federation": "0", "number": 5, "cohort": ["a", "b"], "threshold": 2, "double": True}
SUM |= {"clip-norm": 1.0, "max-examples": 3, "heard": [0, 0], "run": "0" * 32}


@pytest.mark.parametrize(
    "change",
    [
        {"cohort": "ab"},
        {"cohort": [1, 2]},
        {"heard": [0]},
        {"heard": [0, -1]},
        {"heard": [0.0, 1.0]},
        {"run": 7},
        {"number": "5"},
        {"double": 1},
        {"clip-norm": -1.0},
        {"clip-norm": 1},
        {"x": 1},
    ],
    ids=str,
)
def test_a_sum_of_another_kind_is_refused_by_the_node(change: dict[str, Any]) -> None:
    refusal(lambda: secure.read_sum(RecordDict({"sum": ConfigRecord(SUM | change)})))


@pytest.mark.parametrize(
    "own",
    [
        {},
        {"federation": "0", "number": 5, "names": ["a"], "letters": []},
        {"federation": "0", "number": 5, "names": ["a", "a"], "letters": [b"", b""]},
        {"federation": "0", "number": "5", "names": ["a"], "letters": [b""]},
        {"federation": "0", "number": 5, "names": [1], "letters": [b""]},
        {"federation": "0", "number": 5, "names": "a", "letters": [b""]},
    ],
    ids=str,
)
def test_a_question_for_shares_of_another_kind_is_refused_by_the_node(own: dict[str, Any]) -> None:
    refusal(lambda: secure.read_open_order(RecordDict({"own": ConfigRecord(own)})))
