"""What a curious node finds of the others' private rows: docs/results/private-row-theft.json and .md.

    python benchmarks/private_row_theft.py [--clients 2,3,10,100] [--results docs/results]

Generated classes, one a client, 32 dimensions, the preset `digits-flower`, 30 rounds with everybody in each, three
seeds. The attack's two settings were tried on another seed. What stands in the JSON already is not measured again; some
minutes of one core for all.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import torch

from fedaws import config
from fedaws.audit.sum_theft import Who, sum_theft
from fedaws.data import load_data
from fedaws.files import write_text
from fedaws.record.made_with import made_with

NAME = "private-row-theft"
ROUNDS, SEEDS = 30, (0, 1, 2)
BASE = ["data.name=synthetic", "privacy.rows=private", "model.embedding_dim=32", "model.hidden=[64]"]
DOES = {
    "passive": "a node, looks on",
    "active": "a node, tells of rows of its choice",
    "lying server": "the server with a node, tells means of its choice",
}


def measured(who: Who, clients: int) -> dict[str, Any]:
    """One line of the page."""
    cfg = config.load("digits-flower").override([*BASE, f"data.classes={clients}"])
    return asdict(sum_theft(cfg, load_data(cfg), who, ROUNDS, SEEDS))


def table(cells: dict[str, dict[str, Any]]) -> list[str]:
    """The figures, in the order of the cohorts."""
    lines = [
        "| clients | who | mean cosine | chance | best row | above 0.9 | by chance |",
        "|---:|---|---:|---:|---:|---:|---:|",
    ]
    for cell in sorted(cells.values(), key=lambda c: (c["clients"], list(DOES).index(c["who"]))):
        cosine, best = cell["cosine"], cell["best"]
        interval = f"{cosine['value']:.2f} ({cosine['low']:.2f} … {cosine['high']:.2f})"
        lines.append(
            f"| {cell['clients']} | {DOES[cell['who']]} | {interval} | {cosine['chance']:.2f} | {best['value']:.2f} | "
            f"{cell['stolen']:.1f} of {cell['clients'] - 1} | {cell['stolen_by_chance']:.1f} |"
        )
    return lines


def page(cells: dict[str, dict[str, Any]]) -> str:
    """The results as a page."""
    head = [
        "# Private rows that a node finds",
        "",
        "Made by `python benchmarks/private_row_theft.py`: generated classes, one a client, 32 dimensions, the preset",
        f"`digits-flower`, {ROUNDS} rounds with everybody in each, seeds 0, 1, 2. A node knows its own row and, after",
        "each round, the mean $\\mu$ and the second moment $M$ of all; it looks for rows that explain them and how",
        "they moved in the last ten rounds. Cosine of the rows found with the true ones, with a 95 % interval over",
        "rows; beside it that of rows which are only made to fit the last $\\mu$ and $M$: *chance*. See",
        "[private rows](../private-rows.md#what-the-sums-still-tell).",
        "",
    ]
    return "\n".join([*head, *table(cells)]) + "\n"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--clients", default="2,3,10,100")
    arguments.add_argument("--results", type=Path, default=Path("docs/results"))
    given = arguments.parse_args()
    torch.set_num_threads(1)
    place = given.results / f"{NAME}.json"
    cells: dict[str, dict[str, Any]] = json.loads(place.read_text())["cells"] if place.exists() else {}
    for clients in map(int, given.clients.split(",")):
        for who in get_args(Who):
            name = f"{who}, {clients}"
            if name not in cells:
                cells[name] = measured(who, clients)
                write_text(place, json.dumps({"made_with": made_with(), "cells": cells}, indent=1) + "\n")
                print(name, cells[name], flush=True)
    write_text(given.results / f"{NAME}.md", page(cells))


if __name__ == "__main__":
    main()
