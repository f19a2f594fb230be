"""How many of the mined neighbours are positives of the same examples, for the runs of Table 4's sweep.

    fedaws reproduce table4 --rows delicious-k10,delicious-k100,delicious-k500,delicious-all
    python benchmarks/cooccurrence.py delicious [--runs runs/table4] [--results docs/results]

For each run the neighbours N_k(c) of its last W, for several k: the share of them that stand together with c in some
training example, and the mean share of c's examples that have them too.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import fedaws
from fedaws import config
from fedaws.data.load import load_label_sets
from fedaws.evaluate.cooccurrence import cooccurrence
from fedaws.experiments.paper_tables import load_table
from fedaws.files import write_text

KS: tuple[int | None, ...] = (1, 10, 100, 500, None)


def measure(name: str, runs: Path) -> list[dict[str, Any]]:
    sets = load_label_sets(config.load(name))[0].labels
    rows = load_table("table4").rows
    found = []
    for folder in sorted(runs.glob(f"{name}-*/fedaws-seed0"), key=lambda path: list(rows).index(path.parent.name)):
        run = fedaws.load(folder)
        shares = {
            str(k or "all"): [round(100 * part, 2) for part in cooccurrence(run.W, sets, k)]
            for k in KS
            if k is None or k < len(run.W)
        }
        last = run.metrics[-1]
        found.append(
            {
                "row": folder.parent.name,
                "label": rows[folder.parent.name].label,
                "k": run.config.spread.neighbors,
                "precision@1": round(100 * last["precision@1"], 2),
                "max_cosine": round(last["max_cosine"], 3),
                "by_k": shares,
            }
        )
    return found


def page(results: dict[str, Any]) -> str:
    lines = [
        "# How many of the classes that are pushed away are positives too",
        "",
        "Made by `python benchmarks/cooccurrence.py` from [cooccurrence.json](cooccurrence.json), and not by hand.",
        "For each class c the k nearest rows of the trained W: the share of them that are a label together with c in",
        "some training example and, in brackets, the mean share of c's examples that have them too; percent. `all` is",
        "every pair of classes, what a random neighbour has. No client sees this: they have one label an example.",
        "*Stale* rows are of code that would come to others today: Table 4 has newer runs of these.",
    ]
    for name, rows in results.items():
        ks = list(rows[0]["by_k"])
        lines += ["", f"## {name}", "", _row(["run of Table 4", "P@1", *(f"k = {k}" for k in ks)])]
        lines.append(_row(["---"] + ["---:"] * (len(ks) + 1)))
        for row in rows:
            cells = [f"{share:.0f} ({often:.1f})" for share, often in row["by_k"].values()]
            stale = " (stale)" if row.get("stale") else ""  # of another step than today's
            lines.append(_row([row["label"] + stale, f"{row['precision@1']:.1f}", *cells]))
    return "\n".join(lines) + "\n"


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("data", nargs="+")
    arguments.add_argument("--runs", type=Path, default=Path("runs/table4"))
    arguments.add_argument("--results", type=Path, default=Path("docs/results"))
    given = arguments.parse_args()
    results = {name: measure(name, given.runs) for name in given.data}
    write_text(given.results / "cooccurrence.json", json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    write_text(given.results / "cooccurrence.md", page(results))


if __name__ == "__main__":
    main()
