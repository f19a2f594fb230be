"""The messages of the round in flight: what was asked of whom, and which replies are good."""

import logging
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TypeVar

import httpx
from flwr.app import Message, Metadata, RecordDict
from flwr.serverapp import Grid

from fedaws.flower.federation import Member
from fedaws.flower.wire import Expected, Limits, Rejected, printable
from fedaws.types import ServerState

_LOG = logging.getLogger("flwr")
_AT_ONCE = 16  # looks for replies: each waits for the SuperLink's answer, so a slow one is asked less often
_STALLED = 2.0  # seconds after which a look does not count among these,
_MOST = 256  # but among these, which are threads
_TICK = 0.05  # seconds

Answer = TypeVar("Answer")
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
    deadline: float = 3600.0  # seconds that replies have,
    grace: float = math.inf  # and that they still have once there are enough good ones
    enough: float = math.inf  # good replies of this round,
    found: int = 0  # of which there are so many by now
    waited: float = 0.0  # seconds, over the run
    asked: list[Asked] = field(default_factory=list)  # in this round,
    answers: dict[str, str | None] = field(default_factory=dict)  # by the node's name: None, or why it was dropped
    rejected: Counter[str] = field(default_factory=Counter)  # bad replies by reason, over the run
    _looking: dict[int, float] = field(default_factory=dict)  # nodes that a thread looks for, since when

    def open_round(self) -> None:
        """Forget the round before."""
        self.asked, self.answers, self.enough, self.found = [], {}, math.inf, 0

    def order(self, member: Member, node_id: int, kind: str, content: RecordDict) -> Message:
        """A message of this round to a member."""
        message = Message(content, node_id, kind, ttl=self.ttl)
        self.asked.append(Asked(member, message.metadata))
        return message

    def ask(
        self,
        grid: Grid,
        kind: str,
        nodes: Mapping[int, Member],
        order: Callable[[Member], RecordDict],
        read: Callable[[RecordDict, Member], Answer],
        enough: float = math.inf,
    ) -> dict[int, Answer]:
        """A round of its own: ask these members, by node id; the good replies by client number."""
        self.open_round()
        messages = [self.order(member, node_id, kind, order(member)) for node_id, member in nodes.items()]
        self.enough = enough
        return self.good(self.collect(grid, messages), read)

    def expected(self, state: ServerState, member: Member) -> Expected:
        """What the member's reply must agree with."""
        place = state.round_num, member.client, member.class_id
        return Expected(*place, state.theta, state.W.shape[1], self.limits)

    @property
    def ttl(self) -> float:
        """Seconds that Flower keeps a message and its reply.

        Longer than the deadline: a reply that lies ready must not expire while it is fetched (seen under load).
        """
        return 2 * self.deadline + 60

    def collect(self, grid: Grid, messages: list[Message]) -> Iterator[Message]:
        """Send, and give the replies as they come: until the deadline, or a while after `good` has found enough.

        Good ones are counted, not replies: nodes that answer nonsense at once must not cut off those that work.
        """
        return self._replies(grid, self._sent(grid, messages))

    def _replies(self, grid: Grid, nodes: dict[str, int]) -> Iterator[Message]:
        names = self._names()
        waiting = set(nodes)
        end = time.monotonic() + self.deadline
        with closing(_Lookers(grid, nodes, self.poll, self._looking)) as lookers:
            while waiting:
                if self.found >= self.enough:
                    end, self.enough = min(end, time.monotonic() + self.grace), math.inf
                since = time.monotonic()
                news = lookers.news(end)
                self.waited += time.monotonic() - since
                if news is None:
                    break
                message_id, reply = news
                if isinstance(reply, httpx.TransportError) or not isinstance(reply, Exception | list | None):
                    raise reply
                if reply is None:
                    self._drop(None, "unasked", "it came for another message than the one it answers")
                    continue
                waiting.remove(message_id)
                if isinstance(reply, Exception):
                    why = f"Flower cannot unpack it: {type(reply).__name__}: {reply!s:.80}"
                    self._drop(names.get(message_id), "bytes", why)
                else:
                    yield from reply
        for message_id in nodes:
            if message_id in waiting:
                self._drop(names.get(message_id), "late", "no reply in time")

    def _sent(self, grid: Grid, messages: list[Message]) -> dict[str, int]:
        """The messages that the SuperLink took: their ids, and the nodes that they went to."""
        try:
            taken = set(grid.push_messages(messages))
        except httpx.HTTPStatusError as error:  # the round will be tried again
            _LOG.warning("the SuperLink answers %d", error.response.status_code)
            taken = set()
        names = self._names()
        sent = dict[str, int]()
        for message in messages:
            message_id = message.metadata.message_id
            if message_id and message_id in taken:
                sent[message_id] = message.metadata.dst_node_id
            else:
                self._drop(names.get(message_id), "failed", "the SuperLink did not take the message for it")
        return sent

    def _names(self) -> dict[str, str]:
        """Who was asked by which message."""
        return {asked.metadata.message_id: asked.member.name for asked in self.asked}

    def good(self, replies: Iterable[Message], read: Callable[[RecordDict, Member], Answer]) -> dict[int, Answer]:
        """The good replies by client number; `read` raises what is wrong with one."""
        asked = {a.metadata.message_id: a for a in self.asked}
        good = dict[int, Answer]()
        for message in replies:
            found = asked.get(message.metadata.reply_to_message_id)
            name = None if found is None else found.member.name
            try:
                if found is None:
                    raise Rejected("unasked", "it answers no message of this round")
                if found.member.client in good:
                    raise Rejected("replayed", "its client has answered already")
                _check_sender(message, found)
                good[found.member.client] = read(message.content, found.member)
                self.answers[found.member.name] = None
                self.found += 1
            except Rejected as error:
                self._drop(name, error.reason, str(error))
            except Exception as error:  # whatever else a stranger's records do to their readers
                self._drop(name, "bytes", f"unreadable: {type(error).__name__}: {error!s:.80}")
        return good

    def _drop(self, name: str | None, reason: str, detail: str) -> None:
        self.rejected[reason] += 1
        if name is not None:
            self.answers.setdefault(name, reason)  # a replay does not undo the answer
        _LOG.warning("dropped a reply of %s: %s", name or "somebody", printable(detail))


