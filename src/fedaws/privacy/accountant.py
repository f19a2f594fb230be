r"""What noise costs: ε of many rounds, and the noise for a given ε. The accounting itself is Google's `dp-accounting`.

A round releases a sum of clipped vectors plus :math:`N(0, (zS)^2)`; z is the noise multiplier, S the clip. How far one
person moves the sum, and how often, depends on how cohorts are made, and each kind has an accounting of its own:

- `Poisson`: everybody by a coin of its own; a person more or less moves the sum by S (privacy loss distributions);
- `Fixed`: n of N without replacement; one person in another's place moves it by 2S (Rényi, z/2; Wang, Balle
  and Kasiviswanathan 2019). It is *not* Poisson;
- `AtMost`: no secret about who takes part, but nobody does more than k times: exactly a Gaussian of z/√k; of noise in
  whole numbers (`discrete`, :mod:`fedaws.privacy.noise_shares`) it is k/2z²-concentrated, ε(α) = αk/2z² of Rényi.
"""

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from scipy.optimize import brentq
from scipy.stats import binom

from fedaws.errors import FedawsError

_PRECISION = 1e-4  # of noise that is looked for, as a part of it
LEAST_NOISE = 0.1
"""The least that is planned with: here one release alone, without sampling, costs an ε of about ninety."""
LEAST_EPSILON = 1e-3
"""The least that is aimed at: below it the noise is thousands of times a person's change, and its digits get lost."""
_COARSE = 0.5  # below this noise, losses are so large that their distributions take minutes: Rényi's bound will do


@dataclass(frozen=True)
class Poisson:
    """Every client takes part by an independent coin."""

    probability: float
    neighbours = "one person more or less"

    @property
    def in_words(self) -> str:
        """For people."""
        return f"each client by a coin of {self.probability:.4g} in every round"


@dataclass(frozen=True)
class Fixed:
    """`per_round` of `people`, without replacement; `hidden`: nothing but the noisy sums depends on who took part."""

    people: int
    per_round: int
    hidden: bool = True
    neighbours = "one person in the place of another"

    @property
    def in_words(self) -> str:
        """For people."""
        known = "" if self.hidden else ", no amplification"
        return f"{self.per_round:,} of {self.people:,} without replacement{known}"


@dataclass(frozen=True)
class AtMost:
    """No client takes part in more than so many rounds; None: in all of them. Who does may be known to anybody."""

    participations: int | None = None
    discrete: bool = False  # noise in whole numbers
    neighbours = "one person's part left out"

    @property
    def in_words(self) -> str:
        """For people."""
        often = "every round" if self.participations is None else f"at most {self.participations:,} rounds"
        shares = ", noise in shares of the nodes" if self.discrete else ""
        return f"each client in {often}, no amplification{shares}"


Cohorts = Poisson | Fixed | AtMost


def cohorts_of(
    people: int, per_round: int, poisson: bool, participations: int | None = None, own_rows: bool = False
) -> Cohorts:
    """How cohorts are made, as the accounting has to see it.

    Clients that train rows of their own (`own_rows`) remember who took part: with a fixed number one is in *because*
    another is not, so what the others do later tells of this one's coin, and amplification has no proof. By coins of
    their own the others' rows tell nothing of it (docs/privacy.md).

    >>> cohorts_of(100, 10, poisson=True), cohorts_of(100, 10, poisson=False)
    (Poisson(probability=0.1), Fixed(people=100, per_round=10, hidden=True))
    >>> cohorts_of(100, 100, poisson=True) == AtMost()
    True
    """
    if participations is not None or per_round >= people:
        return AtMost(participations)
    return Poisson(per_round / people) if poisson else Fixed(people, per_round, hidden=not own_rows)


def joint(*multipliers: float) -> float:
    r"""The one z of several vectors released together, each with noise of its own multiplier of its own clip.

    .. math:: 1/z^2 = \sum_i 1/z_i^2

    >>> joint(4.0), round(joint(4.0, 12.0, 12.0), 3)  # the second and third cost 10.6 % more noise on the first
    (4.0, 3.618)
    """
    return 1 / math.sqrt(sum(z**-2 for z in multipliers))


