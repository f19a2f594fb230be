"""The privacy of a run: from its settings to the guard of its rounds, and to what may be said of it."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from fedaws.config import Config
from fedaws.core.aggregate import Aggregate
from fedaws.core.guard import Guard, clip_of, following
from fedaws.core.method import Method
from fedaws.core.noisy_sums import NOISE, noise_energies, tell_bounded
from fedaws.core.schedule import schedule
from fedaws.core.sums import HEARD
from fedaws.errors import FedawsError
from fedaws.privacy.accountant import (
    AtMost,
    Cohorts,
    check_participations,
    cohorts_of,
    default_delta,
    epsilon,
    epsilon_if_known,
    noise_for,
    noise_to_signal,
    shared_out,
)
from fedaws.privacy.mechanism import (
    Uniform,
    beside_count,
    fixed_cohort,
    from_the_system,
    next_clip,
    noised,
    noised_sums,
    poisson_cohort,
)
from fedaws.record.facts import PrivacyFacts
from fedaws.record.journal import Journal, Metrics
from fedaws.record.ledger import Ledger, Terms
from fedaws.training.checks import Warn
from fedaws.types import Params, ServerState

_OF_ROWS: dict[str, Literal["none", "nothing released", "joint"]] = {
    "fixed": "nothing released",
    "secret": "nothing released",
    "private": "joint",
    "own": "none",
}
FARTHEST = 1000.0
"""A clip that follows the changes stays within so many times `privacy.clip`, and such a part of it."""
DROWNED = 1.0
"""Noise longer than the longest change that there can be: nothing was seen to train beyond this."""


@dataclass(frozen=True)
class Protection:
    """What a private run promises, and what it has spent."""

    cfg: Config
    clip: float
    noise: float
    delta: float
    people: int
    cohorts: Cohorts
    tables: Collection[str]
    rows: str
    ledger: Ledger
    warn: Warn
    uniform: Uniform = from_the_system

    @property
    def expected(self) -> int:
        """Clients of a round, on average: the divisor of their sum."""
        return _expected(self.cfg, self.people)

    @property
    def guard(self) -> Guard:
        """What makes a round private."""
        return Guard(self.release, self.pick)

    def pick(self, available: Tensor) -> Tensor:
        """The cohort; without those who have taken part as often as they may."""
        limit, counts = self.cfg.privacy.participations, self.ledger.participations
        if limit is not None and counts is not None:
            available = available[(counts[available.cpu()] < limit).to(available.device)]
        if self.expected == self.people:
            return available
        if self.cfg.clients.sampling == "poisson":
            return poisson_cohort(available, self.expected / self.people, self.uniform)
        return fixed_cohort(available, self.expected, self.uniform)

    def release(self, state: ServerState, total: Aggregate) -> Aggregate:
        """The cohort's work with noise, counted before it is there. Whose loss is NaN had a change of zeros."""
        left_out = int(total.losses.isnan().sum())
        if left_out and not self.ledger.left_out:
            self.warn(
                "a client's change is not finite, and counts as zero; `left_out` in the metrics has how many were"
            )
        self.ledger.spend(total.cohort, left_out)
        clip, noise, quantile = self.clip, self.noise, self.cfg.privacy.clip_quantile
        if quantile is not None:
            clip, noise = clip_of(state), beside_count(self.noise, self.expected)
            given = total.inside, len(total.cohort), quantile, self.noise, self.expected, self.uniform
            after = min(max(next_clip(clip, *given), self.clip / FARTHEST), self.clip * FARTHEST)
            total = total._replace(clip=following(after))
        clip *= schedule(self.cfg.train, state.round_num)
        at_home = self.rows == "private"
        of_theta, of_rows = shared_out(noise, self.cfg.privacy.row_share) if at_home else (noise, 0.0)
        seen = noised(total, state.theta, clip, of_theta, self.expected, self.uniform, self.tables)
        return rows_noised(state, seen, of_rows, self.expected, self.uniform) if at_home else seen

    def pay(self, round_num: int) -> float:
        """Count a release to which others add the noise, and of which nothing is there yet; the noise's multiplier."""
        if self.spent_all:
            raise self.over(round_num)
        self.ledger.spend(torch.empty(0, dtype=torch.int64))
        return self.noise

    @property
    def spent_all(self) -> bool:
        """Whether one more release would exceed the target ε, if there is one; a limit for each client keeps it too."""
        limited = self.cfg.privacy.participations is not None
        return self.cfg.privacy.epsilon is not None and not limited and self.ledger.releases >= self.cfg.train.rounds

    def over(self, round_num: int) -> FedawsError:
        """What to say then."""
        releases = self.ledger.releases
        return FedawsError(
            f"privacy.epsilon={self.cfg.privacy.epsilon:g} is spent after {releases} releases, {releases - round_num} "
            f"of them of rounds that a crash lost; the run ends here: its model is the checkpoint of round {round_num}"
        )

    def spent(self) -> dict[str, float]:
        """ε so far, for a row of metrics."""
        left_out = {"left_out": float(self.ledger.left_out)} if self.ledger.left_out else {}
        bare = {"dp_rows_in_clear": 1.0} if _OF_ROWS[self.rows] == "none" else {}
        return {"dp_epsilon": self._epsilon(epsilon), **bare, **left_out}

    def facts(self) -> PrivacyFacts:
        """All that is promised, for the record."""
        return PrivacyFacts(
            epsilon=self._epsilon(epsilon),
            epsilon_if_known=self._epsilon(epsilon_if_known),
            delta=self.delta,
            clip=self.clip,
            noise=self.noise,
            releases=self.ledger.releases,
            people=self.people,
            per_round=self.expected,
            cohorts=self.cohorts.in_words,
            neighbours=self.cohorts.neighbours,
            covers="theta and means of rows" if self.rows == "private" else "theta",
            rows=_OF_ROWS[self.rows],
        )

    def _epsilon(self, of: Callable[[float, float, int, Cohorts], float]) -> float:
        rounds = self.ledger.releases
        if self.ledger.participations is not None:
            rounds = int(self.ledger.participations.max())
        if self.cfg.train.patience is not None:  # when it ends depends on what was released: it owes all its rounds
            rounds = max(rounds, self.cfg.train.rounds)
        return of(self.noise, self.delta, rounds, self.cohorts)


