"""What a round's replies give: an update of each client in the clear, or one of all from their secure sum."""

import logging
from collections.abc import Iterable, Mapping
from statistics import median

import torch
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from fedaws.config import Config, PrivacyConfig
from fedaws.core.method import Method
from fedaws.core.sums import HEARD, hear, means_of
from fedaws.errors import FedawsError
from fedaws.flower import secure, wire
from fedaws.flower.federation import Member
from fedaws.flower.mailbox import Mailbox
from fedaws.flower.secure import MaskedReply
from fedaws.flower.wire import Reply
from fedaws.privacy import secure_sums
from fedaws.types import Params, ServerState, Update

_LOG = logging.getLogger("flwr")


def updates_of(
    replies: Iterable[Message], needed: int, mail: Mailbox, state: ServerState, cfg: Config, method: Method
) -> tuple[list[Update], dict[str, float]]:
    """One update of each client that answered, and the round's figures; none if they are too few."""
    cohort = [asked.member.client for asked in mail.asked]
    good = mail.good(replies, lambda content, member: wire.read_reply(content, mail.expected(state, member)))
    figures = _figures(list(good.values()))
    if len(good) < needed:
        _LOG.warning("round %d: %d good replies, wanted %d", state.round_num + 1, len(good), needed)
        return [], figures
    weights = _weights(cohort, good, state, cfg, method)
    # By client number, not in the order of arrival: sums of floats depend on it.
    return [
        Update(torch.tensor([i]), r.delta, r.row[None], torch.tensor([weights[i]]), torch.tensor([r.loss]))
        for i, r in sorted(good.items())
    ], figures


def _weights(
    cohort: list[int], good: Mapping[int, Reply], state: ServerState, cfg: Config, method: Method
) -> dict[int, float]:
    """ω of each client: the method's own, of all that were asked; or n_i; or 1."""
    if method.weighting:
        memory = state.weighting or method.weighting.init(state.W)
        weights = method.weighting.weights(memory, state.classes(torch.tensor(cohort)))
        return dict(zip(cohort, weights.tolist(), strict=True))
    by_examples = cfg.clients.weighting == "examples"
    return {client: float(reply.num_examples) if by_examples else 1.0 for client, reply in good.items()}


def _figures(good: list[Reply]) -> dict[str, float]:
    """What the round's log line says beside the loss."""
    if not good:
        return {"replies": 0}
    return {
        "replies": len(good),
        "largest-change": max(r.norm for r in good),
        "startup-seconds": median(r.startup_seconds for r in good),
        "compute-seconds": median(r.compute_seconds for r in good),
    }


# --- secure sums ----------------------------------------------------------------------------------------------------

Replies = dict[str, MaskedReply]
"""By the names of the nodes, in the order of their client numbers."""
Opened = dict[str, dict[str, bytes]]
"""Shares of what lifts the masks, by the names of those who opened them and of those whose they are."""