def shared_out(noise: float, row_share: float) -> tuple[float, float]:
    """The multipliers of θ's change and of each of the two sums of rows, that together cost what `noise` alone does.

    >>> of_theta, of_rows = shared_out(2.0, 0.2)
    >>> round(of_theta, 3), round(of_rows, 3), round(joint(of_theta, of_rows, of_rows), 3)
    (2.236, 6.325, 2.0)
    """
    return noise / math.sqrt(1 - row_share), noise / math.sqrt(row_share / 2)


@cache
def epsilon(noise: float, delta: float, rounds: int, cohorts: Cohorts) -> float:
    """ε that so many rounds cost at this δ.

    >>> round(epsilon(4.0, 1e-5, 10, AtMost()), 2), round(epsilon(4.0, 1e-5, 500, AtMost(10)), 2)
    (3.34, 3.34)
    """
    _check_delta(delta)
    if rounds == 0:
        return 0.0
    dp = _dp_accounting()
    kind = AtMost() if cohorts == Poisson(1.0) else cohorts
    match kind:
        case AtMost(limit, discrete):
            times = rounds if limit is None else min(limit, rounds)
            of = _of_concentrated if discrete else dp.get_epsilon_gaussian
            return float(of(noise / math.sqrt(times), delta))
        case Poisson() if noise < _COARSE:
            accountant = dp.rdp.RdpAccountant(neighboring_relation=_relation(kind))
            sampled = _composed(accountant, noise, delta, rounds, kind)
            return min(sampled, epsilon(noise, delta, rounds, AtMost()))
        case Poisson():
            # A coarser grid is faster, and its ε larger, never smaller: with this one by about 1e-4 of it.
            grid = min(max(kind.probability / noise / 20, 2e-5), 1e-3)
            accountant = dp.pld.PLDAccountant(_relation(kind), value_discretization_interval=grid)
            return _composed(accountant, noise, delta, rounds, kind)
        case Fixed(hidden=False):
            return epsilon_if_known(noise, delta, rounds, kind)
        case Fixed():
            sampled = _composed(dp.rdp.RdpAccountant(neighboring_relation=_relation(kind)), noise, delta, rounds, kind)
            return min(sampled, float(dp.get_epsilon_gaussian(noise / 2 / math.sqrt(rounds), delta)))


def epsilon_if_known(noise: float, delta: float, rounds: int, cohorts: Cohorts) -> float:
    r"""ε against whoever knows who took part in which round: from W or a list of them, nothing is hidden by sampling.

    A client drawn with probability q takes part in a binomial number of rounds, more than k times with a chance of at
    most δ/2; else k releases show it, at δ/2:

    .. math:: \Pr[\mathrm{Bin}(T, q) > k] \le \delta/2, \qquad \varepsilon = \varepsilon_{Gauss}(z/\sqrt k, \delta/2)

    >>> epsilon_if_known(4.0, 1e-5, 10, AtMost()) == epsilon(4.0, 1e-5, 10, AtMost())
    True
    >>> round(epsilon(4.0, 1e-5, 200, Poisson(0.1)), 2), round(epsilon_if_known(4.0, 1e-5, 200, Poisson(0.1)), 2)
    (1.42, 7.87)
    """
    if isinstance(cohorts, AtMost) or rounds == 0:
        return epsilon(noise, delta, rounds, cohorts)
    often = int(binom.isf(delta / 2, rounds, _share(cohorts)))  # the least k that meets it
    moved = noise if isinstance(cohorts, Poisson) else noise / 2  # one in another's place moves the sum by 2S
    return epsilon(moved, delta / 2, max(often, 1), AtMost())


def check_participations(people: int, per_round: int, rounds: int, limit: int | None) -> None:
    """Refuse more rounds than clients of so many participations can fill.

    >>> check_participations(40, 13, 6, 2)
    """
    if limit is not None and rounds * per_round > limit * people:
        raise FedawsError(
            f"participations={limit} of {people:,} clients are {limit * people:,} in all, and {rounds:,} rounds of "
            f"{per_round:,} need {rounds * per_round:,}; set rounds to {limit * people // per_round:,} or raise it"
        )