def protect(
    cfg: Config,
    method: Method,
    people: int,
    theta: Params,
    tables: Collection[str],
    folder: Path | None,
    warn: Warn,
    shares: bool = False,
) -> Protection | None:
    """The protection that `[privacy]` asks for; None if it asks for none. `shares`: the nodes add the noise."""
    privacy = cfg.privacy
    if not privacy.noisy or privacy.clip is None:
        return None
    check_promise(cfg, method, people)
    delta = privacy.delta or default_delta(people)
    cohorts = _cohorts(cfg, people, method, shares)
    noise = privacy.noise or noise_for(privacy.epsilon or 0.0, delta, cfg.train.rounds, cohorts)
    epsilon(noise, delta, 1, cohorts)  # a missing extra shows before the hours, not after
    parameters = sum(p.numel() for p in theta.values())
    ratio = noise_to_signal(noise, _expected(cfg, people), parameters)
    if ratio >= DROWNED:
        warn(
            f"the noise is {ratio:.2g} × as long as the longest change of θ can be: this will not train; more clients, "
            "a larger clients.per_round or fewer parameters help (fedaws privacy plan)"
        )
    terms = Terms(noise=noise, clip=privacy.clip, delta=delta, people=people, cohorts=cohorts.in_words)
    ledger = Ledger(folder, terms, limited=privacy.participations is not None)
    return Protection(cfg, privacy.clip, noise, delta, people, cohorts, tables, method.rows, ledger, warn)


def noise_in_shares(cfg: Config, people: int) -> float:
    """The multiplier of the noise that nodes add in shares; 0: none."""
    privacy = cfg.privacy
    if not privacy.noisy:
        return 0.0
    delta, cohorts = privacy.delta or default_delta(people), AtMost(discrete=True)
    return privacy.noise or noise_for(privacy.epsilon or 0.0, delta, cfg.train.rounds, cohorts)


def _cohorts(cfg: Config, people: int, method: Method, shares: bool) -> Cohorts:
    if shares:  # who is online is nobody's secret
        return AtMost(discrete=True)
    poisson, limit = cfg.clients.sampling == "poisson", cfg.privacy.participations
    return cohorts_of(people, _expected(cfg, people), poisson, limit, method.trains_own_row)


def rows_noised(state: ServerState, total: Aggregate, noise: float, expected: int, uniform: Uniform) -> Aggregate:
    """The cohort's work with noise in what its private rows tell, and how much noise that is."""
    like = {name: tensor for name, tensor in state.spread.items() if name not in (HEARD, NOISE)}
    sums = noised_sums(total.sums, like, noise, expected, uniform)
    dim, people = state.W.shape[1], len(state.spread[HEARD])
    return total._replace(sums={**sums, NOISE: noise_energies(dim, noise / expected, expected, expected / people)})


def opened(
    journal: Journal, first: ServerState, resume: bool, private: Protection | None
) -> tuple[ServerState, list[Metrics]]:
    """Where to start from. What was spent is read, or that nothing was is written, before there is a run to resume."""
    if private is None:
        return journal.open(first, resume)
    begun = journal.going_on(resume)
    private.ledger.open(begun)
    state, history = journal.open(first, resume)
    private.ledger.check(state.round_num)
    return state, history


def noise_on_rows(cfg: Config, people: int, uniform: Uniform = from_the_system) -> Guard | None:
    """`privacy.row_noise` alone: what rows tell has noise, θ has none, and nothing is promised."""
    noise = cfg.privacy.row_noise
    if noise is None:
        return None
    return Guard(lambda state, total: rows_noised(state, total, noise, _expected(cfg, people), uniform))


def _expected(cfg: Config, people: int) -> int:
    return people if cfg.clients.per_round == "all" else min(cfg.clients.per_round, people)


def check_promise(cfg: Config, method: Method, people: int) -> None:
    """Refuse methods with which no ε holds."""
    name = f"method={method.name}"
    if method.spread:
        raise FedawsError(
            f"{name} moves a client's row by the others' rows, without noise, and so θ too: no ε holds; "
            "set privacy.rows=private and spread.regularizer=moments, or method=fixed-spread or positive-only"
        )
    if method.own_spread and method.own_spread.tell is not tell_bounded:
        raise FedawsError(
            f"{name} has a way of its own to tell of private rows, and nobody knows how far one moves the sum: no ε "
            "holds; use method=fedaws"
        )
    if method.weighting or method.last_step:
        what = "weighs clients by their losses" if method.weighting else "ends with sums of embeddings without noise"
        raise FedawsError(f"{name} {what}: no ε holds; set method=fixed-spread or positive-only")
    check_participations(people, _expected(cfg, people), cfg.train.rounds, cfg.privacy.participations)
