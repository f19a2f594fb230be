"""What nodes are asked beside training: sums of their embeddings, and the first row of a new class."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, MessageType
from flwr.serverapp import Grid
from torch import Tensor

from fedaws.config import Config
from fedaws.errors import FedawsError
from fedaws.flower import wire
from fedaws.flower.federation import Member
from fedaws.flower.mailbox import Mailbox
from fedaws.flower.members import Members, some
from fedaws.types import Params, ServerState, Sums

_LOG = logging.getLogger("flwr")

SUMS = f"{MessageType.QUERY}.sums"
"""The type of the question before the first round or after the last."""

ENROLL = f"{MessageType.QUERY}.enroll"
"""The type of the question to a node of a new class."""


@dataclass(frozen=True)
class Questions:
    """Whom to ask, and how."""

    cfg: Config
    mail: Mailbox
    members: Members
    attempts: int

    def sums(self, grid: Grid, state: ServerState, theta: Params, gram: bool) -> Sums:
        """n, Σz and perhaps Σzzᵀ of every member that answers; those that do not are asked again."""
        num_classes, size = state.W.shape
        shared: wire.Records = {"arrays": wire.pack(theta), "config": wire.shared_config(self.cfg, state.round_num)}
        told = dict[int, Sums]()
        members = [m for m in self.members.federation.active if m.class_id < num_classes]
        wanted = {m.client for m in members}
        for _attempt in range(self.attempts):
            online = self.members.online(grid, everybody=True)
            asked = {i: m for i, m in online.items() if m.client in wanted - told.keys()}
            told |= self.mail.ask(
                grid,
                SUMS,
                asked,
                lambda m: wire.order(shared, m.client, m.class_id, gram=gram),
                lambda content, _: wire.read_sums(content, size, gram, self.mail.limits),
                enough=self.members.quorum_of(len(asked)),
            )
            if len(told) == len(members):
                break
        missing = [m.name for m in members if m.client not in told]
        if len(told) < self.members.quorum_of(len(members)):
            raise FedawsError(
                f"{len(told)} of {len(members)} members told their sums; look after {some(missing)} and resume"
            )
        if missing:
            _LOG.warning("going on without the sums of %s", some(missing))
        return _added_up([(m.class_id, told[m.client]) for m in members if m.client in told], num_classes)

    def rows(
        self, grid: Grid, state: ServerState, arrays: ArrayRecord, newcomers: Mapping[int, Member]
    ) -> dict[int, Tensor]:
        """By class, the rows that new classes' nodes make of the mean of their embeddings; of those that answer."""
        shared: wire.Records = {"arrays": arrays, "config": wire.shared_config(self.cfg, state.round_num)}
        found = self.mail.ask(
            grid,
            ENROLL,
            newcomers,
            lambda m: wire.order(shared, m.client, m.class_id),
            lambda content, m: wire.read_enrolled(content, self.mail.expected(state, m)),
        )
        rows = dict[int, Tensor]()
        for client in sorted(found):  # several nodes of one class: the direction of their mean
            class_id = self.members.federation.members[client].class_id
            rows[class_id] = rows.get(class_id, torch.zeros(state.W.shape[1])) + found[client]
        return {class_id: F.normalize(row, dim=0) for class_id, row in rows.items() if float(row.norm()) > 1e-3}


def _added_up(parts: list[tuple[int, Sums]], num_classes: int) -> Sums:
    """The clients' sums by their classes; the second moment of all together."""
    classes = torch.tensor([class_id for class_id, _ in parts])
    counts = torch.zeros(num_classes, dtype=torch.int64)
    counts.index_add_(0, classes, torch.cat([part.counts for _, part in parts]))
    sums = torch.zeros(num_classes, parts[0][1].sums.shape[1])
    sums.index_add_(0, classes, torch.cat([part.sums for _, part in parts]))
    grams = [part.gram for _, part in parts if part.gram is not None]
    return Sums(counts, sums, torch.stack(grams).sum(0) if grams else None)
