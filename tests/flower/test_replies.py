"""Nothing crosses the edge unchecked."""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable
from threading import Event
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from fedaws import Config
from fedaws.flower import wire
from fedaws.flower.wire import Expected, Limits, Rejected
from fedaws.record.folder import RunFolder
from flower_trial import Trial
from helpers import refusal

THETA = {"a.weight": torch.zeros(3, 2), "a.bias": torch.zeros(3)}
EXPECTED = Expected(4, 7, 2, THETA, row_size=5, limits=Limits(1.0, 100.0, 1000))
ROW = torch.tensor([0.0, 0.6, 0.0, 0.8, 0.0])


def good(**changes: Any) -> RecordDict:
    """A reply that passes, with some of its parts replaced (`None` leaves a part out)."""
    parts: dict[str, Any] = {
        "weight": Array(np.full((3, 2), 0.1, dtype=np.float32)),
        "bias": Array(np.full(3, -0.1, dtype=np.float32)),
        "client-id": 7,
        "class-id": 2,
        "round": 5,
        "row": wire.row_bytes(ROW),
        "num-examples": 10,
        "loss": 0.5,
        "startup-seconds": 1.0,
        "compute-seconds": 0.1,
    }
    parts |= {name.replace("_", "-"): value for name, value in changes.items()}
    arrays = {f"a.{k}": parts[k] for k in ("weight", "bias") if parts[k] is not None}
    own = {k: parts[k] for k in ("client-id", "class-id", "round", "row") if parts[k] is not None}
    metrics = {k: parts[k] for k in ("num-examples", "loss", "startup-seconds", "compute-seconds")}
    return RecordDict(
        {
            "arrays": ArrayRecord(arrays),
            "own": ConfigRecord(own),
            "metrics": MetricRecord({k: v for k, v in metrics.items() if v is not None}),
        }
    )


def reason(content: RecordDict) -> str:
    with pytest.raises(Rejected) as rejected:
        wire.read_reply(content, EXPECTED)
    return rejected.value.reason


def test_a_good_reply_is_read_as_it_was_sent() -> None:
    found = wire.read_reply(good(), EXPECTED)
    assert torch.equal(found.delta["a.weight"], torch.full((3, 2), 0.1))
    assert torch.equal(found.row, ROW)
    assert (found.num_examples, found.loss) == (10, 0.5)
    assert found.norm == pytest.approx(0.3)  # √(9 · 0.1²)


def test_a_long_change_is_shortened_to_the_clip_norm() -> None:
    found = wire.read_reply(good(weight=Array(np.full((3, 2), 30.0, dtype=np.float32))), EXPECTED)
    norm = math.sqrt(sum(float(d.square().sum()) for d in found.delta.values()))
    assert found.norm == pytest.approx(math.sqrt(6 * 30**2 + 3 * 0.1**2))
    assert norm == pytest.approx(1.0, rel=1e-5)


def array(values: Any, dtype: Any = np.float32) -> Array:
    return Array(np.asarray(values, dtype=dtype))


def cut(data: bytes, length: int) -> Array:
    return Array("float32", (3,), "numpy.ndarray", data[:length])


