"""What a curious node finds of the others' private rows: docs/results/private-row-theft.json and .md.

    python benchmarks/private_row_theft.py [--clients 2,3,10,100] [--noise 0.03,0.1,0.3,1] [--one] [--results FOLDER]

Generated classes, one a client, 32 dimensions, the preset `digits-flower`, 30 rounds with everybody in each, two
seeds. The search's two settings were tried on another seed, the liar's means on these. Then ten clients with noise on
the sums (`privacy.row_noise`): what the active node finds, and what it costs in precision on digits. What stands in the
JSON already is not measured again; some minutes of one core for all.
"""

import argparse
import json
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any, get_args

import torch

import fedaws
from fedaws import Reporter, config
from fedaws.audit.sum_theft import SumTheft, Try, Who, one_try, summary
from fedaws.data import load_data
from fedaws.files import write_text
from fedaws.record.made_with import made_with

NAME = "private-row-theft"
ROUNDS, SEEDS, FEW = 30, (0, 1), 10
BASE = ["data.name=synthetic", "privacy.rows=private", "model.embedding_dim=32", "model.hidden=[64]"]
DOES = {
    "passive": "a node, looks on",
    "active": "a node, tells of rows of its choice",
    "lying server": "the server with a node, tells means of its choice",
}


def measured(who: Who, clients: int, seed: int, noise: float = 0.0) -> dict[str, Any]:
    """The cosines of one federation."""
    noisy = [f"privacy.row_noise={noise}"] if noise else []
    cfg = config.load("digits-flower").override([*BASE, *noisy, f"data.classes={clients}"])
    found = one_try(cfg, load_data(cfg), who, ROUNDS, seed)
    return {name: [[round(c, 4) for c in row] for row in cosines.tolist()] for name, cosines in told(found).items()}


def precision(noise: float, seed: int) -> float:
    """On digits, ten clients with private rows, as the preset has it but for the noise."""
    noisy = [f"privacy.row_noise={noise}"] if noise else []
    cfg = config.load("digits").override(["privacy.rows=private", "spread.regularizer=moments", *noisy, f"seed={seed}"])
    return float(fedaws.train(config=cfg, reporter=Reporter(on_warning=lambda _: None)).metrics[-1]["precision@1"])


def told(found: Try) -> dict[str, torch.Tensor]:
    """By name, as tables."""
    return {"found": found.found[None], "guessed": found.guessed}


def lines_of(tries: dict[str, dict[str, Any]]) -> list[SumTheft]:
    """What the federations of each kind and size come to, once all seeds are there."""
    rows = []
    for clients in sorted({int(name.split(", ")[1]) for name in tries if "noise" not in name}):
        for who in get_args(Who):
            found = [tries.get(name_of(who, clients, seed)) for seed in SEEDS]
            parts = [Try(torch.tensor(t["found"][0]), torch.tensor(t["guessed"])) for t in found if t is not None]
            if len(parts) == len(SEEDS):
                rows.append(summary(who, ROUNDS, parts))
    return rows


def noisy_lines(
    tries: dict[str, dict[str, Any]], costs: dict[str, list[float]]
) -> list[tuple[float, SumTheft, list[float]]]:
    """The same of the active node among ten, by the noise; with precisions on digits."""
    rows = []
    for noise in sorted(map(float, costs)):
        found = [tries.get(name_of("active", FEW, seed, noise)) for seed in SEEDS]  # without noise as above
        parts = [Try(torch.tensor(t["found"][0]), torch.tensor(t["guessed"])) for t in found if t is not None]
        if len(parts) == len(SEEDS):
            rows.append((noise, summary("active", ROUNDS, parts), costs[str(noise)]))
    return rows


def name_of(who: str, clients: int, seed: int, noise: float = 0.0) -> str:
    return f"{who}, {clients}, {seed}" + (f", noise {noise:g}" if noise else "")


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


def noisy_table(rows: list[tuple[float, SumTheft, list[float]]]) -> list[str]:
    """The figures with noise."""
    lines = [
        "",
        "## With noise on the sums",
        "",
        f"The node that tells of rows of its choice among {FEW} clients, where the sums of w and wwᵀ have noise",
        "of this standard deviation in each number (`privacy.row_noise`); *chance* is again what the means alone give.",
        "Beside it precision@1 on digits (preset `digits`, private rows, seeds 0 and 1).",
        "",
        "| noise | mean cosine | chance | best row | above 0.9 | digits |",
        "|---:|---:|---:|---:|---:|---:|",
    ]
    for noise, row, found in rows:
        interval = f"{row.cosine.value:.2f} ({row.cosine.low:.2f} … {row.cosine.high:.2f})"
        cost = ", ".join(f"{100 * value:.1f}" for value in found)
        stolen = f"{row.best.value:.2f} | {row.stolen:.1f} of {FEW - 1}"
        lines.append(f"| {noise:g} | {interval} | {row.cosine.chance:.2f} | {stolen} | {cost} % |")
    return lines


def page(rows: list[SumTheft], noisy: list[tuple[float, SumTheft, list[float]]]) -> str:
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
    return "\n".join([*head, *table(rows), *(noisy_table(noisy) if noisy else [])]) + "\n"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--clients", default="2,3,10,100")
    arguments.add_argument("--noise", default="0.03,0.1,0.3,1")
    arguments.add_argument("--results", type=Path, default=Path("docs/results"))
    arguments.add_argument("--one", action="store_true", help="stop after one federation")
    given = arguments.parse_args()
    torch.set_num_threads(1)
    place = given.results / f"{NAME}.json"
    kept = json.loads(place.read_text()) if place.exists() else {}
    tries: dict[str, dict[str, Any]] = kept.get("tries", {})
    costs: dict[str, list[float]] = kept.get("digits", {})
    plain = [(who, clients, 0.0) for clients in map(int, given.clients.split(",")) for who in get_args(Who)]
    noisy = [("active", FEW, noise) for noise in map(float, given.noise.split(","))]
    for (who, clients, noise), seed in product([*plain, *noisy], SEEDS):
        name = name_of(who, clients, seed, noise)
        if name not in tries:
            tries[name] = measured(who, clients, seed, noise)
            print(name, flush=True)
            save(tries, costs, given.results)
            if given.one:
                break
    for noise in [] if given.one else [0.0, *(noise for _, _, noise in noisy)]:
        if str(noise) not in costs:
            costs[str(noise)] = [precision(noise, seed) for seed in SEEDS]
            print(noise, costs[str(noise)], flush=True)
            save(tries, costs, given.results)
    save(tries, costs, given.results)


def save(tries: dict[str, dict[str, Any]], costs: dict[str, list[float]], folder: Path) -> None:
    """The figures so far, and the page of them."""
    rows, noisy = lines_of(tries), noisy_lines(tries, costs)
    with_noise = [{"noise": noise, **asdict(row)} for noise, row, _ in noisy]
    lines = {"lines": [asdict(row) for row in rows], "noisy": with_noise}
    results = {"made_with": made_with(), **lines, "digits": costs, "tries": tries}
    write_text(folder / f"{NAME}.json", json.dumps(results) + "\n")
    write_text(folder / f"{NAME}.md", page(rows, noisy))


if __name__ == "__main__":
    main()
