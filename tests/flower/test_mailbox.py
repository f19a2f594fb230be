"""Replies are seen soon after they come, by few threads."""

import threading
import time
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from fedaws.flower.federation import Member
from fedaws.flower.mailbox import Asked, Mailbox
from fedaws.flower.wire import Limits


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
    replies = mail.collect(grid, messages)  # type: ignore[arg-type]
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
        assert len(mail.collect(grid, messages)) == 40  # type: ignore[arg-type]
        mail.deadline = 1.0
    assert mail.rejected == {"late": 60}
    assert grid.most_threads - before <= 20 + 16 + 1
    grid.released.set()
    while mail._looking:
        time.sleep(0.01)
    assert len(mail.collect(grid, messages)) == 60  # type: ignore[arg-type]


def test_a_superlink_that_has_nothing_yet_is_not_asked_all_the_time() -> None:
    mail, messages = mailbox(4, deadline=1.0)
    grid = SlowGrid(seconds=60.0)
    mail.collect(grid, messages)  # type: ignore[arg-type]
    assert grid.looks <= 4 * 11  # one second, a look every tenth of it