BIAS = array([0.1, 0.2, 0.3])
not_numbers = st.sampled_from([math.nan, math.inf, -math.inf])
integers = st.integers(-(2**62), 2**62)
numbers = st.lists(st.integers(-9, 9), min_size=3, max_size=3)
sizes = st.lists(st.integers(0, 9), max_size=4)
BAD: dict[str, st.SearchStrategy[RecordDict]] = {
    "class": st.one_of(
        integers.filter(lambda i: i != 2).map(lambda i: good(class_id=i)),
        integers.filter(lambda i: i != 7).map(lambda i: good(client_id=i)),
        st.sampled_from(["2", 2.0, True, [2]]).map(lambda v: good(class_id=v)),
    ),
    "round": st.one_of(integers.filter(lambda i: i != 5).map(lambda i: good(round=i)), st.just(good(round="5"))),
    "shape": st.one_of(
        sizes.filter(lambda s: s != [3]).map(lambda s: good(bias=array(np.zeros(s)))),
        sizes.filter(lambda s: s != [3, 2]).map(lambda s: good(weight=array(np.zeros(s)))),
        st.sampled_from([(2, 3), (6,), (3, 2, 1), (1, 3, 2)]).map(lambda s: good(weight=array(np.zeros(s)))),
        st.binary(max_size=60).filter(lambda b: len(b) != 20).map(lambda b: good(row=b)),
        st.sampled_from(["row", 3, 0.5]).map(lambda v: good(row=v)),
        st.just(good(bias=Array("float32", (4,), "numpy.ndarray", BIAS.data))),
    ),
    "dtype": st.one_of(
        st.tuples(st.sampled_from([np.float64, np.float16, np.int32, np.bool_, np.complex64, ">f4"]), numbers).map(
            lambda p: good(bias=array(p[1], p[0]))
        ),
        st.one_of(st.sampled_from(["pickle", "", "torch"]), st.text(max_size=8)).map(
            lambda s: good(bias=Array("float32", (3,), s, BIAS.data))
        ),
        st.one_of(st.just("float64"), st.text(max_size=6)).map(
            lambda s: good(bias=Array(s, (3,), "numpy.ndarray", BIAS.data))
        ),
    ),
    "bytes": st.one_of(
        st.integers(0, len(BIAS.data) - 1).map(lambda n: good(bias=cut(BIAS.data, n))),
        st.binary(max_size=200).map(lambda b: good(bias=Array("float32", (3,), "numpy.ndarray", b))),
        st.integers(1, 50).map(lambda n: good(bias=Array("float32", (3,), "numpy.ndarray", BIAS.data + bytes(n)))),
        st.just(good(bias=Array("float32", (3,), "numpy.ndarray", BIAS.data + bytes(10_000)))),
    ),
    "not-finite": st.one_of(
        st.tuples(not_numbers, st.integers(0, 2)).map(lambda p: good(bias=array(np.eye(3)[p[1]] * 0 + p[0]))),
        not_numbers.map(lambda v: good(row=wire.row_bytes(torch.tensor([v, 0, 0, 0, 1.0])))),
        st.one_of(not_numbers, st.floats(max_value=-1e-9)).map(lambda v: good(loss=v)),
        not_numbers.map(lambda v: good(compute_seconds=v)),
        st.floats(min_value=1.1e9).map(lambda v: good(loss=v)),  # finite, but float32 or a sum may not be
        st.sampled_from([[0.5], 1]).map(lambda v: good(loss=v)),
    ),
    "norm": st.one_of(
        st.floats(101, 1e30).map(lambda v: good(bias=array([v, 0, 0]))),
        st.floats(1.01, 1e30).map(lambda v: good(row=wire.row_bytes(ROW * v))),
        st.floats(0, 0.99).map(lambda v: good(row=wire.row_bytes(ROW * v))),
    ),
    "examples": st.one_of(
        st.integers(-(2**62), 0).map(lambda n: good(num_examples=n)),
        st.integers(1001, 2**62).map(lambda n: good(num_examples=n)),
        st.sampled_from([10.0, [10], math.nan]).map(lambda v: good(num_examples=v)),
    ),
    "records": st.one_of(
        st.sampled_from(["weight", "bias", "client_id", "row", "round", "loss", "num_examples"]).map(
            lambda k: good(**{k: None})
        ),
        st.sampled_from(["arrays", "own", "metrics"]).map(
            lambda k: RecordDict({n: r for n, r in good().items() if n != k})
        ),
        st.text(max_size=8)
        .filter(lambda n: n not in ("arrays", "own", "metrics"))
        .map(lambda n: RecordDict({**good(), n: ConfigRecord({"x": 1})})),
        st.text(max_size=8)
        .filter(lambda n: n not in ("a.weight", "a.bias"))
        .map(lambda n: RecordDict({**good(), "arrays": ArrayRecord({**good().array_records["arrays"], n: BIAS})})),
        st.just(RecordDict({**good(), "own": MetricRecord({"x": 1})})),
        st.just(RecordDict()),
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_generated_bad_replies_are_dropped_each_for_its_reason(kind: str) -> None:
    """Ten thousand of them over the nine kinds."""
    counts: Counter[str] = Counter()

    @settings(max_examples=1200)
    @given(BAD[kind])
    def drop(content: RecordDict) -> None:
        counts[reason(content)] += 1

    drop()
    assert set(counts) == {kind}
    assert counts[kind] >= 10_000 / len(BAD)


def test_no_header_of_a_node_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A parser's time and memory are the stranger's to choose; NumPy's own header is compared instead."""
    for name in ("read_magic", "read_array_header_1_0", "read_array_header_2_0"):
        monkeypatch.setattr(np.lib.format, name, lambda *_, **__: pytest.fail("a header was parsed"))
    text = b"{'descr': '<f4', 'fortran_order': False, 'shape': (3,)" + b"L " * 1990 + b"}\n"
    header = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text
    assert reason(good(bias=Array("float32", (3,), "numpy.ndarray", header + bytes(12)))) == "bytes"
    assert torch.equal(wire.read_reply(good(), EXPECTED).delta["a.bias"], torch.full((3,), -0.1))


def test_an_array_in_fortran_order_is_read_as_it_was_meant() -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3).T / 100  # NumPy writes it column by column
    found = wire.read_reply(good(weight=Array(values)), EXPECTED)
    assert found.delta["a.weight"].tolist() == [pytest.approx(row) for row in ([0, 0.03], [0.01, 0.04], [0.02, 0.05])]


@pytest.mark.parametrize("hostile", ["\x1b[2J", "\x9b2J", "\x07", "\u202e", "\x00", "a\nWARNING: all is well"])
def test_what_a_node_says_cannot_steer_the_terminal_that_shows_the_log(
    trial: Callable[..., Trial],
    tiny: Config,
    hostile: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    made = trial(4, config=tiny.override(["train.rounds=1"]), deadline=5.0)
    made.node(1).deliver = lambda message, honest: Message(Error(2, f"oh {hostile}"), reply_to=message)
    made.node(2).deliver = answering(lambda content: RecordDict({**content, f"x{hostile}": content["metrics"]}))
    made.serve()
    lines = [record.getMessage() for record in caplog.records if "dropped" in record.getMessage()]
    assert len(lines) == 2
    assert all(line.isprintable() for line in lines)


Tamper = Callable[[Message], Message]


def answering(content: Callable[[RecordDict], RecordDict]) -> Callable[[Message, Tamper], Message]:
    """A node that changes its honest answer."""
    return lambda message, honest: Message(content(honest(message).content), reply_to=message)


def huge(content: RecordDict) -> RecordDict:
    arrays = {name: Array(a.numpy() * np.float32(1e6)) for name, a in content.array_records["arrays"].items()}
    return RecordDict({**content, "arrays": ArrayRecord(arrays)})


def test_bad_replies_are_counted_by_reason_and_the_rounds_go_on(trial: Callable[..., Trial]) -> None:
    made = trial(4, quorum=0.25, deadline=0.3)
    made.node(1).deliver = answering(huge)
    made.node(2).deliver = answering(lambda content: RecordDict({**content, "own": content["metrics"]}))
    earlier: list[Message] = []

    def replaying(message: Message, honest: Tamper) -> Message:
        earlier.append(honest(message))
        return earlier[0]

    made.node(3).deliver = replaying
    made.serve()
    folder, rounds = RunFolder(made.place.run), made.config.train.rounds
    assert folder.finished
    counted = made.remembered()["rejected"]
    # After a replay the answer itself may still come, so it is waited for.
    assert counted == {"norm": rounds, "records": rounds, "unasked": rounds - 1, "late": rounds - 1}


def test_a_reply_sent_twice_counts_once(trial: Callable[..., Trial], monkeypatch: pytest.MonkeyPatch) -> None:
    from inprocess_grid import InProcessGrid

    def doubled(self: InProcessGrid, ids: Any) -> list[Message]:
        return [m for i in ids if i in self._replies for m in [self._replies.pop(i)] * 2]

    monkeypatch.setattr(InProcessGrid, "pull_messages", doubled)
    made = trial(4)
    made.serve()
    assert made.remembered()["rejected"] == {"replayed": 4 * made.config.train.rounds}


def test_a_reply_in_anothers_name_is_dropped(trial: Callable[..., Trial]) -> None:
    made = trial(4)

    def as_another(message: Message, honest: Tamper) -> Message:
        answer = honest(message)
        answer.metadata.__dict__["_src_node_id"] = 100
        return answer

    made.node(1).deliver = as_another
    made.serve()
    assert made.remembered()["rejected"] == {"sender": made.config.train.rounds}


@pytest.mark.parametrize("error", [ValueError, IndexError, RecursionError, DecodeError])
def test_a_reply_that_flower_cannot_unpack_harms_nobody(
    trial: Callable[..., Trial], monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    from inprocess_grid import InProcessGrid

    honest = InProcessGrid.pull_messages

    def damaged(self: InProcessGrid, ids: Any) -> list[Message]:
        found = honest(self, ids)
        if any(m.metadata.src_node_id == 101 for m in found):
            raise error("not enough bytes")
        return found

    monkeypatch.setattr(InProcessGrid, "pull_messages", damaged)
    made = trial(4)
    made.serve()
    assert made.remembered()["rejected"] == {"bytes": made.config.train.rounds}


@pytest.mark.parametrize(
    ("call", "counted"), [("pull_messages", {}), ("push_messages", {"failed": 4}), ("get_nodes", {})]
)
def test_a_superlink_in_trouble_is_asked_again(
    trial: Callable[..., Trial], monkeypatch: pytest.MonkeyPatch, call: str, counted: dict[str, int]
) -> None:
    """Under load Flower's database is locked now and then, and the SuperLink answers 500: no node's fault."""
    from inprocess_grid import InProcessGrid

    honest, failures = getattr(InProcessGrid, call), list[str]()

    def failing(self: InProcessGrid, *args: Any) -> Any:
        if not failures:
            failures.append(call)
            raise httpx.HTTPStatusError(
                "locked", request=httpx.Request("POST", "http://x"), response=httpx.Response(500)
            )
        return honest(self, *args)

    monkeypatch.setattr(InProcessGrid, call, failing)
    made = trial(4, wait=5.0)
    made.serve()
    assert failures == [call]
    assert made.remembered()["rejected"] == counted
    assert RunFolder(made.place.run).metrics()[-1]["replies"] == 4


def test_a_reply_that_no_check_was_made_for_harms_nobody(
    trial: Callable[..., Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = wire.read_reply

    def surprised(content: RecordDict, expected: Expected) -> wire.Reply:
        if expected.client == 1:
            raise AttributeError("who would have thought of that")
        return honest(content, expected)

    monkeypatch.setattr(wire, "read_reply", surprised)
    made = trial(4)
    made.serve()
    assert made.remembered()["rejected"] == {"bytes": made.config.train.rounds}


def test_a_reply_whose_upload_stalls_keeps_nobody_waiting_beyond_the_deadline(
    trial: Callable[..., Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower looks for the parts of such a reply for three minutes and more; the other replies are there at once."""
    from inprocess_grid import InProcessGrid

    honest, never = InProcessGrid.pull_messages, Event()

    def stalling(self: InProcessGrid, ids: Any) -> list[Message]:
        found = honest(self, ids)
        if any(m.metadata.src_node_id == 100 for m in found):  # the first that is looked for
            never.wait(60)
        return found

    monkeypatch.setattr(InProcessGrid, "pull_messages", stalling)
    made = trial(4, deadline=0.4)
    started = time.monotonic()
    made.serve()
    never.set()
    assert time.monotonic() - started < 30
    assert made.remembered()["rejected"] == {"late": made.config.train.rounds}


def test_a_message_beside_the_reply_does_not_take_its_place(
    trial: Callable[..., Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A SuperLink also hands out what is addressed to the server without having been asked for."""
    from inprocess_grid import InProcessGrid

    honest, slipped_in = InProcessGrid.pull_messages, list[Message]()

    def with_another(self: InProcessGrid, ids: Any) -> list[Message]:
        if not slipped_in:
            slipped_in.append(Message(RecordDict(), 1, "train"))
            return slipped_in
        return honest(self, ids)

    monkeypatch.setattr(InProcessGrid, "pull_messages", with_another)
    made = trial(4)
    made.serve()
    assert made.remembered()["rejected"] == {"unasked": 1}


def test_a_run_that_was_stopped_ends(trial: Callable[..., Trial], monkeypatch: pytest.MonkeyPatch) -> None:
    from flwr.supercore.run import RunNotRunningException

    from inprocess_grid import InProcessGrid

    def stopped(self: InProcessGrid, ids: Any) -> list[Message]:
        raise RunNotRunningException

    monkeypatch.setattr(InProcessGrid, "pull_messages", stopped)
    with pytest.raises(RunNotRunningException):
        trial(4, deadline=5.0).serve()


def test_a_message_that_the_superlink_does_not_take_is_counted(
    trial: Callable[..., Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    from inprocess_grid import InProcessGrid

    honest = InProcessGrid.push_messages

    def forgetful(self: InProcessGrid, messages: Any) -> list[str]:
        return [
            "" if m.metadata.dst_node_id == 102 else i for m, i in zip(messages, honest(self, messages), strict=True)
        ]

    monkeypatch.setattr(InProcessGrid, "push_messages", forgetful)
    made = trial(4)
    made.serve()
    assert made.remembered()["rejected"] == {"failed": made.config.train.rounds}


def test_one_client_moves_theta_by_no_more_than_the_clip_norm(trial: Callable[..., Trial], tiny: Any) -> None:
    config = tiny.override(["train.rounds=1", "server.momentum=0", "clients.lr=100"])
    made = trial(4, config=config, clip_norm=0.01)
    before = {k: v.clone() for k, v in start_of(made).items()}
    made.serve()
    theta, *_ = RunFolder(made.place.run).load_model()
    moved = math.sqrt(sum(float((theta[k] - before[k]).square().sum()) for k in theta))
    assert 0 < moved <= 0.01 * (1 + 1e-4)


def test_the_largest_change_of_a_round_is_written_down_as_it_came(trial: Callable[..., Trial], tiny: Any) -> None:
    made, norms = trial(4, config=tiny.override(["train.rounds=1"])), list[float]()
    for clip in (0.01, 10.0):
        place = made.place.root / f"run-{clip}"
        made.settings |= {"clip-norm": clip, "folder": str(place)}
        made.serve()
        norms.append(RunFolder(place).metrics()[-1]["largest_change"])
    assert norms[0] == norms[1] > 0.01


def start_of(made: Trial) -> dict[str, torch.Tensor]:
    from fedaws.models import build_encoder, trainable

    encoder = build_encoder(made.config.model, made.data().x.shape[1:], made.config.seed)
    return {name: p.detach() for name, p in trainable(encoder).items()}


def sent(**changes: Any) -> RecordDict:
    """What the server sends, with parts of its own record or of the shared one replaced."""
    content = wire.order({"arrays": wire.pack(THETA), "config": wire.shared_config(Config(), 4)}, 7, 2, ROW)
    for name in ("config", "own"):
        record = content.config_records[name]
        record.update({k: v for k, v in changes.items() if k in record})
    return content


def test_a_node_reads_what_the_server_sent() -> None:
    order = wire.read_order(sent())
    assert (order.round_num, order.client, order.class_id) == (4, 7, 2)
    assert order.row is not None
    assert torch.equal(order.row, ROW)


@pytest.mark.parametrize(
    "change",
    [{"row": b"123"}, {"row": "abc"}, {"client-id": -1}, {"class-id": 2.0}, {"server-round": 2**40}, {"run": 3}],
)
def test_a_node_refuses_a_message_of_another_make_in_one_line(change: dict[str, Any]) -> None:
    assert "the server's message" in refusal(lambda: wire.read_order(sent(**change)))
    assert "the server's message" in refusal(lambda: wire.read_order(RecordDict()))


def test_a_node_is_told_neither_where_the_data_is_nor_how_the_rows_are_spread() -> None:
    config = Config().override(
        ["data.name=/secret/place.npz", "data.root=/secret", "name=secret", "spread.weight=3.25"]
    )
    told = str(wire.shared_config(config, 0)["run"])
    assert "secret" not in told
    assert "3.25" not in told
