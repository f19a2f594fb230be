"""How sure an error rate is: intervals over people, and thresholds with the rates that they give."""

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedaws.errors import FedawsError
from fedaws.evaluate.comparisons import Comparisons
from fedaws.evaluate.error_rates import (
    Measure,
    Scores,
    at_far,
    auc,
    check_enough,
    eer,
    min_dcf,
    rates_at,
    threshold_at_far,
    threshold_at_frr,
)

FEWEST = 5
"""People for an interval."""


class Figure(NamedTuple):
    """A measured figure, and where it lies for other people of the same kind."""

    value: float
    low: float
    high: float


def figures(
    found: Comparisons, measures: Mapping[str, Measure], level: float = 0.95, draws: int = 1000, seed: int = 0
) -> dict[str, Figure]:
    """Measures with their intervals, by a bootstrap of two levels: people are drawn, and then examples of each.

    Scores of one person depend on each other, so an interval that draws scores is too narrow (Wu, Martin, Kacker 2016).
    A comparison counts as often as the enrolled person was drawn, times, for others' examples, as often as their
    person was, times as often as the example was among that person's. It says how far *these* people could have been
    others of their kind, not how far they are from yours.
    """
    if found.num_people < FEWEST:
        raise FedawsError(f"an interval over {found.num_people} people says nothing; wanted {FEWEST} or more")
    if not 0 < level < 1 or draws < 1:
        raise FedawsError(f"level={level}, draws={draws}; wanted 0 < level < 1 and at least one draw")
    values: dict[str, list[float]] = {name: [] for name in measures}
    for targets, nontargets in islice(_redrawn(found, seed), draws):
        for name, measure in measures.items():
            values[name].append(measure(targets, nontargets))
    ends = [(1 - level) / 2, (1 + level) / 2]
    return {
        name: Figure(measure(found.targets, found.nontargets), *map(float, np.quantile(values[name], ends)))
        for name, measure in measures.items()
    }


def figures_for_json(
    found: Comparisons, measures: Mapping[str, Measure], draws: int = 1000
) -> dict[str, dict[str, float | None]]:
    """Value, low and high of each measure; low and high are None where the people are too few for intervals."""
    if found.num_people >= FEWEST:
        return {name: figure._asdict() for name, figure in figures(found, measures, draws=draws).items()}
    values = {name: measure(found.targets, found.nontargets) for name, measure in measures.items()}
    return {name: {"value": value, "low": None, "high": None} for name, value in values.items()}


def summary(
    found: Comparisons, far: float | None = None, p_target: float = 0.01, draws: int = 1000
) -> dict[str, Figure]:
    """EER, minDCF, AUC and, for a wanted FAR, FRR at it; each with its 95 % interval over people."""
    return figures(found, summary_measures(found, far, p_target), draws=draws)


def summary_measures(found: Comparisons, far: float | None, p_target: float) -> dict[str, Measure]:
    """The measures of a summary; refused where a wanted FAR cannot be shown."""
    measures: dict[str, Measure] = {"eer": eer, "min_dcf": partial(min_dcf, p_target=p_target), "auc": auc}
    if far is not None:
        check_enough(found.nontargets, far, "far", "nontargets")
        measures["frr_at_far"] = lambda own, others: at_far(own, others, far)[1]
    return measures


class Threshold(NamedTuple):
    """A threshold, and the rates that it gave on people who took no part."""

    threshold: float
    far: Figure
    frr: Figure
    people: int
    ask: int | None = None  # examples that were asked about at once, if that is known

    def facts(self) -> dict[str, Any]:
        """For JSON."""
        return self._asdict() | {"far": self.far._asdict(), "frr": self.frr._asdict()}


def threshold_for(
    found: Comparisons,
    *,
    far: float | None = None,
    frr: float | None = None,
    tested: Comparisons | None = None,
    draws: int = 1000,
    seed: int = 0,
) -> Threshold:
    """The threshold for a wanted FAR or FRR on these comparisons, with the rates there and their intervals.

    With `tested`, of others than those by whom the threshold was found, the rates are theirs: what it gives on people
    whom nothing was fitted to.
    """
    if (far is None) == (frr is None):
        raise FedawsError(f"far={far}, frr={frr}; wanted one of them: the other follows")
    if far is not None:
        threshold = threshold_at_far(found.targets, found.nontargets, far)
    else:
        threshold = threshold_at_frr(found.targets, found.nontargets, frr or 0.0)
    shown = tested or found
    both = figures(shown, measures_at(threshold), draws=draws, seed=seed)
    return Threshold(threshold, **both, people=shown.num_people, ask=found.ask)


def measures_at(threshold: float) -> dict[str, Measure]:
    """FAR and FRR at one threshold."""
    return {
        "far": lambda own, others: rates_at(own, others, threshold)[0],
        "frr": lambda own, others: rates_at(own, others, threshold)[1],
    }


def _redrawn(found: Comparisons, seed: int) -> Iterator[tuple[Scores, Scores]]:
    """(targets, nontargets) of other people of their kind, sorted, without end; draws without either are left out."""
    order = np.argsort(found.scores, kind="stable")  # once: what is repeated below stays sorted
    scores = found.scores[order]
    people = np.union1d(found.claimed, found.tested)
    claimed, tested = (np.searchsorted(people, side[order]) for side in (found.claimed, found.tested))
    same = claimed == tested
    examples, example = np.unique(found.example[order], return_inverse=True)
    owner = np.empty(len(examples), np.int64)
    owner[example] = tested
    rng = np.random.default_rng(seed)
    if not same.any() or same.all():
        raise FedawsError("wanted targets and nontargets; there are only the one or the other")
    while True:
        drawn = np.bincount(rng.integers(len(people), size=len(people)), minlength=len(people))
        within = _drawn_within(rng, owner, len(people))[example]
        times = within * drawn[tested] * np.where(same, 1, drawn[claimed])
        if times[same].any() and times[~same].any():
            yield np.repeat(scores[same], times[same]), np.repeat(scores[~same], times[~same])


def _drawn_within(rng: np.random.Generator, owner: NDArray[np.int64], people: int) -> NDArray[np.int64]:
    """How often each example is drawn when everybody's examples are drawn anew from that person's own, [examples]."""
    order = np.argsort(owner, kind="stable")
    counts = np.bincount(owner, minlength=people)
    starts = np.cumsum(counts) - counts
    mine = owner[order]
    picked = starts[mine] + (rng.random(len(order)) * counts[mine]).astype(np.int64)
    times = np.empty(len(order), np.int64)
    times[order] = np.bincount(picked, minlength=len(order))
    return times
