"""Who is there: which of the SuperLink's nodes are members of the federation, and whether they are enough."""

import logging
import math
import time
from collections.abc import Iterable
from typing import cast

import httpx
from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedaws.config import Config
from fedaws.errors import FedawsError
from fedaws.flower.federation import Federation, Member, NodeInfo
from fedaws.flower.mailbox import Mailbox

_LOG = logging.getLogger("flwr")
_SAY_EVERY = 15.0  # seconds of waiting for nodes
_CHEAP, _SELDOM = 0.2, 30  # seconds: who is online is asked every round; if it takes longer, once in so many times that


class Members:
    """The members of a federation as they come and go."""

    def __init__(
        self, federation: Federation, cfg: Config, mail: Mailbox, quorum: float, wait: float, trust_claims: bool
    ) -> None:
        self.federation = federation
        self.least = cfg.privacy.min_cohort if cfg.privacy.secure_sums else 1  # without whom no sum is asked for
        self._per_round, self._mail, self._quorum, self._wait = cfg.clients.per_round, mail, quorum, wait
        self._trust_claims = trust_claims
        self._claims: dict[int, int | None] = {}  # node id → client number, as told; None: nobody's
        self._strangers: set[int] = set()
        self._seen: dict[int, Member] = {}  # who was online when that was last asked,
        self._until = 0.0  # and until when that is taken for true

    def quorum_of(self, count: int) -> int:
        """How many of these are enough; 0.56 · 25 is 14, although not in floats."""
        return max(1, math.ceil(round(self._quorum * count, 9)))

    def online(self, grid: Grid, *, everybody: bool, ask: bool = False) -> dict[int, Member]:
        """The connected members by node id: all of them if they come in time, or a quorum of a round's.

        With `ask` the SuperLink is asked in any case: those that were there may be gone.
        """
        end = time.monotonic() + self._wait
        say_at = time.monotonic() + _SAY_EVERY
        ask = ask or everybody
        while True:
            found = self.identified(grid, ask)
            active = self.federation.active
            per_round = len(active) if self._per_round == "all" else min(self._per_round, len(active))
            needed = max(self.quorum_of(per_round), self.least)
            classes = {member.class_id for member in found.values()}
            if len(found) >= (len(active) if everybody else needed) and len(classes) > 1:
                return found
            here = {member.client for member in found.values()}
            missing = some([m.name for m in active if m.client not in here])
            now = time.monotonic()
            if now >= end:
                break
            if now >= say_at:
                say_at = now + _SAY_EVERY
                _LOG.info("waiting for %s: %d of %d online, %.0f s left", missing, len(found), len(active), end - now)
            time.sleep(self._mail.poll if ask else 0)
            ask = True
        if len(found) < needed:
            raise FedawsError(
                f"{len(found)} of {len(active)} members online after {self._wait:g} s, wanted {needed}; "
                f"start {missing}, or raise wait"
            )
        if len(classes) < 2:
            raise FedawsError(
                f"nodes of one class only are online after {self._wait:g} s, wanted two classes to tell apart; "
                f"start {missing or 'nodes of another class'}, or raise wait"
            )
        _LOG.warning("going on with %d of %d members, without %s", len(found), len(active), missing)
        return found

    def identified(self, grid: Grid, ask: bool) -> dict[int, Member]:
        """Who is connected, of those that the federation's file has by now; a stranger is told nothing.

        The SuperLink can only be asked for all nodes at once. Of many that takes long, so unless it must be, they are
        not asked for again at once: a node that has gone meanwhile is one that does not answer, and a node's id
        stands for one key for ever.
        """
        refreshed, started = self.federation.refreshed(), time.monotonic()
        if refreshed is not self.federation:
            self.federation, self._until = refreshed, 0.0
        if not ask and started < self._until:
            return self._seen
        try:
            nodes = list(grid.get_nodes())
            if self._trust_claims:
                self._ask_who(grid, [node.node_id for node in nodes if node.node_id not in self._claims])
        except httpx.HTTPStatusError as error:  # its database is locked, say; ask again
            _LOG.warning("the SuperLink answers %d", error.response.status_code)
            return {}
        self._seen = self._members_of(nodes)
        took = time.monotonic() - started
        self._until = started + took * (_SELDOM if took > _CHEAP else 0)
        return self._seen

    def _members_of(self, nodes: Iterable[NodeInfo]) -> dict[int, Member]:
        """One node for each member; a stranger is logged once."""
        found, clients = dict[int, Member](), set[int]()
        for node in nodes:
            claim = self._claims.get(node.node_id)
            if self._trust_claims:
                member = None if claim is None else self.federation.members[claim]
            else:
                member = self.federation.member(node)
            if member is not None and member.client not in clients:
                found[node.node_id] = member
                clients.add(member.client)
            elif node.node_id not in self._strangers:
                self._strangers.add(node.node_id)
                _LOG.warning("node %d (%r) is no member; it is sent nothing", node.node_id, node.name)
        return found

    def _ask_who(self, grid: Grid, node_ids: list[int]) -> None:
        """Insecure: which client do you say you are?"""
        self._mail.open_round()
        messages = [Message(RecordDict(), node_id, MessageType.QUERY, ttl=self._mail.ttl) for node_id in node_ids]
        for message in self._mail.collect(grid, messages):
            if message.has_error():  # it may know better next time
                continue
            own = message.content.config_records.get("own")
            claim = None if own is None else own.get("client-id")
            is_client = type(claim) is int and 0 <= claim < len(self.federation.members)
            self._claims[message.metadata.src_node_id] = cast(int, claim) if is_client else None


def some(names: list[str]) -> str:
    """The first few of many names."""
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return ", ".join(names[:10]) + more
