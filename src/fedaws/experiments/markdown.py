"""Results as people read them, paper and ours side by side; made from the results' data alone."""

from collections.abc import Collection, Iterator
from typing import Any

from fedaws.evaluate.catalogue import duration, format_mean

Results = dict[str, Any]
"""What `fedaws.experiments.results.collect` gives and `docs/results/*.json` hold."""

AS_PAPER = "as paper"
COLUMNS = ["method", "measure", "paper", AS_PAPER, "ours", "configuration of ours", "rounds", "time"]
NOTHING = "–"
FEWEST = 3
"""Seeds of which a standard deviation is given."""


def results_page(results: Results) -> str:
    """The page, in Markdown."""
    name = results["table"]
    measures = results["measures"]
    lines = [
        f"# {results['title']}",
        "",
        f"Made by `fedaws reproduce {name}` from [{name}.json]({name}.json), and not by hand.",
        f"{', '.join(measures)} in percent; of three seeds or more mean ± standard deviation, of fewer each run: small",
        "differences between these may be chance. Time is of training, a run. *As paper* is the paper's configuration,",
        "run by us, as far as the paper tells it. *Stale* figures are of code that would come to others today.",
        "",
        _markdown_row(["data, model", *COLUMNS]),
        _markdown_row(["---", "---", "---", "---:", "---:", "---:", "---", "---", "---:"]),
    ]
    for row in results["rows"].values():
        label = row["label"]
        for method, *cells in result_lines(results, row, row["methods"]):
            name = f"`{method}` ({row['methods'][method]['role']})" if method else ""
            lines.append(_markdown_row([label, name, *cells]))
            label = ""
    for key, row in results["rows"].items():
        done = {method: cell["ours"] for method, cell in row["methods"].items() if cell["ours"]}
        as_paper = {method: run for method, cell in row["methods"].items() if (run := cell.get("as_paper"))}
        if done or as_paper:
            plotted = results.get("plots", True) and any("curve" in ours for ours in done.values())
            plot = [f"![{measures[0]} by round]({plot_name(results, key)})", ""] if plotted else []
            lines += ["", f"## {row['label']}", "", *plot]
            lines += [_origin(method, ours) for method, ours in done.items()]
            lines += [_origin(method, run, True) for method, run in as_paper.items()]
    return "\n".join(lines) + "\n"


def plot_name(results: Results, row: str) -> str:
    """The file of a row's plot."""
    return f"{results['table']}-{row}.png"


def result_lines(results: Results, row: dict[str, Any], methods: Collection[str]) -> Iterator[list[str]]:
    """For these methods of a row, and each measure: the cells of `COLUMNS`."""
    for method in (m for m in row["methods"] if m in methods):
        cell = row["methods"][method]
        ours = cell["ours"]
        ends = [NOTHING] * 3
        if ours:
            ends = [ours.get("configuration", NOTHING), _rounds(ours), duration(round(ours["seconds"]))]
        name = method
        for measure in results["measures"]:
            paper = _percent(cell["paper"][measure]) if cell["paper"] else NOTHING
            figures = [_figure(run, measure) if run else NOTHING for run in (cell.get("as_paper"), ours)]
            yield [name, measure.replace("precision", "P"), paper, *figures, *ends]
            name = ""  # said once, and so are the ends
            ends = [""] * 3


def _figure(run: dict[str, Any], measure: str) -> str:
    """Mean ± standard deviation of three runs or more, else the runs themselves; all figures are percentages."""
    figures = run[measure]
    text = ", ".join(_percent(value) for value in figures["runs"])
    if len(figures["runs"]) >= FEWEST:
        text = _percent(figures["mean"], figures["sd"] / 100)
    return f"{text} (stale)" if run.get("stale") else text


def _percent(value: float, spread: float | None = None) -> str:
    return format_mean(value / 100, spread, "percent").removesuffix(" %")


def _rounds(ours: dict[str, Any]) -> str:
    """How long the run was, and all in which it is not the run of the preset."""
    notes = ["not federated: all examples with all their labels"]
    settings = []
    if "rounds" in ours:
        notes = _length(ours)
        settings = [setting for setting in ours["settings"] if not setting.startswith("data.validation=")]
    if ours["validation"]:
        notes.append("on validation examples, not the test set")
    if settings:
        notes.append(f"with {' '.join(settings)}")
    return ", ".join(notes)


def _length(ours: dict[str, Any]) -> list[str]:
    """Rounds done, planned, and of the preset, where they differ."""
    done = ours["rounds"]
    planned = ours["planned_rounds"]
    preset = f"{ours['preset_rounds']:,}"
    other_length = [f"the preset has {preset}"] if planned != ours["preset_rounds"] else []
    if not ours["finished"]:
        other_length = [] if ours["stopped_early"] else other_length
        return [f"{done:,} of {planned:,} rounds", "unfinished", *other_length]
    if ours["stopped_early"]:
        return [f"stopped after {done:,} rounds" + (": it has collapsed" if ours["collapsed"] else "")]
    if planned < ours["preset_rounds"]:
        return [f"{done:,} of {preset} rounds"]
    return [f"{done:,}", *other_length]


def _origin(method: str, ours: dict[str, Any], as_paper: bool = False) -> str:
    seeds = f"{'seeds' if len(ours['seeds']) > 1 else 'seed'} {', '.join(map(str, ours['seeds']))}"
    made_with = ", ".join([*(f"{name} {number}" for name, number in ours["versions"].items()), ours["machine"]])
    about = f"`{' '.join(ours['settings'])}`"
    if "max_cosine" in ours:
        about = f"largest class cosine {ours['max_cosine']:.2f}"
    kind = f" in the paper's configuration ({ours.get('configuration', NOTHING)})" if as_paper else ""
    stale = "**stale**; " if ours.get("stale") else ""
    return f"- `{method}`{kind}, {seeds}: {stale}{about}; `{ours['command']}` ({made_with})"


def _markdown_row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
