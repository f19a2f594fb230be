"""The messages of the round in flight: what was asked of whom, and which replies are good."""

import logging
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import Event, Thread

import httpx
from flwr.app import Message, Metadata
from flwr.serverapp import Grid

from fedaws.flower import wire
from fedaws.flower.federation import Member
from fedaws.flower.wire import Expected, Limits, Rejected, Reply
from fedaws.types import ServerState

_LOG = logging.getLogger("flwr")
_LOOKS = 50  # for replies, a second, over all messages: what a SuperLink bears beside its nodes

Found = list[Message] | BaseException | None
"""Replies to a message; why there are none; or None for replies that are not to it."""


@dataclass(frozen=True)
class Asked:
    """One message of the round; Flower writes the message's id into its metadata when it is sent."""

    member: Member
    metadata: Metadata


@dataclass
class Mailbox:
    """What a bad or missing reply does: it is dropped, counted and logged, and the round goes on."""

    limits: Limits
    poll: float  # seconds between two looks
    deadline: float = 3600.0  # seconds that replies have
    asked: list[Asked] = field(default_factory=list)  # in this round,
    answers: dict[str, str | None] = field(default_factory=dict)  # by the node's name: None, or why it was dropped
    rejected: Counter[str] = field(default_factory=Counter)  # bad replies by reason, over the run

    def open_round(self) -> None:
        """Forget the round before."""
        self.asked, self.answers = [], {}

    @property
    def ttl(self) -> float:
        """Seconds that Flower keeps a message and its reply.

        Longer than the deadline: a reply that lies ready must not expire while it is fetched (seen under load).
        """
        return 2 * self.deadline + 60

    def collect(self, grid: Grid, messages: list[Message]) -> list[Message]:
        """Send, and gather the replies that come before the deadline.

        Each message has a thread that looks for its reply: one whose upload stalls keeps Flower waiting for minutes,
        and one that Flower cannot even unpack must not take the others with it.
        """
        waiting, replies = self._sent(grid, messages), list[Message]()
        found, over, end = SimpleQueue[tuple[str, Found]](), Event(), time.monotonic() + self.deadline
        pause = max(self.poll, len(waiting) / _LOOKS)
        for message_id in waiting:
            # A daemon: what has stalled ends with the process, and nobody waits for it.
            Thread(target=_look, args=(grid, message_id, found, over, pause), daemon=True).start()
        with suppress(Empty):
            while waiting:
                message_id, reply = found.get(timeout=max(0.0, end - time.monotonic()))
                if isinstance(reply, httpx.TransportError) or not isinstance(reply, Exception | list | None):
                    over.set()
                    raise reply
                if isinstance(reply, Exception):
                    self._drop(message_id, "bytes", f"Flower cannot unpack it: {type(reply).__name__}: {reply!s:.80}")
                    waiting.remove(message_id)
                elif reply is None:
                    self._drop("", "unasked", "it came for another message than the one it answers")
                else:
                    replies += reply
                    waiting.remove(message_id)
        over.set()
        for message_id in waiting:
            self._drop(message_id, "late", f"no reply in {self.deadline:g} s")
        return replies

    def _sent(self, grid: Grid, messages: list[Message]) -> list[str]:
        """The ids of the messages that the SuperLink took."""
        try:
            taken = list(grid.push_messages(messages))
        except httpx.HTTPStatusError as error:  # the round will be tried again
            _LOG.warning("the SuperLink answers %d", error.response.status_code)
            taken = []
        for message in messages:
            if message.metadata.message_id not in taken:
                self._drop(message.metadata.message_id, "failed", "the SuperLink did not take the message for it")
        return [message_id for message_id in taken if message_id]

    def good(self, replies: Iterable[Message], state: ServerState, unit_rows: bool) -> dict[int, Reply]:
        """The good replies by client number."""
        asked, good = {a.metadata.message_id: a for a in self.asked}, dict[int, Reply]()
        for message in replies:
            message_id = message.metadata.reply_to_message_id
            try:
                found = asked.get(message_id)
                if found is None:
                    raise Rejected("unasked", "it answers no message of this round")
                if found.member.client in good:
                    raise Rejected("replayed", "its client has answered already")
                good[found.member.client] = self._read(message, found, state, unit_rows)
                self.answers[found.member.name] = None
            except Rejected as error:
                self._drop(message_id, error.reason, str(error))
            except Exception as error:  # whatever else a stranger's records do to their readers
                self._drop(message_id, "bytes", f"unreadable: {type(error).__name__}: {error!s:.80}")
        return good

    def _read(self, message: Message, asked: Asked, state: ServerState, unit_rows: bool) -> Reply:
        if message.has_error():  # of a lost node the SuperLink tells, in its own name
            raise Rejected("failed", f"code {message.error.code}: {message.error.reason!s:.200}")
        if message.metadata.src_node_id != asked.metadata.dst_node_id:
            raise Rejected("sender", f"node {message.metadata.src_node_id} answers for another")
        expected = Expected(
            round_num=state.round_num,
            client=asked.member.client,
            class_id=asked.member.class_id,
            theta=state.theta,
            row_size=state.W.shape[1],
            unit_rows=unit_rows,
            limits=self.limits,
        )
        return wire.read_reply(message.content, expected)

    def _drop(self, message_id: str, reason: str, detail: str) -> None:
        names = [a.member.name for a in self.asked if a.metadata.message_id == message_id]
        self.rejected[reason] += 1
        for name in names:
            self.answers.setdefault(name, reason)  # a replay does not undo the answer
        _LOG.warning("dropped a reply of %s: %s", names[0] if names else "somebody", " ".join(detail.split()))


def _look(grid: Grid, message_id: str, found: SimpleQueue[tuple[str, Found]], over: Event, pause: float) -> None:
    """Look for the reply to one message until it is there or the round is over."""
    while not over.is_set():
        try:
            replies = list(grid.pull_messages([message_id]))
        except httpx.HTTPStatusError as error:  # the SuperLink's trouble, such as a locked database, not the reply's
            _LOG.warning("the SuperLink answers %d; looking again", error.response.status_code)
            replies = []
        except BaseException as error:  # Flower's word for a run that was stopped is no Exception
            found.put((message_id, error))
            return
        # What a reply says inside it is its sender's word: it must answer the message for which the SuperLink gave it.
        own = [reply for reply in replies if reply.metadata.reply_to_message_id == message_id]
        for _ in range(len(replies) - len(own)):
            found.put((message_id, None))
        if own:
            found.put((message_id, own))
            return
        over.wait(pause)
