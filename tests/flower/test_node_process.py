"""A node that stays: it answers with its own app, and sends again what got lost."""

import threading
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any, cast

import httpx
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import RunNotRunningException
from flwr.supercore.task_identity import TaskIdentity

from fedaws.errors import FedawsError
from fedaws.flower.node import Link, Node, _ended_politely, load_app, read_key
from fedaws.flower.setup import create
from helpers import refusal

NODE, RUN = 7, 3


def trouble(status: int = 500) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "https://superlink/v1/fleet/push-messages")
    return httpx.HTTPStatusError("database is locked", request=request, response=httpx.Response(status))


class FakeLink:
    """A SuperLink in memory that takes objects as the real one does: by their ids, the same one once."""

    def __init__(self) -> None:
        self.waiting: list[Message] = []
        self.objects: dict[str, bytes] = {}
        self.replies: dict[str, str] = {}  # by the message that they answer
        self.trees: dict[str, Any] = {}
        self.failures: list[BaseException] = []  # of the next pushes
        self.pushes = 0

    def ask(self, kind: str, **values: Any) -> str:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = RUN, 1, 1
        message = Message(RecordDict({"own": ConfigRecord(values)}), NODE, kind)
        message.metadata.__dict__["_message_id"] = message.object_id
        self.objects |= {i: item.deflate() for i, item in get_all_nested_objects(message).items()}
        self.waiting.append(message)
        return message.object_id

    def receive(self) -> tuple[Message, Any] | None:
        return (message := self.waiting.pop(0), get_object_tree(message)) if self.waiting else None

    def send(self, reply: Message, tree: Any, seconds: float) -> tuple[set[str], str]:
        self.pushes += 1
        asked = reply.metadata.reply_to_message_id
        assert self.replies.setdefault(asked, reply.object_id) == reply.object_id  # one reply to a message
        self.trees[reply.object_id] = tree
        wanted = {item.object_id for item in walk(tree)} - set(self.objects)
        return wanted, "session"

    def push(self, run_id: int, session: str, object_id: str, content: bytes) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.objects[object_id] = content

    def link(self) -> Link:
        nothing: Callable[..., None] = lambda *_: None  # noqa: E731
        return Link(NODE, self.receive, self.send, nothing, nothing, lambda _, i: self.objects[i], self.push, nothing)

    def reply_to(self, asked: str) -> Message:
        found = inflate_object_from_contents(self.replies[asked], dict(self.objects))
        assert isinstance(found, Message)
        return found


def walk(tree: Any) -> list[Any]:
    return [tree, *(item for child in tree.children for item in walk(child))]


app = ClientApp()


@app.query()
def count(message: Message, context: Context) -> Message:
    """How often this node was asked in this run, and what it was started with."""
    seen = context.state.config_records.setdefault("seen", ConfigRecord({"times": 0}))
    seen["times"] = int(str(seen["times"])) + 1
    own = ConfigRecord({"times": seen["times"], "data": context.node_config["data"]})
    return Message(RecordDict({"own": own}), reply_to=message)


@app.train()
def fail(message: Message, context: Context) -> Message:
    raise FedawsError("this node has class 2, the server takes it for class 0")


def node(fake: FakeLink) -> tuple[Node, list[float]]:
    slept: list[float] = []
    return Node(app, {"data": "mine.npz"}, fake.link(), sleep=slept.append), slept


def test_a_message_is_answered_by_the_nodes_own_app() -> None:
    fake = FakeLink()
    asked = fake.ask("query", number=1)
    assert node(fake)[0].answer_next()
    reply = fake.reply_to(asked)
    assert reply.content["own"] == {"times": 1, "data": "mine.npz"}
    assert (reply.metadata.src_node_id, reply.metadata.reply_to_message_id) == (NODE, asked)


def test_what_the_app_keeps_lasts_over_the_run() -> None:
    fake = FakeLink()
    first, second = fake.ask("query", number=1), fake.ask("query", number=2)
    serving = node(fake)[0]
    assert serving.answer_next()
    assert serving.answer_next()
    assert [fake.reply_to(asked).content["own"]["times"] for asked in (first, second)] == [1, 2]


def test_a_reply_that_the_superlink_did_not_take_is_sent_again_and_is_one() -> None:
    """A SuperNode of Flower's sends it once: one of 120 was lost to a locked database with ten nodes."""
    fake = FakeLink()
    fake.failures = [trouble(), trouble(), trouble()]
    asked = fake.ask("query", number=1)
    serving, slept = node(fake)
    assert serving.answer_next()
    assert fake.reply_to(asked).content["own"] == {"times": 1, "data": "mine.npz"}
    assert (len(fake.replies), fake.pushes) == (1, 4)
    assert slept == [1.0, 3.0, 7.0]


def test_a_node_goes_on_after_a_reply_that_is_never_taken() -> None:
    fake = FakeLink()
    fake.failures = [trouble() for _ in range(5)]
    fake.ask("query", number=1)
    second = fake.ask("query", number=2)
    serving, _ = node(fake)
    assert not serving.answer_next()
    assert serving.answer_next()
    assert fake.reply_to(second).has_content()


def test_a_reply_to_a_run_that_has_ended_is_let_be() -> None:
    fake = FakeLink()
    fake.failures = [cast(Exception, RunNotRunningException())]
    fake.ask("query", number=1)
    serving, slept = node(fake)
    assert not serving.answer_next()
    assert slept == []


def test_a_mistake_is_told_to_the_server_in_one_line_and_the_node_goes_on(capfd: pytest.CaptureFixture[str]) -> None:
    fake = FakeLink()
    asked = fake.ask("train", number=1)
    assert node(fake)[0].answer_next()
    assert "the server takes it for class 0" in str(fake.reply_to(asked).error.reason)
    assert "Traceback" not in capfd.readouterr().err


def test_a_node_looks_often_after_a_message_and_seldom_when_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    fake, lost, clock, slept = FakeLink(), Event(), [0.0], list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock[0] += seconds
        if clock[0] > 120:
            lost.set()

    monkeypatch.setattr("fedaws.flower.node.time.monotonic", lambda: clock[0])
    Node(app, {}, fake.link(), poll=5.0, sleep=sleep).serve(lost)
    assert slept[:5] == [0.2] * 5
    assert slept[-1] == 5.0
    assert len(slept) < 80


def test_a_node_whose_signs_of_life_have_stopped_connects_anew() -> None:
    def die() -> None:
        raise RuntimeError("heartbeat failed")

    with _ended_politely() as lost:
        thread = threading.Thread(target=die)
        thread.start()
        thread.join()
        assert lost.is_set()


def test_an_app_of_ones_own_is_found_in_the_nodes_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", ["."])
    (tmp_path / "my_own_node_app.py").write_text(
        "from flwr.clientapp import ClientApp\nmine = ClientApp()\nnot_mine = 3\n"
    )
    assert isinstance(load_app("my_own_node_app:mine", tmp_path), ClientApp)
    assert "wanted a ClientApp" in refusal(lambda: load_app("my_own_node_app:not_mine", tmp_path))
    assert "wanted MODULE:NAME" in refusal(lambda: load_app("nothing_of_this_name", tmp_path))


def test_a_file_that_is_no_key_is_refused_in_one_line(tmp_path: Path, tiny: Any) -> None:
    place = create(tmp_path / "federation", tiny.override(["data.classes=2"]), 2)
    assert read_key(place.node("node-0") / "key").key_size == 384
    assert "is no private key of a node" in refusal(lambda: read_key(place.node("node-0") / "key.pub"))
