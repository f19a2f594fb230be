"""People: the trade-off of accepting others and rejecting one's own, thresholds, and who is behind the errors."""

from dataclasses import replace
from typing import Any

from fedaws.report import charts
from fedaws.report.charts import Axes
from fedaws.report.collect import Group
from fedaws.report.draft import PANELS, Draft
from fedaws.report.figures import Figure, Table, percent, three
from fedaws.report.stored import Measured, People, Person

_DOTS = 40  # people with a line of their own
_WORST = 10  # of each kind in a table
_BINS = 20
_RIGHT = ("own examples accepted", "others' examples rejected")
_WRONG = ("own examples rejected (goats)", "others' examples accepted (lambs)")

Examined = list[tuple[Group, People]]


def people_section(draft: Draft) -> dict[str, Any] | None:
    """The section, if any run has had its trials."""
    examined = [(group, people) for group in draft.groups if (people := _people_of(group))]
    if not examined:
        return None
    if len({people.trained for _, people in examined}) > 1:
        draft.notices.append("some runs were tried on people who trained, others on people who did not: not comparable")
    return {
        "lead": _lead(examined),
        "figures": [
            _det(draft, examined),
            *(_scores(draft, group, p, n) for n, (group, p) in enumerate(examined[:PANELS])),
        ],
        "panels": [_panel(draft, group, people, number) for number, (group, people) in enumerate(examined[:PANELS])],
    }


def _people_of(group: Group) -> People | None:
    return next((run.people for run in group.runs if run.people), None)


def _lead(examined: Examined) -> list[str]:
    rates = [
        f"{_interval(people.eer)}" + (f" ({group.label})" if len(examined) > 1 else "") for group, people in examined
    ]
    first = examined[0][1]
    who = "who took part in training, by test examples" if first.trained else "who took no part in training"
    at_once = f", asked about by {first.ask:,} examples at once" if (first.ask or 1) > 1 else ""
    lines = [
        f"Is this who they say? Of {first.people:,} people {who}{at_once}: equal error rate {'; '.join(rates)}. "
        "FAR is the share of others' examples that are accepted, FRR the share of one's own that are rejected."
    ]
    if any(people.trained for _, people in examined):
        lines.append(
            "People who trained are told apart far better than others: a threshold from here lets too many strangers "
            "pass. Measure on people who took no part (fedaws trials RUN STRANGERS.npz)."
        )
    return lines


def _det(draft: Draft, examined: Examined) -> Figure:
    title = "False rejections against false acceptances (DET)"
    curves = [(g.label, g.colour, p.det.far, p.det.frr, max(5e-4, 0.5 / min(p.same, p.other))) for g, p in examined]
    chart = draft.add(charts.det_chart(curves, Axes(title, "FAR: others accepted"), "det"))
    chart = _described(
        chart, title, [f"{group.label} has an equal error rate of {_rate(p.eer)}" for group, p in examined]
    )
    rows = [[group.label, _interval(p.eer), f"{p.same:,}", f"{p.other:,}"] for group, p in examined]
    head = ["method", "equal error rate", "comparisons of one person", "of two"]
    note = "FRR upwards; both axes on normal deviates. Nearer to the lower left is better."
    return Figure(title, note, chart, Table("Equal error rates, with 95 % intervals over people", head, rows))


def _scores(draft: Draft, group: Group, people: People, number: int) -> Figure:
    bins = people.histogram
    title = f"Scores: {group.label}"
    counts = [("same person", 0, bins.same), ("other person", 1, bins.other)]
    axes = Axes(title, "score", "percent", 0.0)
    chart = draft.add(charts.histogram_chart(counts, bins.low, axes, f"scores-{number}", bins.high))
    means = [(label, sum(n), three(_mean(n, bins.low, bins.high))) for label, _, n in counts]
    chart = _described(chart, title, [f"{label}: mean about {mean}" for label, _, mean in means])
    rows = [[label, f"{count:,}", mean] for label, count, mean in means]
    note = "Share of the comparisons of an example with an enrolled person, by score; dashed: with another person."
    return Figure(title, note, chart, Table("Scores", ["comparisons of", "number", "mean score"], rows))


