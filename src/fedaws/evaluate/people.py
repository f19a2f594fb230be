r"""What one error rate hides: the whole trade-off, thresholds with what they cost, and the people behind the errors.

Doddington's animals: a *goat* is hard to recognise (its own examples are rejected), a *lamb* easy to be taken for
(others' examples are accepted as it). From scores alone, whatever system made them; the result is plain data, bounded
in size.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedaws.errors import FedawsError
from fedaws.evaluate.comparisons import Comparisons
from fedaws.evaluate.error_rates import ENOUGH, Measure, Scores, det, eer, rates, threshold_at_far
from fedaws.evaluate.intervals import figures_for_json, measures_at

WANTED = (0.1, 0.05, 0.01, 0.001)
"""The FARs whose thresholds are told, of those that so many comparisons can show."""
BINS, MOST_POINTS, MOST_PEOPLE, MOST_PAIRS = 50, 150, 2_000, 12


def examine_people(found: Comparisons, names: Sequence[str], trained: bool = False, draws: int = 200) -> dict[str, Any]:
    """DET curve, histograms, thresholds with their rates and intervals, each person's errors, who is taken for whom.

    `names[i]` is the person of number i in `found`; `trained` says that they took part in training, whose error rates
    are lower than those of others. People are looked at one by one at the threshold of the equal error rate.

    >>> scores, claimed, tested = np.array([0.9, 0.2, 0.4, 0.8]), np.array([0, 1, 0, 1]), np.array([0, 0, 1, 1])
    >>> found = Comparisons(scores, claimed, tested, np.arange(4))
    >>> examine_people(found, ["Ada", "Bo"])["eer"]["value"]
    0.0
    """
    own, others = found.targets, found.nontargets
    if not len(own) or not len(others):
        raise FedawsError("wanted scores of people against themselves and against others; one of them is missing")
    equal = _equal_threshold(own, others)
    wanted = {"equal error rate": equal}
    for far in WANTED:
        if len(others) >= ENOUGH / far - 1e-9:
            wanted[f"FAR {100 * far:g} %"] = threshold_at_far(own, others, far)
    wanted = {name: t for name, t in wanted.items() if np.isfinite(t)}
    return {
        "trained": trained,
        "people": found.num_people,
        "ask": found.ask,
        "same": len(own),
        "other": len(others),
        **_with_intervals(found, wanted, draws),
        "det": _curve(own, others),
        "histogram": _histograms(own, others),
        "at": equal,
        "each": _each(found, names, equal),
        "pairs": _pairs(found, names, equal),
    }


def _equal_threshold(own: Scores, others: Scores) -> float:
    """Where FAR and FRR are nearest to each other, and someone is still accepted."""
    thresholds, far, frr = rates(own, others)
    return float(thresholds[:-1][np.abs(far - frr)[:-1].argmin()])


def _with_intervals(found: Comparisons, wanted: dict[str, float], draws: int) -> dict[str, Any]:
    measures: dict[str, Measure] = {"eer": eer}
    for name, t in wanted.items():
        measures |= {f"{name} {rate}": measure for rate, measure in measures_at(t).items()}
    told = figures_for_json(found, measures, draws)
    lines = [
        {"wanted": name, "threshold": t, "far": told[f"{name} far"], "frr": told[f"{name} frr"]}
        for name, t in wanted.items()
    ]
    return {"eer": told["eer"], "thresholds": lines}


def _curve(own: Scores, others: Scores) -> dict[str, list[float]]:
    """Corners of the DET curve, at most so many, evenly over the curve's length on the page's axes."""
    _, far, frr = det(own, others)
    length = np.concatenate([[0.0], np.cumsum(np.abs(np.diff(np.sqrt(far))) + np.abs(np.diff(np.sqrt(frr))))])
    chosen = np.unique(np.searchsorted(length, np.linspace(0, length[-1], MOST_POINTS)).clip(0, len(far) - 1))
    return {"far": [round(float(v), 6) for v in far[chosen]], "frr": [round(float(v), 6) for v in frr[chosen]]}


def _histograms(own: Scores, others: Scores) -> dict[str, Any]:
    low, high = float(min(own.min(), others.min())), float(max(own.max(), others.max()))
    if low >= -1 - 1e-6 and high <= 1 + 1e-6:  # cosines: from a round number to 1
        low, high = min(low, np.floor(10 * low) / 10), max(high, 1.0)
    high = max(high, low + 1e-9)
    counts = [np.histogram(each, bins=BINS, range=(low, high))[0].tolist() for each in (own, others)]
    return {"low": low, "high": high, "same": counts[0], "other": counts[1]}


def _each(found: Comparisons, names: Sequence[str], threshold: float) -> list[dict[str, Any]]:
    """Everybody's FRR, and the FAR of others as them; the worst first."""
    same, accepted = found.claimed == found.tested, found.scores >= threshold
    people = np.union1d(found.claimed, found.tested)
    place = np.searchsorted(people, found.claimed)
    own, mine = (np.bincount(place[same], w, len(people)) for w in (None, accepted[same].astype(float)))
    tries, passed = (np.bincount(place[~same], w, len(people)) for w in (None, accepted[~same].astype(float)))
    lines: list[dict[str, Any]] = [
        {
            "name": str(names[person])[:200],
            "examples": int(own[i]),
            "frr": float(1 - mine[i] / own[i]) if own[i] else None,
            "far": float(passed[i] / tries[i]) if tries[i] else None,
        }
        for i, person in enumerate(people.tolist())
    ]
    return sorted(lines, key=lambda line: -((line["frr"] or 0.0) + (line["far"] or 0.0)))[:MOST_PEOPLE]


def _pairs(found: Comparisons, names: Sequence[str], threshold: float) -> list[dict[str, Any]]:
    """Whose examples are accepted as whom, by the share of their examples."""
    other = found.claimed != found.tested
    people = int(max(found.claimed.max(), found.tested.max())) + 1
    codes, place = np.unique(found.tested[other] * people + found.claimed[other], return_inverse=True)
    tries: NDArray[np.int64] = np.bincount(place)
    passed = np.bincount(place, found.scores[other] >= threshold)
    worst = np.argsort(-passed / tries, kind="stable")[:MOST_PAIRS]
    return [
        {
            "tested": str(names[codes[i] // people])[:200],
            "taken": str(names[codes[i] % people])[:200],
            "share": float(passed[i] / tries[i]),
            "examples": int(tries[i]),
        }
        for i in worst.tolist()
        if passed[i]
    ]
