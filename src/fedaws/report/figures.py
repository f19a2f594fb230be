"""Figures as they are read, and the tables that hold them."""

import statistics as of_numbers
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedaws.evaluate.catalogue import format_mean, format_value, measure_of
from fedaws.report.charts import Chart
from fedaws.report.collect import Group
from fedaws.report.run_data import RunData


@dataclass
class Table:
    """A table in words."""

    caption: str
    head: list[str]
    rows: list[list[Any]]


@dataclass
class Figure:
    """A plot and the table that says the same."""

    title: str
    note: str
    chart: Chart
    table: Table


def _value(row: dict[str, float], key: str) -> float | None:
    if key == "error":
        return 1 - row["precision@1"] if "precision@1" in row else None
    return row.get(key)


def by_round(group: Group, key: str) -> dict[int, list[float]]:
    """The values of all runs that have this round."""
    values: dict[int, list[float]] = {}
    for run in group.runs:
        for row in run.rows:
            value = _value(row, key)
            if value is not None:
                values.setdefault(int(row["round"]), []).append(value)
    return values


def statistics(group: Group, key: str) -> tuple[float, float] | None:
    """Mean and standard deviation of the runs' last rows."""
    values = [value for run in group.runs if (value := _value(run.last, key)) is not None]
    if not values:
        return None
    return of_numbers.fmean(values), of_numbers.stdev(values) if len(values) > 1 else 0.0


def plus_minus(group: Group, key: str) -> str:
    """Mean and, with several seeds, standard deviation."""
    numbers = statistics(group, key)
    if numbers is None:
        return "–"
    mean, spread = numbers
    return format_mean(mean, None if len(group.runs) == 1 else spread, measure_of(key).form)


def spaced(values: list[Any], most: int) -> list[Any]:
    """At most so many of them, evenly spaced, first and last among them.

    >>> spaced([0, 1, 2, 3, 4, 5, 6], 3)
    [0, 3, 6]
    """
    if len(values) <= most:
        return values
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]


def two(value: float, before: int = 0) -> str:
    """Two digits, and none before the point if there is little room.

    >>> two(-0.111), two(0.98), two(-1.0), two(-0.004), two(0.5, before=1)
    ('−.11', '.98', '−1', '0', '0.50')
    """
    text = f"{abs(value):.2f}"
    sign = "−" if value < 0 and text != "0.00" else ""
    return sign + (text if before else text.removesuffix(".00").replace("0.", "."))


def percent(value: float | None) -> str:
    """A share in percent, if there is one."""
    return "–" if value is None else format_value(value, "percent")


def three(value: float) -> str:
    """Three digits."""
    return f"{value:.3f}".replace("-", "−")


def num_classes(run: RunData) -> int | None:
    """Rows of W, if they are known."""
    dim = run.config.model.embedding_dim
    return run.sizes["W"] // dim if run.sizes.get("W") else None


def class_names(run: RunData) -> Callable[[int], str]:
    """Names of classes by their numbers."""
    names = run.facts.class_names if run.facts else None
    return lambda c: names[c][:60] if names and 0 <= c < len(names) else str(c)


def in_bytes(count: int) -> str:
    """As people say it.

    >>> [in_bytes(n) for n in (0, 128, 50_176, 999_700, 36_685_824)]
    ['0 B', '128 B', '50.2 kB', '1 MB', '36.7 MB']
    """
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= 0.9995 * size:
            return f"{count / size:.3g} {unit}"
    return f"{count} B"
