"""Curves by round: every method's mean over its seeds, with a band, and the same as a table."""

import statistics as of_numbers
from collections.abc import Sequence
from typing import NamedTuple

from fedaws.report import charts
from fedaws.report.charts import Axes, Format, Line, shown
from fedaws.report.collect import Group
from fedaws.report.draft import Draft
from fedaws.report.figures import Figure, Table, by_round, spaced

_POINTS = 240  # of a curve
_IN_A_TABLE = 8  # rounds


class Measure(NamedTuple):
    """A column of metrics.jsonl and how it is drawn."""

    key: str
    title: str
    note: str
    form: Format = "number"
    low: float | None = None
    high: float | None = None
    log: bool = False
    beside: str = ""  # a column drawn faintly beside it: what a bound bounds


RESULT = (
    Measure(
        "precision@1", "Precision@1", "Share of test examples whose best class is right.", "percent", low=0.0, high=1.0
    ),
    Measure(
        "max_cosine", "Largest class cosine", "Of the two closest classes. At 1 they have fallen together.", high=1.0
    ),
)
LEARNING = (
    Measure("loss", "Training loss", "Mean over clients and rounds since the row before; methods differ in it.",
            log=True),
    Measure("test_loss", "Hinge on the test set", "The positive part of the loss, one for all methods.", log=True),
    Measure("precision@3", "Precision@3", "With one label an example at most a third.", "percent", low=0.0),
    Measure("precision@5", "Precision@5", "With one label an example at most a fifth.", "percent", low=0.0),
    Measure("psp@1", "Propensity-scored precision@1", "Rare labels count more.", "percent", low=0.0),
    Measure("psp@3", "Propensity-scored precision@3", "Rare labels count more.", "percent", low=0.0),
    Measure("psp@5", "Propensity-scored precision@5", "Rare labels count more.", "percent", low=0.0),
)  # fmt: skip
THEORY = (
    Measure("min_separation", "ρ, least distance of two classes", "Euclidean, between class embeddings.", low=0.0),
    Measure("positive_radius", "ε, mean distance of an example to its class", "Euclidean, on the test set.", low=0.0),
    Measure("error_bound", "Proposition 1: error ≤ 2ε/ρ", "Dotted: the error itself. A bound of 100 % says nothing.",
            "percent", low=0.0, high=1.0, beside="error"),
    Measure("error_bound_cosine", "Proposition 1, cosine distance", "As corrected. Dotted: the error itself.",
            "percent", low=0.0, high=1.0, beside="error"),
    Measure("lemma1_bound", "Lemma 1: error by the contrastive loss", "In its tight form. Dotted: the error itself.",
            "percent", low=0.0, high=1.0, beside="error"),
    Measure("theorem1_bound", "Theorem 1: gap to the contrastive loss", "The bound; dotted: the gap itself.",
            low=0.0, beside="theorem1_gap"),
)  # fmt: skip


def curve_figures(draft: Draft, measures: Sequence[Measure]) -> list[Figure]:
    """A figure for each measure that any run has."""
    found = [_figure(draft, measure) for measure in measures]
    return [figure for figure in found if figure is not None]


def _figure(draft: Draft, measure: Measure) -> Figure | None:
    curves = [(group, line) for group in draft.groups if (line := _line(draft, group, measure.key)) is not None]
    if not curves:
        return None
    lines = [line for _, line in curves]
    if measure.beside:
        lines += [line for g, _ in curves if (line := _line(draft, g, measure.beside, faint=True)) is not None]
    log = measure.log and _spans_decades(lines)
    axes = Axes(measure.title, "round", measure.form, None if log else measure.low, measure.high, log)
    svg, draft.data["charts"][measure.key] = charts.line_chart(lines, axes, measure.key)
    note = measure.note + (" Logarithmic scale." if log else "")
    return Figure(measure.title, note, svg, _curve_table([g for g, _ in curves], measure))


def _line(draft: Draft, group: Group, key: str, faint: bool = False) -> Line | None:
    found = by_round(group, key)
    if not found:
        return None
    chosen = spaced(sorted(found), _POINTS)
    several = not faint and any(len(found[r]) > 1 for r in chosen)
    label = f"{group.label}: {'gap' if key == 'theorem1_gap' else key}" if faint else group.label
    return Line(
        label,
        draft.colours[group.label],
        [float(r) for r in chosen],
        [of_numbers.fmean(found[r]) for r in chosen],
        [min(found[r]) for r in chosen] if several else [],
        [max(found[r]) for r in chosen] if several else [],
        faint,
    )


def _curve_table(groups: list[Group], measure: Measure) -> Table:
    series = [by_round(group, measure.key) for group in groups]
    rounds = spaced(sorted({r for one in series for r in one}), _IN_A_TABLE)
    rows = [
        [f"{r:,}", *(shown(of_numbers.fmean(one[r]), measure.form) if r in one else "–" for one in series)]
        for r in rounds
    ]
    mean = ", mean over the seeds" if any(len(g.runs) > 1 for g in groups) else ""
    return Table(f"{measure.title} by round{mean}", ["round", *(g.label for g in groups)], rows)


def _spans_decades(lines: list[Line]) -> bool:
    values = [y for line in lines for y in line.y if y > 0]
    return bool(values) and max(values) > 30 * min(values)
