"""The FedAwS strategy: Flower carries, `fedaws.core` computes."""

import logging
import math
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from statistics import median
from typing import NamedTuple, cast

import httpx
import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import Tensor

from fedaws.config import Config, SpreadConfig
from fedaws.core.algorithm import broadcast, finish_round, sample_clients
from fedaws.core.attendance import among, entered
from fedaws.core.defences import guarded
from fedaws.core.last_step import make_last_step, take_last_step
from fedaws.core.method import Method
from fedaws.core.methods import method_of, named_after
from fedaws.core.newcomers import fresh_row
from fedaws.core.schedule import schedule
from fedaws.core.start import mean_rows, random_rows, secret_rows, start_state
from fedaws.core.sums import HEARD, hear, means_of
from fedaws.errors import FedawsError
from fedaws.flower import secure, wire
from fedaws.flower.carried import check_carried
from fedaws.flower.federation import Federation, Member, NodeInfo, from_classes
from fedaws.flower.mailbox import Mailbox
from fedaws.flower.wire import Expected, Limits, Reply
from fedaws.hashing import hash64
from fedaws.privacy import secure_sums
from fedaws.privacy.noise_shares import NoiseShares
from fedaws.privacy.secure_sums import Layout, Round
from fedaws.training.protection import Protection, protect
from fedaws.training.register import closed, here
from fedaws.types import ClassFacts, Params, ServerState, Sums, Update

_LOG = logging.getLogger("flwr")
_SAY_EVERY = 15.0  # seconds of waiting for nodes
_CHEAP, _SELDOM = 0.2, 30  # seconds: who is online is asked every round; if it takes longer, once in so many times that

SUMS = f"{MessageType.QUERY}.sums"
"""The type of the question before the first round or after the last."""

ENROLL = f"{MessageType.QUERY}.enroll"
"""The type of the question to a node of a new class."""

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


