"""The messages of the round in flight: what was asked of whom, and which replies are good."""

import logging
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from flwr.app import Message, Metadata
from flwr.serverapp import Grid

from fedaws.flower import wire
from fedaws.flower.federation import Member
from fedaws.flower.wire import Expected, Limits, Rejected, Reply
from fedaws.types import ServerState

_LOG = logging.getLogger("flwr")


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

        Longer than the deadline: fetching one reply whose upload stalled can take until then, and the others, which lie
        ready, must not have expired meanwhile (seen on a loaded machine).
        """
        return 2 * self.deadline + 60

    def collect(self, grid: Grid, messages: list[Message]) -> list[Message]:
        """Send, and gather the replies that come before the deadline.

        One by one: a reply that Flower cannot even unpack must not take the others with it.
        """
        waiting, replies = [i for i in grid.push_messages(messages) if i], list[Message]()
        end = time.monotonic() + self.deadline
        while waiting and time.monotonic() < end:
            for message_id in list(waiting):
                try:
                    found = list(grid.pull_messages([message_id]))
                except (ValueError, TypeError, KeyError, AttributeError) as error:
                    waiting.remove(message_id)
                    self._drop(message_id, "bytes", f"Flower cannot unpack it: {error!s:.80}")
                    continue
                if found:
                    waiting.remove(message_id)
                    replies += found
            if waiting:
                time.sleep(self.poll)
        for message_id in waiting:
            self._drop(message_id, "late", f"no reply in {self.deadline:g} s")
        return replies

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