def _check_sender(message: Message, asked: Asked) -> None:
    if message.has_error():  # of a lost node the SuperLink tells, in its own name
        raise Rejected("failed", f"code {message.error.code}: {message.error.reason!s:.200}")
    if message.metadata.src_node_id != asked.metadata.dst_node_id:
        raise Rejected("sender", f"node {message.metadata.src_node_id} answers for another")


class _Lookers:
    """A few threads that look for the replies to any number of messages, one message a look.

    One a look: a reply whose upload stalls keeps Flower waiting for minutes, and one that Flower cannot unpack takes
    all others of the same look with it. A stalled look has its thread to itself and another takes its place; while it
    lasts its node is not looked for again, also in later rounds, so that a node costs one thread at most; and there are
    never more than a few hundred, whatever the nodes do.
    """

    def __init__(self, grid: Grid, nodes: dict[str, int], poll: float, looking: dict[int, float]) -> None:
        self._grid = grid
        self._nodes = nodes  # by message id
        self._poll = poll
        self._looking = looking  # node → since when; shared with the rounds before
        self._due = deque(nodes)  # of this sweep
        self._later = list[str]()  # of the next one
        self._began = time.monotonic()
        self._next: float | None = None  # when the next sweep begins
        self._orders = SimpleQueue[str | None]()
        self._found = SimpleQueue[tuple[str, Found]]()
        self._threads = 0
        self._in_flight = set[str]()

    def close(self) -> None:
        for _thread in range(self._threads):
            self._orders.put(None)

    def news(self, end: float) -> tuple[str, Found] | None:
        """What was found next; None once it is too late."""
        while True:
            now = time.monotonic()
            self._hand_out(now)
            try:
                message_id, reply = self._found.get(timeout=max(0.0, min(end - now, _TICK)))
            except Empty:
                if now >= end:
                    return None
                continue
            if reply == []:
                self._later.append(message_id)
            else:
                return message_id, reply

    def _hand_out(self, now: float) -> None:
        """Give the threads what is due, sweep after sweep; while nothing comes, half of the time."""
        if not self._due and self._next is None:
            self._next = now + max(self._poll, now - self._began)
        if self._next is not None and now >= self._next:
            self._due.extend(self._later)
            self._later.clear()
            self._began = now
            self._next = None
        looks = list(self._looking.values())
        free = min(_AT_ONCE - sum(now - since < _STALLED for since in looks), _MOST - len(looks))
        for _look in range(min(free, len(self._due))):
            message_id = self._due.popleft()
            if self._nodes[message_id] in self._looking:  # since an earlier round
                self._later.append(message_id)
                continue
            self._looking[self._nodes[message_id]] = now
            self._in_flight.add(message_id)
            if len(self._in_flight) > self._threads:
                self._threads += 1
                # A daemon: what has stalled ends with the process, and nobody waits for it.
                Thread(target=self._work, daemon=True).start()
            self._orders.put(message_id)

    def _work(self) -> None:
        while (message_id := self._orders.get()) is not None:
            try:
                found: list[Found] = self._look(message_id)
            except BaseException as error:  # Flower's word for a run that was stopped is no Exception
                found = [error]
            self._in_flight.remove(message_id)
            self._looking.pop(self._nodes[message_id])
            for reply in found:
                self._found.put((message_id, reply))

    def _look(self, message_id: str) -> list[Found]:
        """None for each reply to another message, then those to this one, if they are there."""
        try:
            replies = list(self._grid.pull_messages([message_id]))
        except httpx.HTTPStatusError as error:  # the SuperLink's trouble, such as a locked database, not the reply's
            _LOG.warning("the SuperLink answers %d; looking again", error.response.status_code)
            replies = []
        # What a reply says inside it is its sender's word: it must answer the message for which the SuperLink gave it.
        own = [reply for reply in replies if reply.metadata.reply_to_message_id == message_id]
        return [*[None] * (len(replies) - len(own)), own]
