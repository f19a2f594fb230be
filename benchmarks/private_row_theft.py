"""What a curious node finds of the others' private rows: docs/results/private-row-theft.json and .md.

    python benchmarks/private_row_theft.py [--clients 2,3,10,100] [--one] [--results docs/results]

Generated classes, one a client, 32 dimensions, the preset `digits-flower`, 30 rounds with everybody in each, two
seeds. The search's two settings were tried on another seed, the liar's means on these. What stands in the JSON already
is not measured again; some minutes of one core for all.
"""

import argparse
import json
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any, get_args

import torch

from fedaws import config
from fedaws.audit.sum_theft import SumTheft, Try, Who, one_try, summary
from fedaws.data import load_data
from fedaws.files import write_text
from fedaws.record.made_with import made_with

NAME = "private-row-theft"
ROUNDS, SEEDS = 30, (0, 1)
BASE = ["data.name=synthetic", "privacy.rows=private", "model.embedding_dim=32", "model.hidden=[64]"]
DOES = {
    "passive": "a node, looks on",
    "active": "a node, tells of rows of its choice",
    "lying server": "the server with a node, tells means of its choice",
}


def measured(who: Who, clients: int, seed: int) -> dict[str, Any]:
    """The cosines of one federation."""
    cfg = config.load("digits-flower").override([*BASE, f"data.classes={clients}"])
    found = one_try(cfg, load_data(cfg), who, ROUNDS, seed)
    return {name: [[round(c, 4) for c in row] for row in cosines.tolist()] for name, cosines in told(found).items()}


def told(found: Try) -> dict[str, torch.Tensor]:
    """By name, as tables."""
    return {"found": found.found[None], "guessed": found.guessed}


def lines_of(tries: dict[str, dict[str, Any]]) -> list[SumTheft]:
    """What the federations of each kind and size come to, once all seeds are there."""
    rows = []
    for clients in sorted({int(name.split(", ")[1]) for name in tries}):
        for who in get_args(Who):
            found = [tries.get(name_of(who, clients, seed)) for seed in SEEDS]
            parts = [Try(torch.tensor(t["found"][0]), torch.tensor(t["guessed"])) for t in found if t is not None]
            if len(parts) == len(SEEDS):
                rows.append(summary(who, ROUNDS, parts))
    return rows


def name_of(who: str, clients: int, seed: int) -> str:
    return f"{who}, {clients}, {seed}"


def table(rows: list[SumTheft]) -> list[str]:
    """The figures."""
    lines = [
        "| clients | who | mean cosine | chance | best row | above 0.9 | by chance |",
        "|---:|---|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        interval = f"{row.cosine.value:.2f} ({row.cosine.low:.2f} … {row.cosine.high:.2f})"
        lines.append(
            f"| {row.clients} | {DOES[row.who]} | {interval} | {row.cosine.chance:.2f} | {row.best.value:.2f} | "
            f"{row.stolen:.1f} of {row.clients - 1} | {row.stolen_by_chance:.1f} |"
        )
    return lines


def page(rows: list[SumTheft]) -> str:
    """The results as a page."""
    head = [
        "# Private rows that a node finds",
        "",
        "Made by `python benchmarks/private_row_theft.py`: generated classes, one a client, 32 dimensions, the preset",
        f"`digits-flower`, {ROUNDS} rounds with everybody in each, seeds 0 and 1. A node knows its own row and, after",
        "each round, the mean $\\mu$ and the second moment $M$ of all; it looks for rows that explain them and how",
        "they moved in the last ten rounds. Cosine of the rows found with the true ones, each less the mean of",
        "all, with a 95 % interval over rows; beside it that of rows which are only made to fit the last $\\mu$",
        "and $M$: *chance*. See",
        "[private rows](../private-rows.md#what-the-sums-still-tell).",
        "",
    ]
    return "\n".join([*head, *table(rows)]) + "\n"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--clients", default="2,3,10,100")
    arguments.add_argument("--results", type=Path, default=Path("docs/results"))
    arguments.add_argument("--one", action="store_true", help="stop after one federation")
    given = arguments.parse_args()
    torch.set_num_threads(1)
    place = given.results / f"{NAME}.json"
    tries: dict[str, dict[str, Any]] = json.loads(place.read_text())["tries"] if place.exists() else {}
    for clients, who, seed in product(map(int, given.clients.split(",")), get_args(Who), SEEDS):
        name = name_of(who, clients, seed)
        if name not in tries:
            tries[name] = measured(who, clients, seed)
            print(name, flush=True)
            save(tries, given.results)
            if given.one:
                break
    save(tries, given.results)


def save(tries: dict[str, dict[str, Any]], folder: Path) -> None:
    """The figures so far, and the page of them."""
    rows = lines_of(tries)
    results = {"made_with": made_with(), "lines": [asdict(row) for row in rows], "tries": tries}
    write_text(folder / f"{NAME}.json", json.dumps(results) + "\n")
    write_text(folder / f"{NAME}.md", page(rows))


if __name__ == "__main__":
    main()
