"""λ and k for real: Delicious, eq. (7), λ from 1e-4 to 100 × k × {bounded, with moments beside it, literal, Adagrad}.

    python benchmarks/weights.py [--minutes 7] [--results docs/results]

What is there is not run again: the same command goes on, most telling cells first. Test rows, seed 0; nothing is chosen
by it. Writes weights.json and weights.md.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import fedaws
from fedaws import Config, FedawsError, Reporter, config
from fedaws.experiments.fingerprint import fingerprint
from fedaws.files import write_text
from fedaws.record.made_with import made_with

WEIGHTS = (1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0)
NEIGHBORS = ("1", "10", "100", "500", "all")
STEPS = {
    "bounded": ["spread.bounded=true"],
    "bounded, centred, whitened": ["spread.center=true", "spread.whiten=true"],
    "literal": ["spread.bounded=false"],
    "Adagrad": ["spread.bounded=false", "spread.optimizer=adagrad"],
}
KEPT = ("precision@1", "precision@3", "precision@5", "max_cosine")


def cells() -> list[tuple[str, str, float]]:
    """Step, k and λ of all cells: k = 10 first, then the others."""
    order = sorted(NEIGHBORS, key=lambda k: k != "10")
    return [(step, k, weight) for k in order for step in STEPS for weight in WEIGHTS]


def name_of(step: str, k: str, weight: float) -> str:
    """A cell's key in the data."""
    return f"{step}, k = {k}, λ = {weight:g}"


def configured(step: str, k: str, weight: float) -> Config:
    """The preset with this k, λ and step."""
    alone = ["spread.center=false", "spread.whiten=false", f"spread.neighbors={k}", f"spread.weight={weight}"]
    return config.load("delicious").override([*alone, *STEPS[step], "train.threads=1", "train.evaluate_every=400"])


def measured(cfg: Config) -> dict[str, Any]:
    """The last figures; of a run that diverges what it says."""
    stamp = {"fingerprint": fingerprint(cfg), "commit": made_with().get("commit", "")}
    try:
        last = fedaws.train(config=cfg, reporter=Reporter(on_warning=lambda message: None)).metrics[-1]
    except FedawsError as error:
        return stamp | {"error": str(error)}
    return stamp | {name: round(last[name], 5) for name in KEPT}


def page(results: dict[str, Any]) -> str:
    """The page, in Markdown."""
    found = results["cells"]
    lines = [
        "# λ and k on Delicious",
        "",
        "Made by `python benchmarks/weights.py` from [weights.json](weights.json), and not by hand.",
        "Eq. (7) on Delicious (983 labels, 50 clients a round, 400 rounds, η = 0.5), test rows, seed 0:",
        "precision@1 / precision@5 in percent, and the largest class cosine. *Bounded* is our step of eq. (7) alone,",
        "and with the rows centred and whitened beside it, which has no λ, as the preset has it; *literal* the step as",
        "printed, *Adagrad* Remark 1's (`spread.optimizer`), with λη as its learning rate. One seed: differences below",
        f"two points of precision@1 mean little. {len(found)} of {len(cells())} cells are measured.",
    ]
    for k in NEIGHBORS:
        rows = [(s, [found.get(name_of(s, k, weight)) for weight in WEIGHTS]) for s in STEPS]
        if any(cell for _, row in rows for cell in row):
            lines += ["", f"## k = {k}", "", f"| λ | {' | '.join(f'{weight:g}' for weight in WEIGHTS)} |"]
            lines += [f"|---|{'---:|' * len(WEIGHTS)}"]
            lines += [f"| {step} | {' | '.join(map(_cell, row))} |" for step, row in rows if any(row)]
    return "\n".join(lines) + "\n"


def _cell(found: dict[str, Any] | None) -> str:
    if not found:
        return "–"
    if "error" in found:
        return "diverged"
    first, fifth = (f"{100 * found[name]:.1f}" for name in ("precision@1", "precision@5"))
    return f"{first} / {fifth}, {found['max_cosine']:.2f}".replace("-", "−")


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--minutes", type=float, default=1e9)
    arguments.add_argument("--results", type=Path, default=Path("docs/results"))
    given = arguments.parse_args()
    path, began = given.results / "weights.json", time.monotonic()
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"cells": {}}
    for step, k, weight in cells():
        if name_of(step, k, weight) not in results["cells"]:
            if time.monotonic() - began > 60 * given.minutes:
                break
            results["cells"][name_of(step, k, weight)] = measured(configured(step, k, weight))
            write_text(path, json.dumps(results, indent=1, ensure_ascii=False) + "\n")
            write_text(path.with_suffix(".md"), page(results))
