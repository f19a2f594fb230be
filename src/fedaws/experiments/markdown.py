"""Results as people read them, paper and ours side by side; made from the results' data alone."""

from collections.abc import Collection, Iterator
from typing import Any

Results = dict[str, Any]
"""What `fedaws.experiments.results.collect` gives and `docs/results/*.json` hold."""

COLUMNS = ["method", "measure", "paper", "ours", "rounds", "time"]
NOTHING = "–"


def results_page(results: Results) -> str:
    """The page, in Markdown."""
    name, measures = results["table"], results["measures"]
    lines = [
        f"# {results['title']}",
        "",
        f"Made by `fedaws reproduce {name}` from [{name}.json]({name}.json), and not by hand.",
        f"{', '.join(measures)} in percent, with several seeds mean ± standard deviation; time of training per run.",
        "",
        _markdown_row(["data, model", *COLUMNS]),
        _markdown_row(["---", "---", "---", "---:", "---:", "---", "---:"]),
    ]
    for row in results["rows"].values():
        label = row["label"]
        for method, *cells in result_lines(results, row, row["methods"]):
            name = f"`{method}` ({row['methods'][method]['role']})" if method else ""
            lines.append(_markdown_row([label, name, *cells]))
            label = ""
    for key, row in results["rows"].items():
        done = {method: cell["ours"] for method, cell in row["methods"].items() if cell["ours"]}
        if done:
            plotted = results.get("plots", True) and any("curve" in ours for ours in done.values())
            plot = [f"![{measures[0]} by round]({plot_name(results, key)})", ""] if plotted else []
            lines += ["", f"## {row['label']}", "", *plot]
            lines += [_origin(method, ours) for method, ours in done.items()]
    return "\n".join(lines) + "\n"


def plot_name(results: Results, row: str) -> str:
    """The file of a row's plot."""
    return f"{results['table']}-{row}.png"


def result_lines(results: Results, row: dict[str, Any], methods: Collection[str]) -> Iterator[list[str]]:
    """For these methods of a row, and each measure: method, measure, the paper's figure, ours, rounds, time."""
    for method, cell in row["methods"].items():
        ours, name = cell["ours"], method
        ends = [_rounds(ours), _duration(ours["seconds"])] if ours else [NOTHING, NOTHING]
        for measure in results["measures"] if method in methods else []:
            paper = f"{cell['paper'][measure]:.1f}" if cell["paper"] else NOTHING
            figures = [paper, _figure(ours[measure]) if ours else NOTHING]
            yield [name, measure.replace("precision", "P"), *figures, *ends]
            name, ends = "", ["", ""]


def _figure(value: dict[str, Any]) -> str:
    return f"{value['mean']:.1f}" + (f" ± {value['sd']:.1f}" if value["sd"] is not None else "")


def _rounds(ours: dict[str, Any]) -> str:
    """How long the run was, and all in which it is not the run of the preset."""
    if "rounds" not in ours:
        notes = ["not federated: all examples with all their labels"]
        return ", ".join([*notes, "on validation examples, not the test set"] if ours["validation"] else notes)
    done, planned, preset = ours["rounds"], ours["planned_rounds"], ours["preset_rounds"]
    notes = []
    if not ours["finished"]:
        notes = [f"{done:,} of {planned:,} rounds", "unfinished"]
    elif ours["stopped_early"]:
        notes = [f"stopped after {done:,} rounds" + ": it has collapsed" * ours["collapsed"]]
    elif planned < preset:
        notes = [f"{done:,} of {preset:,} rounds"]
    else:
        notes = [f"{done:,}"]
    if planned != preset and not ours["stopped_early"] and (planned > preset or not ours["finished"]):
        notes.append(f"the preset has {preset:,}")
    if ours["validation"]:
        notes.append("on validation examples, not the test set")
    others = [setting for setting in ours["settings"] if not setting.startswith("data.validation=")]
    return ", ".join(notes) + (f", with {' '.join(others)}" if others else "")


def _duration(seconds: float) -> str:
    """As exact as one wants to know it.

    >>> [_duration(s) for s in (4.2, 100, 600, 9000)]
    ['4 s', '100 s', '10 min', '2.5 h']
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _origin(method: str, ours: dict[str, Any]) -> str:
    seeds = f"seed{'s' * (len(ours['seeds']) > 1)} {', '.join(map(str, ours['seeds']))}"
    made_with = ", ".join([*(f"{name} {number}" for name, number in ours["versions"].items()), ours["machine"]])
    about = (
        f"largest class cosine {ours['max_cosine']:.2f}" if "max_cosine" in ours else f"`{' '.join(ours['settings'])}`"
    )
    return f"- `{method}`, {seeds}: {about}; `{ours['command']}` ({made_with})"


def _markdown_row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
