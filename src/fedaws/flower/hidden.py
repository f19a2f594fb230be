"""A node's part of a secure sum: all numbers behind masks, but for a row that is in the clear by its method."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from flwr.app import RecordDict
from torch import Tensor

from fedaws.core.method import Method, SumSpread
from fedaws.core.schedule import schedule
from fedaws.errors import FedawsError
from fedaws.flower import secure, wire
from fedaws.privacy.clipping import clipped
from fedaws.privacy.row_keeper import RowKeeper, untold
from fedaws.privacy.sum_keeper import SumKeeper
from fedaws.runners.at_home import at_home
from fedaws.types import Broadcast, Params, RunClients, Update


class Hidden:
    """What a node was asked for, and the rules of its own that it is asked by."""

    def __init__(self, content: RecordDict, asked: wire.Order, method: Method, peers: Path) -> None:
        self.content, self.asked, self.method, self.keeper = content, asked, method, SumKeeper(peers)
        rows = "clear" if method.own_spread is None else "private"
        if self.keeper.peers.rows != rows:
            raise FedawsError(
                f"the server wants rows={rows}, and this node gives rows={self.keeper.peers.rows} alone ({peers})"
            )
        self.record, self.limits = secure.read_sum(content)
        noise: Any = self.record["noise"]
        self.keeper.check_noise(noise, self.limits.clip_norm)
        if noise and not self.record["double"]:
            raise FedawsError("noise in shares without masks of each node's own: one late answer would have one share")
        if noise and (rows == "private" or asked.config.clients.weighting == "examples"):
            raise FedawsError(
                "noise in shares is for sums of changes of θ that weigh the same; the server wants others"
            )
        self.heard, run = secure.heard_of(self.record), str(self.record["run"])
        spread = method.own_spread
        self.home = None if spread is None else _Home(asked, spread, self.heard, run, self.keeper)

    def reply(self, theta: Params, update: Update, told: tuple[int, float, float, float]) -> RecordDict:
        """The answer; `told` are the number of examples, the loss, and the seconds of starting and computing."""
        cfg, clients, home = self.asked.config, len(self.heard), self.home
        factor = schedule(cfg.train, self.asked.round_num)
        limits, shares = secure.noise_terms(self.record, self.limits, theta, factor)
        layout = secure.layout_of(theta, limits, shares=shares)
        rows = secure.rows_layout(self.method, cfg.model.embedding_dim)
        about = secure.about_sum(self.content, self.record, layout, rows)
        delta = update.delta if shares is None else clipped(update.delta, limits.clip_norm)  # zeros if not finite
        part = secure.Part(delta, *(told if shares is None else (told[0], 0.0, 0.0, 0.0)), extra={})
        numbers = secure.encoded(part, layout, cfg, limits, clients)
        if shares is not None:  # loss and times have no noise, so they are not told
            numbers = secure.with_noise(numbers, layout, shares)
        if home is None:
            masked = self.keeper.mask(numbers, about)
        else:
            row = update.W[0] if home.tells else None
            whole = secure.rows_encoded(update.sums or {}, rows, clients) if home.tells else None
            masked = self.keeper.mask(numbers, about, whole, lambda: home.keep(row))
        return secure.masked_reply(self.asked, masked, about, update.W[0] if self.method.sends_row else None)


class _Home:
    """The row of a node that keeps it: as the server last counted it, and whether it may be told of in this round."""

    def __init__(
        self, asked: wire.Order, spread: SumSpread, heard: dict[str, int], run: str, keeper: SumKeeper
    ) -> None:
        rules, dim = keeper.peers, asked.config.model.embedding_dim
        if rules.name not in heard:
            raise FedawsError(f"a sum of a cohort without this node, {rules.name!r:.40}")
        self._asked, self._spread, self._names = asked, spread, frozenset(heard)
        self._means = _read_means(asked, spread, dim)
        self._heard, self._keeper = heard[rules.name], RowKeeper(keeper.path.parent, run)
        self._counted = self._keeper.counted(self._heard, asked.round_num + 1, dim)
        self.tells = untold(heard, rules.peers, self._counted.names, rules.min_cohort) is None

    def train(self, run_clients: RunClients, theta: Params) -> Iterable[Update]:
        """The local steps, on the row that is kept here."""
        row, heard = self._counted.row[None], torch.tensor([self._heard])
        sent = Broadcast(torch.tensor([0]), theta, row, self._asked.round_num, means=self._means, heard=heard)
        return at_home(run_clients, self._asked.config.train, self._spread)(sent)

    def keep(self, row: Tensor | None) -> None:
        """Write down the row that is about to be told of."""
        told = None if row is None else self._counted._replace(row=row, names=self._names)
        self._keeper.keep(self._heard, self._asked.round_num + 1, told)


def _read_means(asked: wire.Order, spread: SumSpread, dim: int) -> Params:
    """What all rows tell in the mean, if there can be such rows: by other means a row could be made to tell more."""
    if asked.means is None:
        raise FedawsError("the server's message has no means of the rows; is it of another version?")
    try:
        means = wire.unpack(asked.means, spread.unknown(dim))
    except wire.Rejected as error:
        raise FedawsError(f"the server's means of the rows are not for this node: {error}") from None
    why = spread.unsound(means)
    if why is not None:
        raise FedawsError(f"the server's means can be of no rows: {why}")
    return means


def open_sum(content: RecordDict, peers: Path) -> RecordDict:
    """The second trip: what opens the sum of those that answered, and nothing of a single one."""
    federation, number, letters = secure.read_open_order(content)
    return secure.opened_reply(number, SumKeeper(peers).open(federation, number, letters))
