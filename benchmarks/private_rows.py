"""Rows at home against rows in the clear: docs/results/private-rows.json and .md.

    python benchmarks/private_rows.py [--sets digits,omniglot,voices] [--rows "a;b"] [--out runs/private-rows]
        [--results docs/results]

Each line has four tries on held-out training examples; the best one then trains on all of them with three seeds and is
tested. A cell is a file in `--out`, written after every run: a killed benchmark goes on where it was. Omniglot is
$FEDAWS_DATA/omniglot/omniglot28.npz (x [32460, 28, 28], y, drawer), voices are
$FEDAWS_DATA/audiomnist/audiomnist-logmel.npz (x [6000, 40, 64], speaker, repetition).
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor

import fedaws
from fedaws import Config, Method
from fedaws.core import losses
from fedaws.core.method import Spread, When
from fedaws.core.moments import moments_
from fedaws.data.federated import FederatedData
from fedaws.files import write_text
from fedaws.record.made_with import made_with
from fedaws.types import Memory

SEEDS = 3
FEATURES = 4096


# --- sets: examples, labels, and which part of each is for training (0), choosing (1) and testing (2) ----------------


def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x, y = load_digits(return_X_y=True)
    place = np.random.default_rng(0).permutation(len(y)) % 8
    return (x / 16).astype(np.float32), y, np.where(place == 7, 2, np.where(place >= 5, 1, 0))


def omniglot() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    stored = np.load(_root() / "omniglot" / "omniglot28.npz")
    x = stored["x"].astype(np.float32).reshape(-1, 14, 2, 14, 2).mean((2, 4)).reshape(-1, 196) / 255
    drawer = stored["drawer"]
    return x, stored["y"].astype(np.int64), np.where(drawer >= 15, 2, np.where(drawer >= 12, 1, 0))


def voices() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    stored = np.load(_root() / "audiomnist" / "audiomnist-logmel.npz")
    mel = stored["x"].astype(np.float32) / 255
    x = np.concatenate([mel.mean(2), mel.std(2), np.diff(mel, axis=2).std(2)], axis=1)
    repetition, y = stored["repetition"], np.unique(stored["speaker"], return_inverse=True)[1]
    rank = np.argsort(np.argsort(np.unique(repetition)))[np.searchsorted(np.unique(repetition), repetition)]
    return x, y.astype(np.int64), np.where(rank >= len(np.unique(repetition)) * 0.7, 2, np.where(rank % 4 == 3, 1, 0))


def _root() -> Path:
    return Path(os.environ["FEDAWS_DATA"])


SETS: dict[str, Callable[[], tuple[np.ndarray, np.ndarray, np.ndarray]]] = {
    "digits": digits,
    "omniglot": omniglot,
    "voices": voices,
}


@cache
def split(name: str, choosing: bool) -> FederatedData:
    x, y, part = SETS[name]()
    train, test = (part == 0, part == 1) if choosing else (part < 2, part == 2)
    return fedaws.from_arrays(x[train], y[train], x[test], y[test])


# --- rows -------------------------------------------------------------------------------------------------------------


def kernel_spread(width: float, whitening: float, features: int | None) -> Spread:
    """Moments, and then half a mean-shift step away from the rows' kernel density; by random features, or exact."""

    def step(W: Tensor, _: Tensor, when: When, __: torch.Generator, memory: Memory) -> Memory:
        moments_(W, whiten=whitening * when.factor)
        if features is None:
            kernel = ((W @ W.T - 1) / width**2).exp()
            shift = kernel @ W / kernel.sum(1, keepdim=True)
            moved = W - 0.5 * when.factor * shift
        else:
            rng = torch.Generator().manual_seed(when.round_num)  # anew in every round: the errors average out
            waves = torch.randn(W.shape[1], features // 2, generator=rng) / width
            cosines, sines = (W @ waves).cos(), (W @ waves).sin()
            density = (cosines * cosines.mean(0) + sines * sines.mean(0)).mean(1) * len(W)
            slope = (cosines * sines.mean(0) - sines * cosines.mean(0)) @ waves.T * (2 * len(W) / features)
            moved = W - 0.1 * when.factor * width**2 * slope / density.clamp_min(1)[:, None]
        W.copy_(F.normalize(moved, dim=1))
        return memory

    return Spread(step)


@dataclass(frozen=True)
class Row:
    """A line of the table: four tries, each settings and perhaps a method of its own."""

    tries: tuple[tuple[list[str], Callable[[Config], Method] | None], ...]


def settings(common: list[str], key: str, values: tuple[float, ...]) -> Row:
    return Row(tuple(([*common, f"{key}={value}"], None) for value in values))


def kernels(features: int | None) -> Row:
    def made(width: float, whitening: float, cfg: Config) -> Method:
        loss = partial(losses.positive_hinge, margin=cfg.clients.margin)
        return Method("kernel", "", "own", loss, spread=kernel_spread(width, whitening, features))

    pairs = [(0.3, 1.0), (0.5, 1.0), (0.3, 0.2), (0.5, 0.2)]
    return Row(tuple(([], partial(made, *pair)) for pair in pairs))


MOMENTS, PRIVATE = ["spread.regularizer=moments"], ["spread.regularizer=moments", "privacy.rows=private"]
SHARES = (1.0, 0.5, 0.2, 0.1)
COHORT = ["clients.per_round=0.25"]  # of the clients; four times the rounds
ROWS = {
    "eq. (6), in the clear": settings([], "spread.margin", (0.5, 0.8, 1.0, 1.5)),
    "moments, in the clear": settings(MOMENTS, "spread.whitening", SHARES),
    "moments, private": settings(PRIVATE, "spread.whitening", SHARES),
    "moments, in the clear, a quarter a round": settings(MOMENTS + COHORT, "spread.whitening", SHARES),
    "moments, private, a quarter a round": settings(PRIVATE + COHORT, "spread.whitening", SHARES),
    "moments and an exact kernel, in the clear": kernels(None),
    f"moments and {FEATURES:,} random features, in the clear": kernels(FEATURES),
    "`fixed`": settings(["method=fixed"], "server.lr", (0.01, 0.02, 0.05, 0.1)),
}
BASE = Config().with_(
    model={"hidden": [256], "embedding_dim": 64},
    clients={"lr": 1.0, "class_lr": 0.1, "examples_per_step": 4},
    server={"optimizer": "muon", "lr": 0.02, "momentum": 0.9},
    train={"rounds": 200, "evaluate_every": 10_000, "threads": 1},
)


def run(name: str, row: Row, number: int, seed: int, choosing: bool) -> dict[str, float]:
    lines, method = row.tries[number]
    data = split(name, choosing)
    cohort = [line for line in lines if line in COHORT]
    cfg = BASE.override([line for line in lines if line not in COHORT]).with_(seed=seed)
    if cohort:
        per_round = -(-data.num_classes // 4)
        cfg = cfg.with_(clients={"per_round": per_round}, train={"rounds": 4 * cfg.train.rounds})
    began = time.process_time()
    trained = fedaws.train(data, None, cfg, method=None if method is None else method(cfg))
    last = trained.metrics[-1]
    return {
        "precision@1": last["precision@1"],
        "max_cosine": last["max_cosine"],
        "seconds": time.process_time() - began,
    }


def fill(cell: dict[str, list[Any]], name: str, row: Row) -> Iterator[None]:
    """Run what is missing of a cell; it can be kept after every run."""
    while len(cell["tries"]) < len(row.tries):
        cell["tries"].append(run(name, row, len(cell["tries"]), 0, choosing=True)["precision@1"])
        yield
    best = max(range(len(row.tries)), key=cell["tries"].__getitem__)
    while len(cell["seeds"]) < SEEDS:
        cell["seeds"].append({"try": best} | run(name, row, best, len(cell["seeds"]), choosing=False))
        yield


# --- the page ---------------------------------------------------------------------------------------------------------


def page(results: dict[str, Any]) -> str:
    lines = ["# Rows at home against rows in the clear", ""]
    lines += [
        "Made by `python benchmarks/private_rows.py`. Test precision@1 in percent, mean ± deviation over three seeds;",
        "four tries for each line on held-out training examples, the best of them tested. MLP with 256 hidden units,",
        "64 dimensions, Muon, 200 rounds of all clients, or 800 of a quarter of them. The last figure is the largest",
        "cosine between two classes. See [private rows](../private-rows.md).",
    ]
    for name, rows in results["sets"].items():
        lines += [
            "",
            f"## {name}",
            "",
            "| rows | the four tries | test precision@1 | largest cosine |",
            "|---|---|---:|---:|",
        ]
        for label, cell in rows.items():
            if len(cell["seeds"]) < SEEDS:
                continue
            values = [100 * seed["precision@1"] for seed in cell["seeds"]]
            tries = ", ".join(f"{100 * value:.1f}" for value in cell["tries"])
            cosine = f"{statistics.fmean(seed['max_cosine'] for seed in cell['seeds']):.2f}".replace("-", "−")
            lines.append(
                f"| {label} | {tries} | {statistics.fmean(values):.1f} ± {statistics.stdev(values):.1f} | {cosine} |"
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--sets", default=",".join(SETS))
    arguments.add_argument("--rows", default=";".join(ROWS), help="separated by ;")
    arguments.add_argument("--out", type=Path, default=Path("runs/private-rows"))
    arguments.add_argument("--results", type=Path, default=Path("docs/results"))
    given = arguments.parse_args()
    torch.set_num_threads(1)
    given.out.mkdir(parents=True, exist_ok=True)
    for name in given.sets.split(","):
        for label in given.rows.split(";"):
            place = given.out / f"{name}-{list(ROWS).index(label)}.json"
            cell = json.loads(place.read_text()) if place.exists() else {"tries": [], "seeds": []}
            for _ in fill(cell, name, ROWS[label]):
                write_text(place, json.dumps(cell) + "\n")
            print(name, label, cell["tries"], [seed["precision@1"] for seed in cell["seeds"]], flush=True)
    stored = {
        name: {
            label: json.loads((given.out / f"{name}-{number}.json").read_text())
            for number, label in enumerate(ROWS)
            if (given.out / f"{name}-{number}.json").exists()
        }
        for name in SETS
    }
    results = {"made_with": made_with(), "sets": {name: rows for name, rows in stored.items() if rows}}
    write_text(given.results / "private-rows.json", json.dumps(results, indent=1) + "\n")
    write_text(given.results / "private-rows.md", page(results))


if __name__ == "__main__":
    main()