class FedAwS(Strategy):
    """Federated Averaging with Spreadout (Yu, Rawat, Menon, Kumar, ICML 2020) as a Flower strategy.

    Every client has positives of one class only. The server keeps the class embeddings W, sends a node the encoder's
    parameters θ and the one row of its own class, averages θ, and pushes the rows apart.

    Parameters
    ----------
    class_of
        The class of every node, by the name it is registered with at the SuperLink
        (``flwr supernode register KEY.pub --name NAME``), or a `Federation` that also holds the keys. A node that is
        in neither gets nothing.
    spread
        How the rows are pushed apart; by default as `config` has it.
    config
        The run: learning rates, local steps, embedding size, seed. Sent to the clients, without what concerns data.
    quorum
        The part of a cohort that must give good answers; below it the round changes nothing and is tried again.
    grace
        Seconds that a round still waits for the others once a quorum has given good answers; at most its deadline.
    wait
        Seconds the first round waits for all members, and every round for a quorum of them and for two classes.
    limits
        What a reply may be at most: norms and number of examples.
    secret_rows
        W⁰ from the operating system's randomness. Without it, W⁰ comes from the seed as in `fedaws train`, and a node
        that knows or guesses the seed has every class's first embedding.
    trust_claims
        Insecure, for simulations: ask the nodes which client they are and believe them.

    method
        A method of your own; by default the one that `config` names. Its client app gives the same to `trained`.

    A client answers as :mod:`fedaws.flower.wire` says; `fedaws.flower.client_app` does.
    """

    def __init__(
        self,
        class_of: Mapping[str, int] | Federation,
        *,
        spread: SpreadConfig | None = None,
        config: Config | None = None,
        quorum: float = 0.5,
        grace: float = 30.0,
        wait: float = 600.0,
        limits: Limits | None = None,
        secret_rows: bool = True,
        trust_claims: bool = False,
        method: Method | None = None,
        poll: float = 0.5,
        attempts: int = 3,
    ) -> None:
        config = config or Config()
        if spread is not None:
            config = config.with_(spread=spread)
        if method is not None:
            config = named_after(method, config)
        self.config = config
        self.federation = class_of if isinstance(class_of, Federation) else from_classes(class_of)
        self.quorum, self.wait, self.secret_rows, self.trust_claims = quorum, wait, secret_rows, trust_claims
        self.poll, self.attempts = poll, attempts
        limits, clip = limits or Limits(), config.privacy.clip
        if clip is not None:
            limits = replace(limits, clip_norm=clip, max_norm=max(clip, limits.max_norm))
        self.mail = Mailbox(limits, poll, grace=grace)
        self.state: ServerState | None = None
        self.joined: set[int] | None = None  # the classes that have been online; None before the first round
        self.last: dict[str, float] = {}  # figures of the last round
        self.answers: dict[str, str | None] = {}  # of the last round, by name: why a reply was dropped, None for good
        self._claims: dict[int, int | None] = {}  # node id → client number, as told; None: nobody's
        self._strangers: set[int] = set()
        self._seen: _Seen | None = None  # who was online when that was last asked
        self._rng, self._failures = torch.Generator(), 0  # of this round, for want of a quorum
        self._draws = 0  # cohorts of this round before the one that is being asked
        self._arrays: ArrayRecord | None = None  # that hold the state's θ
        self.run_id = secrets.token_hex(16)  # by which nodes know that their private rows are of this run
        self._sum: _Sum | None = None  # that is being made, if secure sums are on
        self.private: Protection | None = None  # what a run with noise promises, and has spent
        if not 0 < quorum <= 1:
            raise FedawsError(f"quorum={quorum}; wanted a part of the cohort above 0 and at most 1")
        if not grace >= 0:
            raise FedawsError(f"grace={grace}; wanted seconds, 0 or more")
        # Over Flower the server knows no facts of classes.
        self.method = guarded(method, self.config) if method else method_of(self.config, ClassFacts())
        check_carried(self.config, self.method, self.federation)
        self._last_step = make_last_step(self.config, self.method)

    def summary(self) -> None:
        """Log the strategy's settings."""
        cfg, spread = self.config, self.config.spread
        _LOG.info("\t├──> Method: %s, spread %s λ=%g", cfg.method, spread.regularizer, spread.weight)
        _LOG.info("\t├──> Members: %d of %d classes", len(self.federation.active), self.federation.num_classes)
        _LOG.info("\t├──> Round: quorum %g, then %g s, deadline %g s", self.quorum, self.mail.grace, self.mail.deadline)
        _LOG.info("\t└──> Replies: a change of θ is cut at norm %g", self.mail.limits.clip_norm)
        if self.config.privacy.secure_sums:
            rows = "; a node's row is a template of its class, and is sent in the clear"
            _LOG.info("Secure sums of at least %d nodes%s", self._least, rows if self.method.sends_row else "")
        if self.trust_claims:
            _LOG.warning("INSECURE: nodes are believed which client they are; anyone can ask for any class embedding")

    @property
    def rejected(self) -> Counter[str]:
        """Bad replies by reason, over the run."""
        return self.mail.rejected

    # --- a round ----------------------------------------------------------------------------------------------------

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> Result:
        """Run the rounds up to `num_rounds`, from where `state` is; `timeout` is each round's deadline.

        Unlike Flower's own loop it resumes, it goes on with those who answered in time, and one bad reply harms nobody.
        Of `initial_arrays` the first start takes θ; one that follows a failure goes on with what it had.
        """
        self.mail.deadline, result, self._failures, self._draws = timeout, Result(), 0, 0
        if self.config.privacy.secure_sums and (self.federation.sums is None or self.trust_claims):
            raise FedawsError(
                "privacy.secure_sums needs nodes with keys of their own for it; "
                "make the federation by fedaws flower init -s privacy.secure_sums=true"
            )
        arrays = initial_arrays if self.state is None else wire.pack(self.state.theta)
        state = self._begin(arrays)
        self.summary()
        if state.round_num == 0 and self.config.model.start_rows == "means":
            state = self._start_at_means(state, grid)
            _ = evaluate_fn(0, arrays) if evaluate_fn else None  # as Flower's own loop does before its first round
        while state.round_num < num_rounds:
            number = state.round_num + 1
            messages = self.configure_train(number, arrays, train_config or ConfigRecord(), grid)
            before = self.state
            found, metrics = self.aggregate_train(number, self.mail.collect(grid, messages))
            if found is None or metrics is None:
                self._failures += 1
                self._draws += self._sum is None or not self._sum.shown
                if self._failures >= self.attempts:
                    why = Counter(reason for reason in self.mail.answers.values() if reason)
                    told = ", ".join(f"{count} {reason}" for reason, count in sorted(why.items())) or "no answers"
                    raise FedawsError(
                        f"round {number} had no quorum {self._failures} times, last with {told}; "
                        "look after the nodes and resume"
                    )
                continue
            self._failures = self._draws = 0
            arrays = found
            state = self._begin(found)
            if number == num_rounds and self._last_step is not None:
                self.state = before  # should the step fail, its round is to come again
                last = take_last_step(state, state.averaged, self._last_step, partial(self._ask_sums, grid))
                state = self.state = last if state.bias is None else closed(last, here(state))
            result.arrays, result.train_metrics_clientapp[number] = arrays, metrics
            measured = evaluate_fn(number, arrays) if evaluate_fn else None
            if measured is not None:
                result.evaluate_metrics_serverapp[number] = measured
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """One message a node, with θ and its own row; a list, as a deployed SuperLink takes no generator."""
        state = self._begin(arrays)
        online = self._online(grid, everybody=self.joined is None)
        if self.config.privacy.secure_sums:  # the others know nobody else, and would refuse
            online = {node_id: member for node_id, member in online.items() if member.sums_key}
        state = self._welcome(state, grid, arrays, online)
        node_of = {member.client: node_id for node_id, member in online.items()}
        # Tried again, a round has another cohort: that of the first try may be of nodes that are gone. But where some
        # may have opened its sum, they give no second one over others.
        again = [self._draws] if self._draws else []
        self._rng = torch.Generator().manual_seed(hash64(self.config.seed, "round", state.round_num, *again))
        cohort = sample_clients(torch.tensor(sorted(node_of)), self.config.clients, self._rng)
        sent, shared = broadcast(state, cohort), wire.shared_config(self.config, state.round_num, config)
        messages = []
        self.mail.open_round()
        members = [self.federation.members[client] for client in cohort.tolist()]
        means = self._means(state)
        more = self._begin_sum(grid, arrays, shared, state, members, means) if self.config.privacy.secure_sums else {}
        for member, row in zip(members, sent.W, strict=True):
            client = member.client
            content = wire.order(arrays, shared, client, member.class_id, None if means else row, **means, **more)
            messages.append(self.mail.order(member, node_of[client], MessageType.TRAIN, content))
        self.mail.enough = self._needed(len(messages))
        self.state = state
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """θ and W from the good replies; (None, None), and nothing changed, if they are too few."""
        assert self.state is not None
        started, waited, state = time.perf_counter(), self.mail.waited, self.state
        updates = (
            self._clear_updates(state, replies, server_round) if self._sum is None else self._summed(state, replies)
        )
        if updates is None:
            return None, None
        present, method = here(state), self.method
        if method.spread and not bool(present.all()):
            method = replace(method, spread=among(method.spread, present))
        self.state = finish_round(state, updates, self.config, self._rng, method)
        arrays = wire.pack(self.state.theta)
        self._arrays = arrays
        self.last["server-seconds"] = time.perf_counter() - started - (self.mail.waited - waited)
        return arrays, MetricRecord({"loss": self.state.loss, **self.last})

    def _clear_updates(self, state: ServerState, replies: Iterable[Message], server_round: int) -> list[Update] | None:
        """The clients' updates one by one; None if they are too few."""
        good = self.mail.good(replies, lambda content, member: wire.read_reply(content, self._expected(state, member)))
        asked = len(self.mail.asked)
        self.last, self.answers = _figures(good.values(), asked), dict(self.mail.answers)
        needed = self._needed(asked)
        if len(good) < needed:
            _LOG.warning("round %d: %d good replies, wanted %d", server_round, len(good), needed)
            return None
        # By client number, not in the order of arrival: sums of floats depend on it.
        weights = self._weights(state, good)
        return [_update(client, good[client], weights[client]) for client in sorted(good)]

    def _expected(self, state: ServerState, member: Member) -> Expected:
        place = state.round_num, member.client, member.class_id
        return Expected(*place, state.theta, state.W.shape[1], self.mail.limits)

    def _weights(self, state: ServerState, good: Mapping[int, Reply]) -> dict[int, float]:
        """ω of each client: the method's own, of all that were asked; or n_i; or 1."""
        if self.method.weighting:
            cohort = [asked.member.client for asked in self.mail.asked]
            memory = state.weighting or self.method.weighting.init(state.W)
            weights = self.method.weighting.weights(memory, state.classes(torch.tensor(cohort)))
            return dict(zip(cohort, weights.tolist(), strict=True))
        if self.config.clients.weighting == "examples":
            return {client: float(reply.num_examples) for client, reply in good.items()}
        return dict.fromkeys(good, 1.0)

    # --- secure sums ------------------------------------------------------------------------------------------------

    def _means(self, state: ServerState) -> dict[str, ArrayRecord]:
        """What nodes that keep their rows are sent in place of them: the same for all."""
        spread = self.method.own_spread
        return {} if spread is None else {"means": wire.pack(means_of(spread, state.spread, state.W))}

    def _begin_sum(
        self,
        grid: Grid,
        arrays: ArrayRecord,
        shared: ConfigRecord,
        state: ServerState,
        members: list[Member],
        means: Mapping[str, ArrayRecord],
    ) -> dict[str, ConfigRecord]:
        """Number the round's sum; the record that tells the nodes of it. One with noise is paid for first."""
        noise = self._pay(state)
        number = secure.new_number(0 if self._sum is None else self._sum.about.number)
        limits, counted = self.mail.limits, state.spread.get(HEARD)
        heard = {m.name: 0 if counted is None else int(counted[m.client]) for m in members}
        record = secure.sum_record(
            self.federation.sums or "", number, heard, self.run_id, self.config.privacy, limits, noise
        )
        factor = schedule(self.config.train, state.round_num)
        limits, shares = secure.noise_terms(record, limits, state.theta, factor)
        layout = secure.layout_of(state.theta, limits, shares=shares)
        rows = secure.rows_layout(self.method, state.W.shape[1])
        content = RecordDict({"arrays": arrays, "config": shared, **means})
        about = secure.about_sum(content, record, layout, rows)
        self._sum = _Sum(grid, about, layout, rows, limits, shares, shown=not about.double)
        return {"sum": record}

    def _pay(self, state: ServerState) -> float:
        """Count one more release, if sums have noise; its multiplier."""
        if not self.config.privacy.noisy:
            return 0.0
        if self.private is None:
            people = len(self.federation.members)
            self.private = protect(self.config, self.method, people, state.theta, (), None, _LOG.warning, shares=True)
        assert self.private is not None
        return self.private.pay(state.round_num)

    @property
    def _least(self) -> int:
        """Nodes without which no sum is asked for, or opened."""
        return self.config.privacy.min_cohort if self.config.privacy.secure_sums else 1

    def _summed(self, state: ServerState, replies: Iterable[Message]) -> list[Update] | None:
        """One update of all that answered, from the sum of theirs; None, and nothing learnt, if they are too few."""
        assert self._sum is not None
        about, layout, rows = self._sum.about, self._sum.layout, self._sum.rows
        with_row, number = self.method.sends_row, state.round_num + 1
        good = self.mail.good(
            replies,
            lambda content, member: secure.read_masked(
                content, self._expected(state, member), about, layout, rows, with_row
            ),
        )
        asked = len(self.mail.asked)
        self.last, self.answers = {"asked": asked, "replies": len(good)}, dict(self.mail.answers)
        needed = self._needed(asked)
        if len(good) < needed:
            _LOG.warning(
                "round %d: %d masked replies, wanted %d; nothing can be learnt from them", number, len(good), needed
            )
            return None
        vectors = {self.federation.members[client].name: good[client].masked.vector for client in sorted(good)}
        opened = self._opened(good, list(vectors)) if secure_sums.needs_opening(about, vectors) else {}
        try:
            total = secure_sums.unmask(vectors, about, opened)
            terms = self._sum.limits, self._sum.shares
            mean = secure.decoded(total, layout, state.theta, len(about.cohort), len(good), *terms)
        except (FedawsError, wire.Rejected) as error:
            _LOG.warning("round %d: %s; nothing can be learnt from it", number, error)
            return None
        self.last |= {"startup-seconds": mean.startup, "compute-seconds": mean.compute}
        cohort = torch.tensor(sorted(good))
        clear = [good[client].row for client in sorted(good)]
        W = torch.stack([row for row in clear if row is not None]) if with_row else state.W[state.classes(cohort)]
        weights, losses = torch.full((len(good),), mean.weight / len(good)), torch.full((len(good),), mean.loss)
        sums = self._row_sums(state, good, opened) if self.method.own_spread else None
        return [Update(cohort, mean.delta, W, weights, losses, sums=sums)]

    def _row_sums(
        self, state: ServerState, good: Mapping[int, secure.MaskedReply], opened: Mapping[str, Mapping[str, bytes]]
    ) -> Params | None:
        """The change of what all private rows tell; None, and nothing learnt, unless everybody has told."""
        assert self._sum is not None
        assert self.method.own_spread is not None
        about, number = self._sum.about, state.round_num + 1
        wholes = {self.federation.members[client].name: reply.masked.whole for client, reply in good.items()}
        told = {name: whole for name, whole in wholes.items() if whole is not None}
        if set(told) != set(about.cohort):
            _LOG.warning(
                "round %d: %d of %d nodes told of their rows; it takes all of them, so the means stay",
                number,
                len(told),
                len(about.cohort),
            )
            return None
        total = secure_sums.unmask_whole(told, about, opened)
        changes = secure.rows_decoded(total, self._sum.rows, len(about.cohort))
        memory = hear(state.spread, changes, torch.tensor(sorted(good)), number)
        why = self.method.own_spread.unsound(means_of(self.method.own_spread, memory, state.W))
        if why is not None:
            _LOG.warning("round %d: no rows have such means: %s; the sum of rows is dropped", number, why)
            return None
        return changes

    def _opened(self, good: Mapping[int, secure.MaskedReply], survivors: list[str]) -> dict[str, dict[str, bytes]]:
        """The second trip: what the nodes whose vectors arrived open of each other's shares, by their names."""
        assert self._sum is not None
        about, answers = self._sum.about, self.mail.answers
        first = {asked.member.client: asked for asked in self.mail.asked}
        letters = {self.federation.members[client].name: reply.masked.letters for client, reply in good.items()}
        self.mail.open_round()
        self._sum = self._sum._replace(shown=True)
        messages = []
        for client in sorted(good):
            member = first[client].member
            content = secure.open_order(about, {sender: letters[sender][member.name] for sender in survivors})
            messages.append(self.mail.order(member, first[client].metadata.dst_node_id, secure.OPEN, content))
        self.mail.enough = about.threshold
        replies = self.mail.collect(self._sum.grid, messages)
        found = self.mail.good(replies, lambda content, _: secure.read_opened(content, about, survivors))
        self.mail.answers = answers  # who took part is who sent a vector
        return {self.federation.members[client].name: opened for client, opened in found.items()}

    # --- before the first round, and after the last -----------------------------------------------------------------

    def _start_at_means(self, state: ServerState, grid: Grid) -> ServerState:
        """W⁰ of the mean embeddings under θ⁰; random rows for classes that nobody tells of."""
        rows = first_rows(self.config, len(state.W), self.secret_rows)
        rows = mean_rows(self._ask_sums(grid, state.theta, False), rows)
        self.state = start_state(self.config, self.method, state.theta, rows, state.class_of)
        return self.state

    def _ask_sums(self, grid: Grid, theta: Params, gram: bool) -> Sums:
        """n, Σz and perhaps Σzzᵀ of every member that answers; those that do not are asked again."""
        assert self.state is not None
        num_classes, size = self.state.W.shape
        arrays = wire.pack(theta)
        shared = wire.shared_config(self.config, self.state.round_num)
        told = dict[int, Sums]()
        members = [m for m in self.federation.active if m.class_id < num_classes]
        for _attempt in range(self.attempts):
            node_of = {member.client: node_id for node_id, member in self._online(grid, everybody=True).items()}
            asked = [m for m in members if m.client in node_of and m.client not in told]
            self.mail.open_round()
            orders = [(m, wire.sums_order(arrays, shared, m.client, m.class_id, gram)) for m in asked]
            messages = [self.mail.order(m, node_of[m.client], SUMS, content) for m, content in orders]
            self.mail.enough = self._quorum_of(len(messages))
            replies = self.mail.collect(grid, messages)
            told |= self.mail.good(replies, lambda content, _: wire.read_sums(content, size, gram, self.mail.limits))
            if len(told) == len(members):
                break
        missing = [m.name for m in members if m.client not in told]
        if len(told) < self._quorum_of(len(members)):
            raise FedawsError(
                f"{len(told)} of {len(members)} members told their sums; look after {_some(missing)} and resume"
            )
        if missing:
            _LOG.warning("going on without the sums of %s", _some(missing))
        return _added_up([(m.class_id, told[m.client]) for m in members if m.client in told], num_classes)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Nothing: a node that could tell all classes apart would need W, and W stays here."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Nothing."""
        return None

    def _quorum_of(self, count: int) -> int:
        """How many of these are enough; 0.56 · 25 is 14, although not in floats."""
        return max(1, math.ceil(round(self.quorum * count, 9)))

    def _needed(self, asked: int) -> int:
        """How many of those that were asked must answer well."""
        return max(self._quorum_of(asked), 0 if self._sum is None else self._sum.about.threshold, self._least)

    # --- state ------------------------------------------------------------------------------------------------------

    def _begin(self, arrays: ArrayRecord) -> ServerState:
        """The state with the θ that Flower hands round: ours, unless a wrapper changed it."""
        if self.state is not None and arrays is self._arrays:
            return self.state
        theta = _trusted(arrays)
        if self.state is None:
            rows = first_rows(self.config, self.federation.num_classes, self.secret_rows)
            self.state = start_state(self.config, self.method, theta, rows)
        else:
            self.state = replace(self.state, theta=theta)
        self._arrays = arrays
        return self.state

    def _welcome(
        self, state: ServerState, grid: Grid, arrays: ArrayRecord, online: Mapping[int, Member]
    ) -> ServerState:
        """A row for every class that is first seen after the first round, or has none; none for who was removed."""
        classes = {member.class_id for member in online.values()}
        late = set() if self.joined is None else classes - self.joined
        late |= {c for c in classes if c < len(state.W) and not bool(here(state)[c])}  # removed, and back
        late |= set(range(len(state.W), max(classes, default=-1) + 1))  # rows have no gaps
        self.joined = (self.joined or set()) | classes
        class_of = torch.tensor([member.class_id for member in self.federation.members])
        W = state.W
        if self.method.own_spread:  # their rows are their own affair
            return _with_room(state, class_of)
        enrolled = self._enrolled(state, grid, arrays, {i: m for i, m in online.items() if m.class_id in late})
        for class_id in sorted(late):
            before, after = W[:class_id], W[class_id + 1 :]
            row = enrolled.get(class_id)
            how = "the row that it made at home" if row is not None else "a row away from the others"
            if row is None:
                rng = torch.Generator().manual_seed(hash64(self.config.seed, "newcomer", class_id))
                row = fresh_row(torch.cat([before, after]), rng)
            W = torch.cat([before, row[None], after])
            _LOG.info("class %d joins in round %d, with %s", class_id, state.round_num + 1, how)
        if len(W) > len(state.W):  # memories of one entry a class are begun anew
            state = replace(state, spread={}, weighting={})
        bias = None if state.bias is None else F.pad(state.bias, (0, len(W) - len(state.bias)))
        return self._without_removed(replace(state, W=W, class_of=class_of, bias=bias))

    def _without_removed(self, state: ServerState) -> ServerState:
        """No row of a class whose nodes have all left: zeros that are not spread, never answered, and in no file."""
        present = torch.tensor([c not in self.federation.gone for c in range(len(state.W))])
        if bool((present == here(state)).all()):
            return state
        for class_id in (~present & here(state)).nonzero().flatten().tolist():
            _LOG.info("class %d has left before round %d; its row is gone", class_id, state.round_num + 1)
        changed = present != here(state)
        state = closed(state, present)
        if self.method.spread and state.spread:
            state = replace(state, spread=entered(state.spread, self.method.spread.init(state.W), changed))
        return state

    def _enrolled(
        self, state: ServerState, grid: Grid, arrays: ArrayRecord, newcomers: Mapping[int, Member]
    ) -> dict[int, Tensor]:
        """By class, the rows that new classes' nodes make of the mean of their embeddings; of those that answer.

        None where rows are guarded, as a newcomer could send anybody's; nor inside secure sums.
        """
        guard = self.config.defence
        guarded_rows = guard.row_step or guard.anchor or guard.apart < 1
        if not newcomers or not self.method.trains_own_row or guarded_rows or self.config.privacy.secure_sums:
            return {}
        shared = wire.shared_config(self.config, state.round_num)
        self.mail.open_round()
        messages = [
            self.mail.order(member, node_id, ENROLL, wire.enroll_order(arrays, shared, member.client, member.class_id))
            for node_id, member in newcomers.items()
        ]
        found = self.mail.good(
            self.mail.collect(grid, messages),
            lambda content, member: wire.read_enrolled(content, self._expected(state, member)),
        )
        rows = dict[int, Tensor]()
        for client in sorted(found):  # several nodes of one class: the direction of their mean
            class_id = self.federation.members[client].class_id
            rows[class_id] = rows.get(class_id, torch.zeros(state.W.shape[1])) + found[client]
        return {class_id: F.normalize(row, dim=0) for class_id, row in rows.items() if float(row.norm()) > 1e-3}

    # --- nodes ------------------------------------------------------------------------------------------------------

    def _online(self, grid: Grid, everybody: bool) -> dict[int, Member]:
        """The connected members by node id: all of them if they come in time, or a quorum."""
        end = time.monotonic() + self.wait
        say_at = time.monotonic() + _SAY_EVERY
        asked = everybody or self._failures > 0  # those that were there may be gone
        while True:
            self.federation = self.federation.refreshed()
            try:
                found = self._identified(grid, asked)
            except httpx.HTTPStatusError as error:  # its database is locked, say; ask again
                _LOG.warning("the SuperLink answers %d", error.response.status_code)
                found = {}
            members = len(self.federation.active)
            per_round = self.config.clients.per_round
            needed = self._quorum_of(members if per_round == "all" else min(per_round, members))
            needed = max(needed, self._least)
            classes = {member.class_id for member in found.values()}
            if len(found) >= (members if everybody else needed) and len(classes) > 1:
                return found
            here = {member.client for member in found.values()}
            missing = _some([m.name for m in self.federation.active if m.client not in here])
            now = time.monotonic()
            if now >= end:
                break
            if now >= say_at:
                say_at = now + _SAY_EVERY
                _LOG.info("waiting for %s: %d of %d online, %.0f s left", missing, len(found), members, end - now)
            time.sleep(self.poll if asked else 0)
            asked = True
        if len(found) < needed:
            raise FedawsError(
                f"{len(found)} of {members} members online after {self.wait:g} s, wanted {needed}; "
                f"start {missing}, or raise wait"
            )
        if len(classes) < 2:
            raise FedawsError(
                f"nodes of one class only are online after {self.wait:g} s, wanted two classes to tell apart; "
                f"start {missing or 'nodes of another class'}, or raise wait"
            )
        _LOG.warning("going on with %d of %d members, without %s", len(found), members, missing)
        return found

    def _identified(self, grid: Grid, ask: bool) -> dict[int, Member]:
        """Who is connected; a stranger is told nothing, and logged once.

        The SuperLink can only be asked for all nodes at once. Of many that takes long, so unless it must be, they are
        not asked for again at once: a node that has gone meanwhile is one that does not answer, and a node's id
        stands for one key for ever.
        """
        seen, started = self._seen, time.monotonic()
        if not ask and seen is not None and seen.federation is self.federation and started < seen.until:
            return seen.nodes
        nodes = list(grid.get_nodes())
        if self.trust_claims:
            self._ask_who(grid, [node.node_id for node in nodes if node.node_id not in self._claims])
        found = self._members(nodes)
        took = time.monotonic() - started
        self._seen = _Seen(self.federation, found, started + took * (_SELDOM if took > _CHEAP else 0))
        return found

    def _members(self, nodes: Iterable[NodeInfo]) -> dict[int, Member]:
        found, clients = dict[int, Member](), set[int]()
        for node in nodes:
            if self.trust_claims:
                claim = self._claims.get(node.node_id)
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
        self.mail.open_round()
        messages = [Message(RecordDict(), node_id, MessageType.QUERY, ttl=self.mail.ttl) for node_id in node_ids]
        for message in self.mail.collect(grid, messages):
            if message.has_error():  # it may know better next time
                continue
            own = message.content.config_records.get("own")
            claim = None if own is None else own.get("client-id")
            is_client = type(claim) is int and 0 <= claim < len(self.federation.members)
            self._claims[message.metadata.src_node_id] = cast(int, claim) if is_client else None


