r"""Error rates of verification (is this Alice?) and of open-set identification (who is this, if anybody?).

A score at or above the threshold is accepted. *Targets* are the scores of people against themselves, *nontargets* those
against others:

.. math:: FAR(t) = \frac{|\{n \ge t\}|}{|nontargets|}, \qquad FRR(t) = \frac{|\{s < t\}|}{|targets|}

ISO/IEC 19795 calls them FMR and FNMR, and with many enrolled people (1:N) FPIR and FNIR; those names are here too.
Equal scores are accepted or rejected together. NumPy alone; everything takes O(n log n).
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedaws.errors import FedawsError

Scores = NDArray[np.float64]
Measure = Callable[[Scores, Scores], float]
"""(targets, nontargets) → a figure."""
ENOUGH = 10
"""A rate r is measured on at least ENOUGH / r scores: with fewer, one error more or less is more than a tenth of it."""


class Rates(NamedTuple):
    """FAR and FRR at every threshold that makes a difference, from the lowest to +∞."""

    thresholds: Scores  # [k] the distinct scores, ascending, then ∞
    far: Scores  # [k] falls to 0
    frr: Scores  # [k] rises to 1


# --- one number after another -----------------------------------------------------------------------------------------


def rates(targets: ArrayLike, nontargets: ArrayLike) -> Rates:
    """FAR and FRR at every distinct score and at ∞.

    >>> rates([0.5, 0.9], [0.1, 0.5])
    Rates(thresholds=array([0.1, 0.5, 0.9, inf]), far=array([1. , 0.5, 0. , 0. ]), frr=array([0. , 0. , 0.5, 1. ]))
    """
    own, others = _sorted(targets, "targets"), _sorted(nontargets, "nontargets")
    values = np.unique(np.concatenate([own, others]))
    thresholds = np.append(values[values > -np.inf], np.inf)  # −∞ is below every threshold
    accepted = len(others) - np.searchsorted(others, thresholds)  # whole numbers: 1 − 99/100 is not 1/100
    return Rates(thresholds, accepted / len(others), np.searchsorted(own, thresholds) / len(own))


def rates_at(targets: ArrayLike, nontargets: ArrayLike, threshold: float) -> tuple[float, float]:
    """(FAR, FRR) at one threshold.

    >>> rates_at([0.5, 0.9], [0.1, 0.5], 0.6)
    (0.0, 0.5)
    """
    own, others = _sorted(targets, "targets"), _sorted(nontargets, "nontargets")
    return float(np.mean(others >= threshold)), float(np.mean(own < threshold))


def eer(targets: ArrayLike, nontargets: ArrayLike) -> float:
    """The equal error rate: where the straight lines between the points (FAR, FRR) meet FAR = FRR.

    >>> eer([0.5, 0.9], [0.1, 0.5])  # half way from (0.5, 0) to (0, 0.5)
    0.25
    """
    _, far, frr = rates(targets, nontargets)
    gap = far - frr  # falls from 1 to −1
    after = int(np.argmax(gap <= 0))
    if gap[after] == 0:
        return float(far[after])
    share = gap[after - 1] / (gap[after - 1] - gap[after])
    return float(far[after - 1] + share * (far[after] - far[after - 1]))


def min_dcf(
    targets: ArrayLike, nontargets: ArrayLike, p_target: float = 0.01, c_miss: float = 1.0, c_fa: float = 1.0
) -> float:
    r"""NIST's detection cost at the best threshold, over that of deciding without looking: 0 is perfect, 1 useless.

    .. math:: \min_t \frac{c_{miss}\, p\, FRR(t) + c_{fa} (1 - p)\, FAR(t)}{\min(c_{miss}\, p,\; c_{fa} (1 - p))}

    >>> min_dcf([0.5, 0.9], [0.1, 0.5], p_target=0.5)
    0.5
    """
    if not 0 < p_target < 1 or not (0 < c_miss < np.inf and 0 < c_fa < np.inf):
        raise FedawsError(f"p_target={p_target}, c_miss={c_miss}, c_fa={c_fa}; wanted 0 < p_target < 1, costs above 0")
    _, far, frr = rates(targets, nontargets)
    miss, false_alarm = c_miss * p_target, c_fa * (1 - p_target)
    return float(np.min(miss * frr + false_alarm * far) / min(miss, false_alarm))


def threshold_at_far(targets: ArrayLike, nontargets: ArrayLike, far: float) -> float:
    """The lowest threshold at which at most this share of nontargets is accepted; ∞ if there is none below.

    >>> threshold_at_far([0.5, 0.9], np.arange(20) / 20, far=0.5)
    0.5
    """
    check_enough(nontargets, far, "far", "nontargets")
    return at_far(targets, nontargets, far)[0]


def threshold_at_frr(targets: ArrayLike, nontargets: ArrayLike, frr: float) -> float:
    """The highest threshold at which at most this share of targets is rejected.

    >>> threshold_at_frr(np.arange(20) / 20, [0.1], frr=0.5)
    0.5
    """
    check_enough(targets, frr, "frr", "targets")
    found = rates(targets, nontargets)
    return float(found.thresholds[np.flatnonzero(found.frr <= frr)[-1]])


def frr_at_far(targets: ArrayLike, nontargets: ArrayLike, far: float) -> float:
    """FRR at the threshold that accepts at most this share of nontargets: the field's FNR (or 1 − TAR) at FAR.

    >>> frr_at_far([0.3, 0.9], np.arange(20) / 20, far=0.5)
    0.5
    """
    check_enough(nontargets, far, "far", "nontargets")
    return at_far(targets, nontargets, far)[1]


def at_far(targets: ArrayLike, nontargets: ArrayLike, far: float) -> tuple[float, float]:
    """(threshold, FRR) where at most this share of nontargets is accepted, however few they are.

    >>> at_far([0.3, 0.9], [0.1, 0.5], far=0.5)
    (0.3, 0.0)
    """
    found = rates(targets, nontargets)
    first = int(np.argmax(found.far <= far))
    return float(found.thresholds[first]), float(found.frr[first])


def det(targets: ArrayLike, nontargets: ArrayLike) -> Rates:
    """The corners of the DET curve: `rates` without the points on straight lines between their neighbours.

    >>> det([0.7, 0.8, 0.9], [0.1, 0.2, 0.3]).far.tolist()
    [1.0, 0.0, 0.0]
    """
    found = rates(targets, nontargets)
    steps = np.stack([np.diff(found.far), np.diff(found.frr)])
    still = (steps == 0)[:, 1:] & (steps == 0)[:, :-1]  # FAR, or FRR, did not move before nor after
    corners = np.concatenate([[True], ~still.any(0), [True]])
    return Rates(*(column[corners] for column in found))


def auc(targets: ArrayLike, nontargets: ArrayLike) -> float:
    """The probability that a target scores higher than a nontarget, equal scores counted half.

    >>> auc([0.5, 0.9], [0.1, 0.5])
    0.875
    """
    own, others = _sorted(targets, "targets"), _sorted(nontargets, "nontargets")
    below = np.searchsorted(others, own).sum() + np.searchsorted(others, own, side="right").sum()
    return float(below / (2 * len(own) * len(others)))


def cllr(targets: ArrayLike, nontargets: ArrayLike) -> float:
    r"""The cost of scores taken for natural logarithms of likelihood ratios, in bits; 1 for scores that say nothing.

    .. math:: \tfrac12 \Big( \mathrm{mean}_{s \in targets} \log_2 (1 + e^{-s})
              + \mathrm{mean}_{s \in nontargets} \log_2 (1 + e^s) \Big)

    >>> cllr([0.0], [0.0])
    1.0
    """
    own, others = _sorted(targets, "targets"), _sorted(nontargets, "nontargets")
    return float((np.logaddexp(0, -own).mean() + np.logaddexp(0, others).mean()) / (2 * np.log(2)))


def min_cllr(targets: ArrayLike, nontargets: ArrayLike) -> float:
    """Cllr after the best rising calibration of these scores (pool adjacent violators): what discrimination costs.

    >>> min_cllr([3.0, 4.0], [1.0, 2.0])
    0.0
    """
    from scipy.optimize import isotonic_regression  # noqa: PLC0415 - scipy takes a while, and only this needs it

    own, others = _sorted(targets, "targets"), _sorted(nontargets, "nontargets")
    values, place = np.unique(np.concatenate([own, others]), return_inverse=True)
    of_own = np.bincount(place[: len(own)], minlength=len(values))
    of_others = np.bincount(place[len(own) :], minlength=len(values))
    total = of_own + of_others
    posterior = isotonic_regression(of_own / total, weights=total).x
    # e^LLR = odds / prior odds; where a pool has no targets (or no nontargets) its term is nobody's.
    ratio = len(own) / len(others)
    with np.errstate(divide="ignore"):
        misses = np.where(of_own > 0, np.log2(1 + ratio * (1 - posterior) / posterior), 0)
        false_alarms = np.where(of_others > 0, np.log2(1 + posterior / (ratio * (1 - posterior))), 0)
    return float((of_own @ misses / len(own) + of_others @ false_alarms / len(others)) / 2)


# --- one among many ---------------------------------------------------------------------------------------------------


def searches(scores: ArrayLike, owner: ArrayLike) -> tuple[Scores, Scores]:
    """Searches for people [n, enrolled] as (targets, nontargets), for all of the functions above.

    `owner` [n] is the column of the person who is looked for, −1 for a stranger. A search of an enrolled person scores
    what its own column does, or −∞ where another is as high (rank 1 is missed); a stranger's scores its highest. FAR is
    then FPIR, FRR FNIR.

    >>> searches([[0.9, 0.2], [0.8, 0.7], [0.4, 0.3]], [0, 1, -1])
    (array([ 0.9, -inf]), array([0.4]))
    """
    table, own = np.asarray(scores, np.float64), np.asarray(owner)
    if table.ndim != 2 or not table.size or own.shape != table.shape[:1] or own.dtype.kind not in "iu":
        raise FedawsError(
            f"scores have shape {table.shape}, owner {own.shape} of {own.dtype}; wanted [searches, enrolled] and "
            "[searches] whole numbers"
        )
    if own.min() < -1 or own.max() >= table.shape[1]:
        raise FedawsError(f"owner goes from {own.min()} to {own.max()}; wanted −1 … {table.shape[1] - 1}")
    known = np.flatnonzero(own >= 0)
    hit = table[known, own[known]]
    rest = table[known].copy()
    rest[np.arange(len(known)), own[known]] = -np.inf
    return np.where(rest.max(1, initial=-np.inf) < hit, hit, -np.inf), table[own < 0].max(1)


def fnir_at_fpir(scores: ArrayLike, owner: ArrayLike, fpir: float) -> float:
    """The share of enrolled people who are not found at rank 1 above the threshold that finds this share of strangers.

    >>> strangers = np.arange(20)[:, None] / 20 * [1, 0]
    >>> fnir_at_fpir(np.concatenate([[[0.9, 0.2], [0.3, 0.4]], strangers]), [0, 1] + 20 * [-1], fpir=0.5)
    0.5
    """
    return frr_at_far(*searches(scores, owner), far=fpir)


# --- what is too little --------------------------------------------------------------------------------------------


def check_enough(scores: ArrayLike, rate: float, name: str, kind: str) -> None:
    """Refuse to speak of a rate that so few scores cannot show."""
    if not 0 < rate <= 1:
        raise FedawsError(f"{name}={rate}; wanted 0 < {name} ≤ 1")
    count, wanted = np.size(scores), int(np.ceil(ENOUGH / rate - 1e-9))
    if count < wanted:
        raise FedawsError(
            f"{name}={rate:g} cannot be measured on {count:,} {kind}; wanted {wanted:,} or more ({ENOUGH}/{name}): "
            f"add people or examples, or raise {name}"
        )


def _sorted(scores: ArrayLike, name: str) -> Scores:
    values = np.sort(np.asarray(scores, np.float64), kind="stable")
    if values.ndim != 1 or not len(values):
        raise FedawsError(f"{name} have shape {values.shape}; wanted a list of at least one score")
    # NaN is sorted to the end; −∞ is a search that missed, which only a target's can.
    if not values[-1] < np.inf or (name == "nontargets" and values[0] == -np.inf):
        raise FedawsError(f"{name} have scores that are NaN or infinite; leave them out")
    return values
