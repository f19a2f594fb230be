"""Replies are seen soon after they come, by few threads."""

import threading
import time
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from fedaws.flower.federation import Member
from fedaws.flower.mailbox import Asked, Mailbox
from fedaws.flower.wire import Limits, Rejected


class SlowGrid:
    """A SuperLink on which replies are ready some time after the messages came, and some are never wholly there."""

    def __init__(self, seconds: float, stalled: range = range(0)) -> None:
        self.seconds = seconds
        self.stalled = stalled
        self.released = threading.Event()
        self.most_threads = 0
        self.looks = 0
        self.ready = 0.0

    def push_messages(self, messages: list[Any]) -> list[str]:
        self.ready = time.monotonic() + self.seconds
        return [message.metadata.message_id for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Any]:
        self.looks += 1
        self.most_threads = max(self.most_threads, threading.active_count())
        (message_id,) = message_ids
        if int(message_id) in self.stalled:
            self.released.wait(60)
        time.sleep(0.001)
        if time.monotonic() < self.ready:
            return []
        return [SimpleNamespace(metadata=SimpleNamespace(reply_to_message_id=message_id))]


def mailbox(count: int, deadline: float) -> tuple[Mailbox, list[Any]]:
    mail = Mailbox(Limits(), poll=0.1, deadline=deadline)
    messages = []
    for i in range(count):
        metadata = SimpleNamespace(message_id=str(i), dst_node_id=100 + i)
        messages.append(SimpleNamespace(metadata=metadata))
        mail.asked.append(Asked(Member(i, i, f"node-{i}"), metadata))  # type: ignore[arg-type]
    return mail, messages


def test_the_replies_of_four_thousand_nodes_are_seen_soon_after_they_come() -> None:
    mail, messages = mailbox(4000, deadline=60.0)
    grid = SlowGrid(seconds=2.0)
    before = threading.active_count()
    started = time.monotonic()
    replies = list(mail.collect(grid, messages))  # type: ignore[arg-type]
    assert len(replies) == 4000
    assert mail.rejected == {}
    assert time.monotonic() - started < 30  # a look of a millisecond each, a few times; it took 80 s and more
    assert grid.most_threads - before <= 20


def test_stalled_replies_hold_up_nobody_and_cost_one_thread_a_node_over_all_rounds() -> None:
    mail, messages = mailbox(60, deadline=5.0)
    grid = SlowGrid(seconds=0.0, stalled=range(20))
    before = threading.active_count()
    for _ in range(3):
        mail.open_round()
        assert len(list(mail.collect(grid, messages))) == 40  # type: ignore[arg-type]
        mail.deadline = 1.0
    assert mail.rejected == {"late": 60}
    assert grid.most_threads - before <= 20 + 16 + 1
    grid.released.set()
    while mail._looking:
        time.sleep(0.01)
    assert len(list(mail.collect(grid, messages))) == 60  # type: ignore[arg-type]


def test_however_many_replies_stall_there_are_no_more_than_a_few_hundred_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fedaws.flower.mailbox._STALLED", 0.05)  # not to wait for minutes
    mail, messages = mailbox(400, deadline=5.0)
    grid = SlowGrid(seconds=0.0, stalled=range(400))
    before = threading.active_count()
    list(mail.collect(grid, messages))  # type: ignore[arg-type]
    grid.released.set()
    assert 50 < grid.most_threads - before <= 256


def read_as(kinds: dict[int, str]) -> Callable[[Any, Member], str]:
    """A reader for which some clients' replies are bad."""

    def read(content: Any, member: Member) -> str:
        if kinds.get(member.client) == "bad":
            raise Rejected("shape", "nonsense")
        return "good"

    return read


class Timed(SlowGrid):
    """Replies that are ready each after its own number of seconds; with none of them, never."""

    def __init__(self, after: dict[int, float]) -> None:
        super().__init__(0.0)
        self.after = after

    def pull_messages(self, message_ids: Iterable[str]) -> list[Any]:
        (message_id,) = message_ids
        seconds = self.after.get(int(message_id))
        if seconds is None or time.monotonic() < self.ready + seconds:
            return []
        metadata = SimpleNamespace(reply_to_message_id=message_id, src_node_id=100 + int(message_id))
        return [SimpleNamespace(metadata=metadata, has_error=lambda: False, content=None)]


def test_a_silent_node_costs_the_grace_after_the_quorum_and_not_the_deadline() -> None:
    mail, messages = mailbox(4, deadline=60.0)
    mail.enough, mail.grace = 2, 0.5
    started = time.monotonic()
    good = mail.good(mail.collect(Timed({0: 0.0, 1: 0.0, 2: 0.3}), messages), read_as({}))  # type: ignore[arg-type]
    assert sorted(good) == [0, 1, 2]  # 2 came within the grace
    assert time.monotonic() - started < 10
    assert mail.answers["node-3"] == "late"


def test_nonsense_that_comes_at_once_does_not_cut_off_those_that_work() -> None:
    """Three of five answer nonsense: a quorum of replies, but not of good ones."""
    mail, messages = mailbox(5, deadline=60.0)
    mail.enough, mail.grace = 2, 0.0
    grid = Timed({0: 0.0, 1: 0.0, 2: 0.0, 3: 1.0, 4: 1.0})
    good = mail.good(mail.collect(grid, messages), read_as(dict.fromkeys(range(3), "bad")))  # type: ignore[arg-type]
    assert sorted(good) == [3, 4]


def test_a_superlink_that_has_nothing_yet_is_not_asked_all_the_time() -> None:
    mail, messages = mailbox(4, deadline=1.0)
    grid = SlowGrid(seconds=60.0)
    list(mail.collect(grid, messages))  # type: ignore[arg-type]
    assert grid.looks <= 4 * 11  # one second, a look every tenth of it