def _panel(draft: Draft, group: Group, people: People, number: int) -> dict[str, Any]:
    rows = [[t.wanted, three(t.threshold), _interval(t.far), _interval(t.frr)] for t in people.thresholds]
    head = ["wanted", "threshold", "FAR", "FRR"]
    thresholds = Table("Thresholds and what they cost, with 95 % intervals over people", head, rows)
    pairs = [[pair.tested, pair.taken, f"{percent(pair.share)} of {pair.examples:,}"] for pair in people.pairs]
    few = len(people.each) <= _DOTS
    note = (
        f"At the threshold {three(people.at)}. A goat's own examples are rejected; a lamb is whom others are taken for."
    )
    return {
        "group": group,
        "title": "Person by person",
        "note": note,
        "labels": _RIGHT if few else _WRONG,
        "dots": _dots(people.each) if few else None,
        "chart": None if few else _by_share(draft, people.each, number),
        "thresholds": thresholds,
        "each": _animals(people.each),
        "pairs": Table("Whose examples are accepted as whom", ["examples of", "accepted as", "share"], pairs)
        if pairs
        else None,
    }


def _dots(each: list[Person]) -> dict[str, Any]:
    """Own examples accepted and others' rejected, for everybody: all the way to the right is without errors."""
    people = sorted(each, key=lambda person: person.name)
    accepted = [None if person.frr is None else 1 - person.frr for person in people]
    rejected = [None if person.far is None else 1 - person.far for person in people]
    series = [(_RIGHT[0], 0, accepted), (_RIGHT[1], 1, rejected)]
    about = (
        f"Of {len(people)} people the share of their own examples that is accepted, and of others' that is rejected."
    )
    return charts.dot_plot([person.name for person in people], series, about)


def _by_share(draft: Draft, each: list[Person], number: int) -> charts.Chart:
    title = "People by their errors"
    frr = _binned([person.frr for person in each if person.frr is not None])
    far = _binned([person.far for person in each if person.far is not None])
    counts = [(_WRONG[0], 0, frr), (_WRONG[1], 1, far)]
    axes = Axes(title, "share of examples", "percent", 0.0)
    return draft.add(charts.histogram_chart(counts, 0.0, axes, f"people-{number}"))


def _binned(values: list[float]) -> list[int]:
    places = [min(_BINS - 1, int(_BINS * value)) for value in values]
    return [places.count(place) for place in range(_BINS)]


def _animals(each: list[Person]) -> Table:
    """The worst of both kinds; everybody is of the kind of their higher rate, or with equal ones a goat."""
    rows = []
    for kind, key in (("goat", "frr"), ("lamb", "far")):
        of_kind = [p for p in each if ((p.frr or 0) >= (p.far or 0)) == (kind == "goat") and getattr(p, key)]
        worst = sorted(of_kind, key=lambda p: -getattr(p, key))[:_WORST]
        rows += [[p.name, kind, percent(p.frr), percent(p.far), f"{p.examples:,}"] for p in worst]
    return Table(
        "Goats (hard to recognise) and lambs (easy to be taken for)",
        ["person", "", "FRR", "FAR as them", "examples"],
        rows,
    )


def _described(chart: charts.Chart, title: str, words: list[str]) -> charts.Chart:
    return replace(chart, about=f"{title}. {'; '.join(words)}")


def _mean(counts: list[int], low: float, high: float) -> float:
    width = (high - low) / len(counts)
    return sum(n * (low + (i + 0.5) * width) for i, n in enumerate(counts)) / max(1, sum(counts))


def _interval(figure: Measured) -> str:
    if figure.low is None or figure.high is None:
        return _rate(figure)
    return f"{_rate(figure)} ({100 * figure.low:.2g} … {100 * figure.high:.2g})"


def _rate(figure: Measured) -> str:
    return f"{100 * figure.value:.3g} %"