class _Seen(NamedTuple):
    """Who was online, and until when that is taken for true."""

    federation: Federation
    nodes: dict[int, Member]
    until: float


def _with_room(state: ServerState, class_of: Tensor) -> ServerState:
    """The state of private rows with a place for every member, of whom some may have come since."""
    classes, members = int(class_of.max()) + 1, len(class_of)
    W = F.pad(state.W, (0, 0, 0, max(0, classes - len(state.W))))
    heard = state.spread[HEARD]
    spread = state.spread | {HEARD: F.pad(heard, (0, members - len(heard)))}
    return replace(state, W=W, class_of=class_of, spread=spread)


class _Sum(NamedTuple):
    """A secure sum that is being made."""

    grid: Grid
    about: Round
    layout: Layout
    rows: Layout  # of the second vector, of private rows
    limits: Limits  # of this round
    shares: NoiseShares | None  # of the noise
    shown: bool  # whether nodes may have opened it


def first_rows(cfg: Config, num_classes: int, secret: bool) -> Tensor:
    """W⁰, random on the sphere: from nobody knows what, or from the seed as in `fedaws train`.

    A node knows the settings, and could compute whatever follows from the seed; and the rows stay near W⁰ (with the
    preset digits-flower, W⁰ pushed apart by the settings alone has cosine 0.99 to what training ends with).

    >>> first_rows(Config(), 3, secret=True).norm(dim=1).allclose(torch.ones(3))
    True
    """
    if cfg.privacy.rows == "private":  # each node has its own, and the server none
        return torch.zeros(num_classes, cfg.model.embedding_dim)
    return secret_rows(num_classes, cfg.model.embedding_dim) if secret else random_rows(cfg, num_classes)


