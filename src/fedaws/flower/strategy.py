"""The FedAwS strategy: Flower carries, `fedaws.core` computes."""

import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import Tensor

from fedaws.config import Config, SpreadConfig
from fedaws.core.algorithm import broadcast, finish_round, sample_clients
from fedaws.core.defences import guarded
from fedaws.core.last_step import make_last_step, take_last_step
from fedaws.core.method import Method
from fedaws.core.methods import method_of, named_after
from fedaws.core.schedule import schedule
from fedaws.core.start import mean_rows, random_rows, secret_rows, start_state
from fedaws.core.sums import means_of
from fedaws.errors import FedawsError
from fedaws.flower import wire
from fedaws.flower.carried import check_carried
from fedaws.flower.federation import Federation, Member, from_classes
from fedaws.flower.joining import late_classes, with_room, with_rows, without_removed
from fedaws.flower.mailbox import Mailbox
from fedaws.flower.members import Members
from fedaws.flower.questions import Questions
from fedaws.flower.updates import SecureSum, updates_of
from fedaws.flower.wire import Limits
from fedaws.hashing import hash64
from fedaws.training.protection import Protection, protect
from fedaws.training.register import closed, here, spread_among
from fedaws.types import ClassFacts, Params, ServerState

_LOG = logging.getLogger("flwr")
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
        if not 0 < quorum <= 1:
            raise FedawsError(f"quorum={quorum}; wanted a part of the cohort above 0 and at most 1")
        if not grace >= 0:
            raise FedawsError(f"grace={grace}; wanted seconds, 0 or more")
        self.config = config
        # Over Flower the server knows no facts of classes.
        self.method = guarded(method, config) if method else method_of(config, ClassFacts())
        federation = class_of if isinstance(class_of, Federation) else from_classes(class_of)
        check_carried(config, self.method, federation)
        self.quorum, self.secret_rows, self.trust_claims, self.attempts = quorum, secret_rows, trust_claims, attempts
        limits, clip = limits or Limits(), config.privacy.clip
        if clip is not None:
            limits = replace(limits, clip_norm=clip, max_norm=max(clip, limits.max_norm))
        self.mail = Mailbox(limits, poll, grace=grace)
        self.members = Members(federation, config, self.mail, quorum, wait, trust_claims)
        self.questions = Questions(config, self.mail, self.members, attempts)
        self.state: ServerState | None = None
        self.joined: set[int] | None = None  # the classes that have been online; None before the first round
        self.last: dict[str, float] = {}  # figures of the last round
        self.answers: dict[str, str | None] = {}  # of the last round, by name: why a reply was dropped, None for good
        self.run_id = secrets.token_hex(16)  # by which nodes know that their private rows are of this run
        self._rng = torch.Generator()  # of this round
        self._needed = 0  # good replies, for a quorum
        self._failures = 0  # of this round, for want of a quorum
        self._draws = 0  # cohorts of this round before the one that is being asked
        self._arrays: ArrayRecord | None = None  # that hold the state's θ
        self._sum: SecureSum | None = None  # that is being made, if secure sums are on
        self.private: Protection | None = None  # what a run with noise promises, and has spent
        self._last_step = make_last_step(config, self.method)

    def summary(self) -> None:
        """Log the strategy's settings."""
        cfg, spread = self.config, self.config.spread
        _LOG.info("\t├──> Method: %s, spread %s λ=%g", cfg.method, spread.regularizer, spread.weight)
        _LOG.info("\t├──> Members: %d of %d classes", len(self.federation.active), self.federation.num_classes)
        _LOG.info("\t├──> Round: quorum %g, then %g s, deadline %g s", self.quorum, self.mail.grace, self.mail.deadline)
        _LOG.info("\t└──> Replies: a change of θ is cut at norm %g", self.mail.limits.clip_norm)
        if cfg.privacy.secure_sums:
            rows = "; a node's row is a template of its class, and is sent in the clear"
            _LOG.info("Secure sums of at least %d nodes%s", self.members.least, rows if self.method.sends_row else "")
        if self.trust_claims:
            _LOG.warning("INSECURE: nodes are believed which client they are; anyone can ask for any class embedding")

    @property
    def federation(self) -> Federation:
        """Who is who, as its file last said."""
        return self.members.federation

    @property
    def rejected(self) -> Counter[str]:
        """Bad replies by reason, over the run."""
        return self.mail.rejected

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
            state = self.state = self._at_means(state, grid)
            if evaluate_fn:  # as Flower's own loop does before its first round
                evaluate_fn(0, arrays)
        while state.round_num < num_rounds:
            number = state.round_num + 1
            messages = self.configure_train(number, arrays, train_config or ConfigRecord(), grid)
            before = self._begin(arrays)
            found, metrics = self.aggregate_train(number, self.mail.collect(grid, messages))
            if found is None or metrics is None:
                self._try_again(number)
                continue
            self._failures = self._draws = 0
            arrays, state = found, self._begin(found)
            if number == num_rounds and self._last_step is not None:
                self.state = before  # should the step fail, its round is to come again
                ask = partial(self.questions.sums, grid, before)
                last = take_last_step(state, state.averaged, self._last_step, ask)
                state = self.state = closed(last, here(state))
            result.arrays, result.train_metrics_clientapp[number] = arrays, metrics
            measured = evaluate_fn(number, arrays) if evaluate_fn else None
            if measured is not None:
                result.evaluate_metrics_serverapp[number] = measured
        return result

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

    def _at_means(self, state: ServerState, grid: Grid) -> ServerState:
        """W⁰ of the mean embeddings under θ⁰; random rows for classes that nobody tells of."""
        rows = first_rows(self.config, len(state.W), self.secret_rows)
        rows = mean_rows(self.questions.sums(grid, state, state.theta, False), rows)
        return start_state(self.config, self.method, state.theta, rows, state.class_of)

    def _try_again(self, number: int) -> None:
        """Count a round without a quorum, and give up at the last."""
        self._failures += 1
        self._draws += self._sum is None or not self._sum.shown
        if self._failures >= self.attempts:
            why = Counter(reason for reason in self.mail.answers.values() if reason)
            told = ", ".join(f"{count} {reason}" for reason, count in sorted(why.items())) or "no answers"
            raise FedawsError(
                f"round {number} had no quorum {self._failures} times, last with {told}; "
                "look after the nodes and resume"
            )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """One message a node, with θ and its own row; a list, as a deployed SuperLink takes no generator."""
        state, cfg = self._begin(arrays), self.config
        online = self.members.online(grid, everybody=self.joined is None, ask=self._failures > 0)
        if cfg.privacy.secure_sums:  # the others know nobody else, and would refuse
            online = {node_id: member for node_id, member in online.items() if member.sums_key}
        state = self.state = self._welcome(state, grid, arrays, online)
        node_of = {member.client: node_id for node_id, member in online.items()}
        # Tried again, a round has another cohort: that of the first try may be of nodes that are gone. But where some
        # may have opened its sum, they give no second one over others.
        again = [self._draws] if self._draws else []
        self._rng = torch.Generator().manual_seed(hash64(cfg.seed, "round", state.round_num, *again))
        cohort = sample_clients(torch.tensor(sorted(node_of)), cfg.clients, self._rng)
        members = [self.federation.members[client] for client in cohort.tolist()]
        shared: wire.Records = {"arrays": arrays, "config": wire.shared_config(cfg, state.round_num, config)}
        rows: Iterable[Tensor | None] = broadcast(state, cohort).W
        if self.method.own_spread:  # nodes that keep their rows are sent this in place of them, the same for all
            rows = [None] * len(members)
            shared["means"] = wire.pack(means_of(self.method.own_spread, state.spread, state.W))
        needed = max(self.members.quorum_of(len(members)), self.members.least)
        if cfg.privacy.secure_sums:
            after = 0 if self._sum is None else self._sum.about.number
            names = self.federation.sums or "", self.run_id
            terms = self._pay(state), schedule(cfg.train, state.round_num)
            parts = self.mail, self.method, state, members, shared
            self._sum = SecureSum(grid, *parts, cfg.privacy, *names, after, *terms)
            shared["sum"] = self._sum.record
            needed = max(needed, self._sum.about.threshold)
        self.mail.open_round()
        self.mail.enough = self._needed = needed
        return [
            self.mail.order(m, node_of[m.client], MessageType.TRAIN, wire.order(shared, m.client, m.class_id, row))
            for m, row in zip(members, rows, strict=True)
        ]

    def _pay(self, state: ServerState) -> float:
        """Count one more release, if sums have noise, before anybody is asked; its multiplier."""
        if not self.config.privacy.noisy:
            return 0.0
        if self.private is None:
            people = len(self.federation.members)
            self.private = protect(self.config, self.method, people, state.theta, (), None, _LOG.warning, shares=True)
        assert self.private is not None
        return self.private.pay(state.round_num)

    def _welcome(
        self, state: ServerState, grid: Grid, arrays: ArrayRecord, online: Mapping[int, Member]
    ) -> ServerState:
        """A row for every class that is first seen after the first round, or has none; none for who was removed."""
        classes = {member.class_id for member in online.values()}
        late = late_classes(state, classes, self.joined)
        self.joined = (self.joined or set()) | classes
        if self.method.own_spread:  # their rows are their own affair
            return with_room(state, self.federation)
        newcomers = {node_id: member for node_id, member in online.items() if member.class_id in late}
        # None are made at home where rows are guarded, as a newcomer could send anybody's; nor inside secure sums.
        defence = self.config.defence
        clear_rows = self.method.trains_own_row and not self.config.privacy.secure_sums
        may_enroll = clear_rows and not (defence.row_step or defence.anchor or defence.apart < 1)
        enrolled = self.questions.rows(grid, state, arrays, newcomers) if newcomers and may_enroll else {}
        state = with_rows(state, self.federation, late, enrolled, self.config)
        return without_removed(state, self.federation, self.method)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """θ and W from the good replies; (None, None), and nothing changed, if they are too few."""
        assert self.state is not None
        started, waited, state, asked = time.perf_counter(), self.mail.waited, self.state, len(self.mail.asked)
        if self._sum is not None:
            updates, figures = self._sum.update_of(replies, self._needed)
        else:
            updates, figures = updates_of(replies, self._needed, self.mail, state, self.config, self.method)
        self.last, self.answers = {"asked": asked, **figures}, dict(self.mail.answers)
        if not updates:
            return None, None
        method = spread_among(self.method, here(state))
        self.state = finish_round(state, updates, self.config, self._rng, method)
        self._arrays = arrays = wire.pack(self.state.theta)
        self.last["server-seconds"] = time.perf_counter() - started - (self.mail.waited - waited)
        return arrays, MetricRecord({"loss": self.state.loss, **self.last})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Nothing: a node that could tell all classes apart would need W, and W stays here."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Nothing."""
        return None


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
