"""What a person sees in the end: tables."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import JustifyMethod
from rich.markup import escape
from rich.table import Column, Table

if TYPE_CHECKING:
    from fedaws.experiments.markdown import Results  # and with it torch, which takes seconds


def text_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Plain texts under these headings."""
    table = Table(Column(columns[0], no_wrap=True), *columns[1:])
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def comparison_table(summary: dict[str, Any], title: str) -> Table:
    """A table like the paper's: a row per method, mean ± standard deviation over the seeds."""
    from fedaws.core.methods import role_of
    from fedaws.evaluate.catalogue import OPEN_SET, SUMMARY, format_mean, measure_of

    keys = [*SUMMARY, *(key for key in OPEN_SET if all(key in each for each in summary["methods"].values()))]
    seeds = summary["seeds"]
    caption = f"mean ± standard deviation over {seeds} {'seeds' if seeds > 1 else 'seed'}"
    table = Table("method", "", title=escape(title), caption=caption)
    for key in keys:
        table.add_column(measure_of(key).short, justify="right")
    for method, measures in summary["methods"].items():
        figures = [(measures[key], measure_of(key).form) for key in keys]
        table.add_row(method, role_of(method), *(format_mean(v["mean"], v["std"], form) for v, form in figures))
    return table


def results_table(results: "Results", rows: Sequence[str], methods: Sequence[str]) -> Table:
    """The paper's figures and ours side by side, for these rows and methods."""
    from fedaws.experiments.markdown import AS_PAPER, COLUMNS, result_lines

    caption = "percent; as paper: its configuration, run by us; stale: of code that would come to another figure today"
    table = Table(title=escape(results["title"]), caption=caption)
    how = "rounds; configuration"
    for name in (*COLUMNS[:-3], how, COLUMNS[-1]):
        side: JustifyMethod = "right" if name in ("paper", AS_PAPER, "ours", "time") else "left"
        wraps = name in ("method", "ours", how)
        table.add_column(name, justify=side, no_wrap=not wraps, min_width=20 if name == "method" else None)
    for row in (results["rows"][name] for name in rows):
        table.add_row(f"[bold]{escape(row['label'])}")
        for method, *cells, settings, rounds, time in result_lines(results, row, methods):
            length = "; ".join(dict.fromkeys(filter(None, (rounds, settings))))
            table.add_row(f"  {method}", *map(escape, (*cells, length, time)))
        table.add_section()
    return table


def metrics_table(metrics: dict[str, float], title: str) -> Table:
    """Name and value of every measure."""
    table = Table(title=escape(title), show_header=False, min_width=len(title))
    for name, value in metrics.items():
        table.add_row(name, f"{value:.4f}" if isinstance(value, float) else str(value))
    return table