@cache
def noise_for(target: float, delta: float, rounds: int, cohorts: Cohorts) -> float:
    """The least noise multiplier, to a ten-thousandth of it, with which so many rounds cost at most the target ε; never
    below `LEAST_NOISE`.

    >>> round(noise_for(3.34141, 1e-5, 10, AtMost()), 3)
    4.0
    """
    _check_delta(delta)
    if not target >= LEAST_EPSILON or not math.isfinite(target):
        raise FedawsError(f"epsilon={target:g}; wanted a number of at least {LEAST_EPSILON:g}, such as 2")
    if isinstance(cohorts, AtMost) and not cohorts.discrete:
        times = rounds if cohorts.participations is None else min(cohorts.participations, rounds)
        return max(LEAST_NOISE, math.sqrt(times) * float(_dp_accounting().get_sigma_gaussian(target, delta)))
    if epsilon(LEAST_NOISE, delta, rounds, cohorts) <= target:
        return LEAST_NOISE

    def excess(log_noise: float) -> float:
        return math.log(epsilon(math.exp(log_noise), delta, rounds, cohorts) / target)

    low = high = math.log(_guess(target, delta, rounds, cohorts))
    while excess(high) > 0:
        low, high = high, high + 0.25
    while excess(low) <= 0:
        low, high = low - 0.25, low
    found = float(brentq(excess, low, high, xtol=_PRECISION / 4))
    while excess(found) > 0:  # the root's rounding, to the safe side
        found += _PRECISION / 4
    return math.exp(found)


def _of_concentrated(noise: float, delta: float) -> float:
    """ε of a release that is 1/2z²-concentrated: the best of Rényi's orders."""
    rdp = _dp_accounting().rdp
    orders = [1 + 10 ** (power / 50) for power in range(-100, 201)]  # 1.01 to 10,001
    found, _ = rdp.compute_epsilon(orders, [order / (2 * noise**2) for order in orders], delta)
    return float(found)


def _guess(target: float, delta: float, rounds: int, cohorts: Cohorts) -> float:
    """Noise that is about right: many rounds of a sampled Gaussian are about one of 1/z = q √(T (e^{1/z²} − 1)) (Bu et
    al. 2020), which a square root and a logarithm turn round.
    """
    mu = 1 / float(_dp_accounting().get_sigma_gaussian(target, delta))
    if isinstance(cohorts, AtMost):
        return noise_for(target, delta, rounds, AtMost(cohorts.participations))
    noise = 1 / math.sqrt(math.log1p(mu**2 / (rounds * _share(cohorts) ** 2)))
    return noise if isinstance(cohorts, Poisson) else 2 * noise


def _share(cohorts: Poisson | Fixed) -> float:
    return cohorts.probability if isinstance(cohorts, Poisson) else cohorts.per_round / cohorts.people


def default_delta(people: int) -> float:
    """δ = N^−1.1, below one in N.

    >>> default_delta(10_000) < 1 / 10_000
    True
    """
    return float(max(people, 2) ** -1.1)


def noise_to_signal(noise: float, per_round: float, parameters: int) -> float:
    r"""The length of the noise on the mean change of θ over the most that change can be: :math:`z \sqrt p / n`.

    >>> round(noise_to_signal(5.7, 60, 50_000))
    21
    """
    return noise * math.sqrt(parameters) / per_round


def _composed(accountant: Any, noise: float, delta: float, rounds: int, cohorts: Poisson | Fixed) -> float:
    dp = _dp_accounting()
    if isinstance(cohorts, Poisson):
        event = dp.PoissonSampledDpEvent(cohorts.probability, dp.GaussianDpEvent(noise))
    else:  # the sum moves by 2S
        event = dp.SampledWithoutReplacementDpEvent(cohorts.people, cohorts.per_round, dp.GaussianDpEvent(noise / 2))
    with _quiet():
        return float(accountant.compose(event, rounds).get_epsilon(delta))


def _relation(cohorts: Poisson | Fixed) -> Any:
    relations = _dp_accounting().NeighboringRelation
    return relations.ADD_OR_REMOVE_ONE if isinstance(cohorts, Poisson) else relations.REPLACE_ONE


def _dp_accounting() -> Any:
    try:
        import dp_accounting  # noqa: PLC0415 - an extra, and slow to import
        import dp_accounting.pld  # noqa: PLC0415
        import dp_accounting.rdp  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise FedawsError(
            f"{error.name} is not installed; pip install 'fedaws[privacy]', or in a clone: pip install -e '.[privacy]'"
        ) from None
    return dp_accounting


@contextmanager
def _quiet() -> Iterator[None]:
    """Rényi orders that do not converge are left out of a minimum, which stays a bound: nothing to warn of."""
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise FedawsError(f"delta={delta}; wanted a number above 0 and below 1, such as 1e-5")
