"""Curves by round: every method's mean over its seeds, with a band, and the same as a table."""

import statistics as of_numbers
from collections.abc import Iterable

from fedaws.evaluate.catalogue import Measure, format_value, measure_of, measures_in
from fedaws.report import charts
from fedaws.report.charts import Axes, Line
from fedaws.report.collect import Group
from fedaws.report.draft import Draft
from fedaws.report.figures import Figure, Table, by_round, spaced
from fedaws.report.words import examples_of

RESULT = ("precision@1", "strangers_eer", "max_cosine")
LEARNING = ("strangers_frr", "loss", "test_loss", "precision@3", "precision@5", "psp@1", "psp@3", "psp@5")
THEORY = (
    "min_separation", "positive_radius", "error_bound", "error_bound_cosine", "lemma1_bound", "theorem1_bound",
)  # fmt: skip
_MOST_OWN = 12  # measures of a user's own
_POINTS = 240  # of a curve
_IN_A_TABLE = 8  # rounds


def own_measures(groups: list[Group]) -> list[str]:
    """The keys of measures that are a user's own."""
    columns = (key for group in groups for run in group.runs for row in run.rows for key in row)
    return [key for key in measures_in(columns) if measure_of(key).own][:_MOST_OWN]


def curve_figures(draft: Draft, keys: Iterable[str]) -> list[Figure]:
    """A figure for each measure that any run has."""
    figures = [_figure(draft, measure_of(key)) for key in keys]
    return [figure for figure in figures if figure is not None]


def _figure(draft: Draft, measure: Measure) -> Figure | None:
    groups = [group for group in draft.groups if by_round(group, measure.key)]
    if not groups:
        return None
    lines = [_line(group, measure.key) for group in groups]
    if measure.bounds:
        lines += [_line(group, measure.bounds, faint=True) for group in groups if by_round(group, measure.bounds)]
    log = measure.log and _spans_decades(lines)
    axes = Axes(measure.title, "round", measure.form, None if log else measure.low, measure.high, log)
    chart = draft.add(charts.line_chart(lines, axes, measure.key))
    note = measure.note.replace("{examples}", examples_of(draft.groups)) + (" Logarithmic scale." if log else "")
    return Figure(measure.title, note, chart, _curve_table(groups, measure))


def _line(group: Group, key: str, faint: bool = False) -> Line:
    values = by_round(group, key)
    rounds = spaced(sorted(values), _POINTS)
    several = not faint and any(len(values[r]) > 1 for r in rounds)
    label = f"{group.label}: {'gap' if key == 'theorem1_gap' else key}" if faint else group.label
    return Line(
        label,
        group.colour,
        [float(r) for r in rounds],
        [of_numbers.fmean(values[r]) for r in rounds],
        [min(values[r]) for r in rounds] if several else [],
        [max(values[r]) for r in rounds] if several else [],
        faint,
    )


def _curve_table(groups: list[Group], measure: Measure) -> Table:
    series = [by_round(group, measure.key) for group in groups]
    rounds = spaced(sorted({r for values in series for r in values}), _IN_A_TABLE)
    rows = [
        [f"{r:,}", *(format_value(of_numbers.fmean(v[r]), measure.form) if r in v else "–" for v in series)]
        for r in rounds
    ]
    caption = f"{measure.title} by round"
    if any(len(group.runs) > 1 for group in groups):
        caption += ", mean over the seeds"
    if measure.better:
        caption += f"; {measure.better} is better"
    return Table(caption, ["round", *(group.label for group in groups)], rows)


def _spans_decades(lines: list[Line]) -> bool:
    values = [y for line in lines for y in line.y if y > 0]
    return bool(values) and max(values) > 30 * min(values)
