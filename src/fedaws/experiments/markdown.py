"""Results as people read them, paper and ours side by side; made from the results' data alone."""

from collections.abc import Collection, Iterator
from typing import Any

from fedaws.evaluate.catalogue import duration, format_mean

Results = dict[str, Any]
"""What `fedaws.experiments.results.collect` gives and `docs/results/*.json` hold."""

COLUMNS = ["method", "measure", "paper", "ours", "rounds", "time"]
NOTHING = "–"


def results_page(results: Results) -> str:
    """The page, in Markdown."""
    name = results["table"]
    measures = results["measures"]
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
    for method in (m for m in row["methods"] if m in methods):
        paper = row["methods"][method]["paper"]
        ours = row["methods"][method]["ours"]
        ends = [_rounds(ours), duration(round(ours["seconds"]))] if ours else [NOTHING, NOTHING]
        for number, measure in enumerate(results["measures"]):
            figures = [
                _figure({"mean": paper[measure], "sd": None}) if paper else NOTHING,
                _figure(ours[measure]) if ours else NOTHING,
            ]
            first = number == 0
            short = measure.replace("precision", "P")
            yield [method if first else "", short, *figures, *(ends if first else ["", ""])]


def _figure(percent: dict[str, Any]) -> str:
    """As the catalogue has it, but for the sign: all figures of a page are percentages."""
    spread = None if percent["sd"] is None else percent["sd"] / 100
    return format_mean(percent["mean"] / 100, spread, "percent").removesuffix(" %")


def _rounds(ours: dict[str, Any]) -> str:
    """How long the run was, and all in which it is not the run of the preset."""
    if "rounds" in ours:
        notes = _length(ours)
        settings = [setting for setting in ours["settings"] if not setting.startswith("data.validation=")]
    else:
        notes = ["not federated: all examples with all their labels"]
        settings = []
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
        return [
            f"stopped after {done:,} rounds: it has collapsed"
            if ours["collapsed"]
            else f"stopped after {done:,} rounds"
        ]
    if planned < ours["preset_rounds"]:
        return [f"{done:,} of {preset} rounds"]
    return [f"{done:,}", *other_length]


def _origin(method: str, ours: dict[str, Any]) -> str:
    seeds = f"{'seeds' if len(ours['seeds']) > 1 else 'seed'} {', '.join(map(str, ours['seeds']))}"
    made_with = ", ".join([*(f"{name} {number}" for name, number in ours["versions"].items()), ours["machine"]])
    about = (
        f"largest class cosine {ours['max_cosine']:.2f}" if "max_cosine" in ours else f"`{' '.join(ours['settings'])}`"
    )
    return f"- `{method}`, {seeds}: {about}; `{ours['command']}` ({made_with})"


def _markdown_row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
