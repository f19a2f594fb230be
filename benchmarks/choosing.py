"""What λ, k, ν, local steps and participation do: small sweeps on digits and on 200 overlapping Gaussian classes.

    python benchmarks/choosing.py [--results docs/results]

Every figure is precision@1 on held-out training examples, three seeds. A run whose row is in choosing.json is not run
again; `--again` runs all. Writes choosing.json, .md and .png.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import fedaws
from fedaws import FedawsError, Reporter, config
from fedaws.core.spreadout import resolve_neighbors
from fedaws.files import write_text
from fedaws.record.made_with import made_with

SEEDS = 3
ROUNDS = 400
COMMON = (f"train.rounds={ROUNDS}", "train.evaluate_every=400", "train.threads=1", "data.validation=0.25")
DATA = {
    "digits": ("digits", COMMON),
    "synthetic": (
        "synthetic",
        (*COMMON, "data.classes=200", "model.hidden=[128]", "model.embedding_dim=32", "clients.per_round=50"),
    ),
}
ABOUT = {"digits": "digits: 10 classes, 10 clients a round", "synthetic": "200 Gaussian classes, 50 clients a round"}
COLOURS = {"digits": "#0072B2", "synthetic": "#D55E00"}
EQ6, EQ7 = ("spread.regularizer=margin",), ("spread.regularizer=nearest",)
LITERAL = (*EQ6, "spread.bounded=false")
WEIGHTS = [0.1, 1, 10, 100, 1000]
# Sweep → title, what is varied, and for each data set its values; a value gives settings.
K = {"digits": [1, 2, 3, 5, 9], "synthetic": [1, 3, 10, 30, 100]}
NU = {"digits": [0.2, 0.5, 0.8, 1.0, 1.1, 1.5, 2.0], "synthetic": [0.2, 0.5, 0.8, 1.0, 1.5]}
STEPS = {"digits": [1, 2, 5, 10, 20], "synthetic": [1, 5, 20]}
COHORTS = {"digits": [1, 2, 5, 10], "synthetic": [10, 50, 200]}


def sweeps(data: str) -> list[tuple[str, Any, tuple[str, ...]]]:
    """(sweep, value, settings) of all runs on one data set."""
    found: list[tuple[str, Any, tuple[str, ...]]] = [
        ("method", "positive-only", ("method=positive-only",)),
        ("method", "fixed", ("method=fixed",)),
        ("method", "fedaws, eq. (6)", EQ6),
        ("method", "fedaws, eq. (7)", EQ7),
        ("method", "fedaws, moments", ("spread.regularizer=moments",)),
        ("method", "softmax", ("method=softmax",)),
    ]
    for name, settings in (("λ, eq. (6)", EQ6), ("λ, eq. (7)", EQ7), ("λ, eq. (6), the literal step", LITERAL)):
        found += [(name, value, (*settings, f"spread.weight={value}")) for value in WEIGHTS]
    found += [("k", value, (*EQ7, f"spread.neighbors={value}")) for value in K[data]]
    found += [("ν", value, (*EQ6, f"spread.margin={value}")) for value in NU[data]]
    found += [
        ("local steps", value, (*EQ6, f"clients.local_steps={value}", f"train.rounds={ROUNDS // value}"))
        for value in STEPS[data]
    ]
    full = 10 if data == "digits" else 50
    found += [
        ("clients a round", value, (*EQ6, f"clients.per_round={value}", f"train.rounds={ROUNDS * full // value}"))
        for value in COHORTS[data]
    ]
    return found


def configuration(data: str, settings: tuple[str, ...]) -> config.Config:
    preset, common = DATA[data]
    return config.load(preset).override([*common, *settings])


def run(data: str, settings: tuple[str, ...], seed: int) -> dict[str, float | None]:
    """Held-out precision@1 and the largest class cosine; nothing where training diverged."""
    cfg = configuration(data, settings).override([f"seed={seed}"])
    try:
        last = fedaws.train(config=cfg, reporter=Reporter(on_warning=lambda _: None)).metrics[-1]
    except FedawsError:
        return {"precision": None, "max_cosine": None}
    return {"precision": round(100 * last["precision@1"], 2), "max_cosine": round(last["max_cosine"], 3)}


def measure(results: dict[str, Any], path: Path) -> None:
    """Add what is missing, sweep by sweep, keeping what there is."""
    known = {_key(row["data"], tuple(row["settings"])): row for row in results["rows"]}
    rows: list[dict[str, Any]] = []
    for data in DATA:
        for sweep, value, settings in sweeps(data):
            row = known.get(_key(data, settings))
            if row is None:
                runs = [run(data, settings, seed) for seed in range(SEEDS)]
                columns = {name: [one[name] for one in runs] for name in ("precision", "max_cosine")}
                row = {"data": data, "settings": list(settings), **columns}
                known[_key(data, settings)] = row
                print(data, sweep, value, row["precision"], flush=True)
            rows.append({**row, "settings": list(settings), "sweep": sweep, "value": value})
            write_text(path, json.dumps({**results, "rows": rows}, indent=1, ensure_ascii=False) + "\n")
    results["rows"] = rows


def _key(data: str, settings: tuple[str, ...]) -> str:
    """Equal for equal runs, however their settings were given."""
    cfg = configuration(data, settings)
    neighbors = resolve_neighbors(cfg.spread, cfg.data.classes if data == "synthetic" else 10)
    return cfg.model_copy(update={"spread": cfg.spread.model_copy(update={"neighbors": neighbors})}).model_dump_json()


def mean(row: dict[str, Any]) -> float:
    """Of the seeds; a run that diverged counts as nothing right."""
    return statistics.fmean(value or 0.0 for value in row["precision"])


def chosen(results: dict[str, Any], data: str, sweep: str) -> list[dict[str, Any]]:
    return [row for row in results["rows"] if (row["data"], row["sweep"]) == (data, sweep)]


def page(results: dict[str, Any]) -> str:
    made = results["made_with"]
    lines = [
        "# What the settings do",
        "",
        "Made by `python benchmarks/choosing.py` from [choosing.json](choosing.json), and not by hand.",
        "precision@1 in percent on a quarter of the training examples, held out; mean ± standard deviation over",
        f"{SEEDS} seeds; {ROUNDS} rounds, or as many as see the same number of examples; all else as in the presets",
        "`digits` and `synthetic` (the latter with 200 classes in 32 dimensions and 50 clients a round). What is not",
        f"varied: one local step, λ = 10, ν = 1, and eq. (6) unless named (torch {made['torch']}, {made['machine']}).",
        "What to make of it: [choosing](../choosing.md).",
        "",
        "![precision by λ, k, ν, local steps and clients a round](choosing.png)",
    ]
    names = list(dict.fromkeys(row["sweep"] for row in results["rows"]))
    for name in names:
        lines += ["", f"## {name}", ""]
        for data in DATA:
            rows = chosen(results, data, name)
            lines += [
                f"| {data}: {name} | {' | '.join(_head(row) for row in rows)} |",
                f"|---|{'---:|' * len(rows)}",
                f"| precision@1 (%) | {' | '.join(_figure(row) for row in rows)} |",
                f"| largest class cosine | {' | '.join(_cosine(row) for row in rows)} |",
                "",
            ]
        lines.pop()
    return "\n".join(lines) + "\n"


def _head(row: dict[str, Any]) -> str:
    return f"{row['value']} (stale)" if row.get("stale") else str(row["value"])  # of another step than today's


def _figure(row: dict[str, Any]) -> str:
    if None in row["precision"]:
        return "diverged"
    return f"{mean(row):.1f} ± {statistics.stdev(row['precision']):.1f}"


def _cosine(row: dict[str, Any]) -> str:
    if None in row["max_cosine"]:
        return "–"
    return f"{statistics.fmean(row['max_cosine']):.2f}".replace("-0.00", "0.00").replace("-", "−")


def plot(results: dict[str, Any], path: Path) -> None:
    panels = [
        ("λ", "λ, eq. (6)", "λ with eq. (6)"),
        ("λ", "λ, eq. (7)", "λ with eq. (7)"),
        ("k", "k", "k of eq. (7)"),
        ("ν", "ν", "ν of eq. (6)"),
        ("local steps a round", "local steps", "Local steps, equal examples"),
        ("clients a round", "clients a round", "Clients a round, equal examples"),
    ]
    look: Any = {"font.size": 11, "axes.spines.top": False, "axes.spines.right": False}
    with mpl.rc_context(look):
        figure = Figure(figsize=(11, 6.4), layout="constrained")
        for axes, (label, sweep, title) in zip(figure.subplots(2, 3).flat, panels, strict=True):
            for data in DATA:
                _line(axes, chosen(results, data, sweep), COLOURS[data], "-", ABOUT[data])
                if sweep == "λ, eq. (6)":
                    _line(axes, chosen(results, data, f"{sweep}, the literal step"), COLOURS[data], ":", None)
            axes.set(xlabel=label, title=title, ylim=(0, 102))
            if sweep != "ν":
                axes.set_xscale("log")
                values = sorted({row["value"] for row in results["rows"] if row["sweep"] == sweep})
                values = [v for v in values if v not in (2, 3, 9, 30)] if len(values) > 6 else values
                axes.set_xticks(values, [f"{v:g}" for v in values])
                axes.minorticks_off()
        first = figure.axes[0]
        first.text(
            0.97, 0.74, "dotted: the step as printed, not bounded", transform=first.transAxes, ha="right", fontsize=9
        )
        for axes in (figure.axes[0], figure.axes[3]):
            axes.set_ylabel("held-out precision@1 (%)")
        handles, labels = first.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
        figure.savefig(path, dpi=130)


def _line(axes: Axes, rows: list[dict[str, Any]], colour: str, style: str, label: str | None) -> None:
    at, values = [row["value"] for row in rows], [mean(row) for row in rows]
    axes.plot(at, values, style, color=colour, marker="o", markersize=4, linewidth=2, label=label)
    low, high = ([pick(v or 0.0 for v in row["precision"]) for row in rows] for pick in (min, max))
    axes.fill_between(at, low, high, color=colour, alpha=0.15, linewidth=0)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--results", type=Path, default=Path("docs/results"))
    arguments.add_argument("--again", action="store_true")
    given = arguments.parse_args()
    file = given.results / "choosing.json"
    kept = json.loads(file.read_text(encoding="utf-8"))["rows"] if file.exists() and not given.again else []
    measured = {"made_with": made_with(), "rows": kept}
    measure(measured, file)
    write_text(file, json.dumps(measured, indent=1, ensure_ascii=False) + "\n")
    write_text(given.results / "choosing.md", page(measured))
    plot(measured, given.results / "choosing.png")