def _trusted(arrays: ArrayRecord) -> Params:
    """θ from a record of our own making."""
    theta = {name: torch.from_numpy(array.numpy().copy()) for name, array in arrays.items()}
    for name, tensor in theta.items():
        if not tensor.is_floating_point():
            raise FedawsError(f"{name!r} is {tensor.dtype}; give the trainable parameters only, all of them floats")
    return theta


def _update(client: int, reply: Reply, weight: float) -> Update:
    rows = reply.row[None]
    loss = torch.tensor([reply.loss])
    return Update(torch.tensor([client]), reply.delta, rows, torch.tensor([weight]), loss)


def _added_up(told: Iterable[tuple[int, Sums]], num_classes: int) -> Sums:
    """The clients' sums by their classes; the second moment of all together."""
    parts = list(told)
    classes = torch.tensor([class_id for class_id, _ in parts])
    counts = torch.zeros(num_classes, dtype=torch.int64)
    counts.index_add_(0, classes, torch.cat([part.counts for _, part in parts]))
    sums = torch.zeros(num_classes, parts[0][1].sums.shape[1])
    sums.index_add_(0, classes, torch.cat([part.sums for _, part in parts]))
    grams = [part.gram for _, part in parts if part.gram is not None]
    return Sums(counts, sums, torch.stack(grams).sum(0) if grams else None)


def _some(names: list[str]) -> str:
    """The first few of many names."""
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return ", ".join(names[:10]) + more


def _figures(good: Iterable[Reply], asked: int) -> dict[str, float]:
    """What a round's log line says beside the loss."""
    replies = list(good)
    figures: dict[str, float] = {"asked": asked, "replies": len(replies)}
    if not replies:
        return figures
    figures["largest-change"] = max(r.norm for r in replies)
    startup = median(r.startup_seconds for r in replies)
    return figures | {"startup-seconds": startup, "compute-seconds": median(r.compute_seconds for r in replies)}