class SecureSum:
    """The sum over one round's cohort: `record` asks for it, `update_of` learns it from the replies.

    `noise` is the multiplier of what the nodes add in shares, 0 for none; `factor` is the schedule's, by which the clip
    falls.
    """

    def __init__(
        self,
        grid: Grid,
        mail: Mailbox,
        method: Method,
        state: ServerState,
        members: list[Member],
        shared: wire.Records,
        privacy: PrivacyConfig,
        federation: str,
        run_id: str,
        after: int,
        noise: float,
        factor: float,
    ) -> None:
        self._grid, self._mail, self._method, self._state = grid, mail, method, state
        self._names = {m.client: m.name for m in members}
        counted, number = state.spread.get(HEARD), secure.new_number(after)
        heard = {m.name: 0 if counted is None else int(counted[m.client]) for m in members}
        self.record = secure.sum_record(federation, number, heard, run_id, privacy, mail.limits, noise)
        self._limits, self._shares = secure.noise_terms(self.record, mail.limits, state.theta, factor)
        self._layout = secure.layout_of(state.theta, self._limits, shares=self._shares)
        self._rows = secure.rows_layout(method, state.W.shape[1])  # of the second vector, of private rows
        self.about = secure.about_sum(RecordDict({**shared}), self.record, self._layout, self._rows)
        self.shown = not self.about.double  # whether nodes may have opened it

    def update_of(self, replies: Iterable[Message], needed: int) -> tuple[list[Update], dict[str, float]]:
        """One update of all that answered, and the round's figures; none, and nothing learnt, if they are too few."""
        state, about, method = self._state, self.about, self._method
        good = self._mail.good(
            replies,
            lambda content, member: secure.read_masked(
                content, self._mail.expected(state, member), about, self._layout, self._rows, method.sends_row
            ),
        )
        round_num = state.round_num + 1
        figures: dict[str, float] = {"replies": len(good)}
        if len(good) < needed:
            _LOG.warning(
                "round %d: %d masked replies, wanted %d; nothing can be learnt from them", round_num, len(good), needed
            )
            return [], figures
        found = {self._names[client]: good[client] for client in sorted(good)}
        vectors = {name: reply.masked.vector for name, reply in found.items()}
        opened = self._opened(found) if secure_sums.needs_opening(about, vectors) else {}
        try:
            total = secure_sums.unmask(vectors, about, opened)
            terms = self._limits, self._shares
            mean = secure.decoded(total, self._layout, state.theta, len(about.cohort), len(good), *terms)
        except (FedawsError, wire.Rejected) as error:
            _LOG.warning("round %d: %s; nothing can be learnt from it", round_num, error)
            return [], figures
        cohort = torch.tensor(sorted(good))
        clear = [reply.row for reply in found.values() if reply.row is not None]
        W = torch.stack(clear) if method.sends_row else state.W[state.classes(cohort)]
        weights, losses = torch.full((len(good),), mean.weight / len(good)), torch.full((len(good),), mean.loss)
        sums = self._row_sums(found, cohort, opened) if method.own_spread else None
        figures |= {"startup-seconds": mean.startup, "compute-seconds": mean.compute}
        return [Update(cohort, mean.delta, W, weights, losses, sums=sums)], figures

    def _row_sums(self, found: Replies, cohort: Tensor, opened: Opened) -> Params | None:
        """The change of what all private rows tell; None, and nothing learnt, unless everybody has told."""
        spread, state, about = self._method.own_spread, self._state, self.about
        assert spread is not None
        number, everybody = state.round_num + 1, len(about.cohort)
        told = {name: reply.masked.whole for name, reply in found.items() if reply.masked.whole is not None}
        if len(told) < everybody:
            _LOG.warning(
                "round %d: %d of %d nodes told of their rows; it takes all of them, so the means stay",
                number,
                len(told),
                everybody,
            )
            return None
        changes = secure.rows_decoded(secure_sums.unmask_whole(told, about, opened), self._rows, everybody)
        why = spread.unsound(means_of(spread, hear(state.spread, changes, cohort, number), state.W))
        if why is not None:
            _LOG.warning("round %d: no rows have such means: %s; the sum of rows is dropped", number, why)
            return None
        return changes

    def _opened(self, found: Replies) -> Opened:
        """The second trip: what the nodes whose vectors arrived open of each other's shares, by their names."""
        mail, about, survivors, answers = self._mail, self.about, list(found), self._mail.answers
        nodes = {asked.metadata.dst_node_id: asked.member for asked in mail.asked if asked.member.name in found}
        self.shown = True
        opened = mail.ask(
            self._grid,
            secure.OPEN,
            nodes,
            lambda member: secure.open_order(about, {n: found[n].masked.letters[member.name] for n in survivors}),
            lambda content, _: secure.read_opened(content, about, survivors),
            enough=about.threshold,
        )
        mail.answers = answers  # who took part is who sent a vector
        return {self._names[client]: shares for client, shares in opened.items()}
