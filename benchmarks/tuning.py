"""Random search of a preset's settings on held-out training rows, the same number of tries for every method.

    python benchmarks/tuning.py delicious --methods fedaws,softmax --tries 40 --refine 10 [--out runs/tuning.json]

The test rows are not looked at. First come random settings; then the best so far with two things drawn anew, again and
again. All this with one seed; the best four then have two more, each with other rows held out, and are ranked by the
mean. What was tried before is read from the file and not run again.
"""

import argparse
import json
import math
import random
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import fedaws
from fedaws import Config, FedawsError, Reporter, config
from fedaws.files import write_text

HELD_OUT = 0.2
FINALISTS, SEEDS = 4, 3

# What the methods have in common, and what each has of its own; a choice may be several settings.
COMMON = {
    "delicious": [
        ["train.rounds=30", "train.rounds=60", "train.rounds=150", "train.rounds=400"],
        ["clients.per_round=50", "clients.per_round=100", "clients.per_round=300"],
        ["clients.examples_per_step=1", "clients.examples_per_step=4"],
        ["clients.weighting=uniform", "clients.weighting=examples"],
        ["server.table_lr=0.03", "server.table_lr=0.1", "server.table_lr=0.3", "server.table_lr=1.0"],
        ["model.embedding_dim=32", "model.embedding_dim=64", "model.embedding_dim=128"],
    ]
}
OWN = {
    "fedaws": [
        ["clients.class_lr=0.1", "clients.class_lr=0.5", "clients.class_lr=2.0"],
        ["clients.margin=0.7", "clients.margin=0.9", "clients.margin=1.0"],
        [
            "spread.regularizer=moments",
            "spread.regularizer=nearest spread.neighbors=10 spread.center=true spread.whiten=true",
            "spread.regularizer=nearest spread.neighbors=100 spread.center=true spread.whiten=true",
            "spread.regularizer=nearest spread.neighbors=10 spread.center=true spread.whiten=false",
            "spread.regularizer=nearest spread.neighbors=100 spread.center=true spread.whiten=false",
            "spread.regularizer=margin spread.neighbors=10 spread.center=true spread.whiten=false",
        ],
    ],
    "softmax": [
        ["clients.scale=2.0", "clients.scale=4.0", "clients.scale=8.0", "clients.scale=16.0"],
        [
            "server.optimizer=adam server.lr=0.001",
            "server.optimizer=adam server.lr=0.01",
            "server.optimizer=adagrad server.lr=0.03",
            "server.optimizer=adagrad server.lr=0.3",
            "server.optimizer=sgd server.lr=1.0",
            "server.optimizer=sgd server.lr=10.0",
        ],
    ],
    "fixed": [["clients.margin=0.7", "clients.margin=0.9", "clients.margin=1.0"]],
}


# What the best may turn into beside what was there at the beginning.
FURTHER = {"delicious": {0: ["train.rounds=1000"], 1: ["clients.per_round=30"], 5: ["model.embedding_dim=256"]}}

Choice = tuple[str, ...]


def draw(preset: str, method: str, rng: random.Random) -> Choice:
    """One choice of everything."""
    return tuple(rng.choice(options) for options in COMMON[preset] + OWN[method])


def redraw(preset: str, method: str, best: Choice, rng: random.Random) -> Choice:
    """The same but for two things."""
    options, changed = COMMON[preset] + OWN[method], list(best)
    for place in rng.sample(range(len(best)), 2):
        changed[place] = rng.choice(options[place] + FURTHER[preset].get(place, []))
    return tuple(changed)


def score(base: Config, settings: list[str], seed: int) -> dict[str, float]:
    """The measures on the held-out rows after the last round; a run that diverges has none."""
    cfg = base.override([*settings, f"seed={seed}", f"data.validation={HELD_OUT}"])
    cfg = cfg.override([f"train.evaluate_every={cfg.train.rounds}", f"train.checkpoint_every={cfg.train.rounds}"])
    try:
        last = fedaws.train(config=cfg, reporter=Reporter(on_warning=lambda message: None)).metrics[-1]
    except FedawsError:
        return {"precision@1": -math.inf}
    kept = ("precision@1", "precision@3", "precision@5", "psp@1", "max_cosine", "seconds")
    return {name: round(last[name], 4) for name in kept}


def search(
    preset: str, method: str, tries: int, refine: int, known: dict[str, Any], save: Callable[[], None]
) -> list[dict[str, Any]]:
    base, rng = config.load(preset), random.Random(0)

    def tried(choice: Choice, seeds: int) -> list[float]:
        """precision@1 with the first so many seeds."""
        settings = [f"method={method}", *" ".join(choice).split()]
        runs: list[dict[str, float]] = known.setdefault(" ".join(settings), [])
        for seed in range(len(runs), seeds):
            runs.append(score(base, settings, seed))
            save()
        return [run["precision@1"] for run in runs[:seeds]]

    first = [draw(preset, method, rng) for _ in range(tries)]
    scores = {choice: tried(choice, 1)[0] for choice in first}
    for _ in range(refine):
        choice = redraw(preset, method, max(scores, key=lambda each: scores[each]), rng)
        scores[choice] = tried(choice, 1)[0]
    best = sorted(scores, key=lambda choice: -scores[choice])[:FINALISTS]
    ranked = [{"settings": " ".join(choice), "precision@1": statistics.fmean(tried(choice, SEEDS))} for choice in best]
    return sorted(ranked, key=lambda entry: -entry["precision@1"])


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("preset", choices=list(COMMON))
    arguments.add_argument("--methods", default="fedaws,softmax")
    arguments.add_argument("--tries", type=int, default=40)
    arguments.add_argument("--refine", type=int, default=10)
    arguments.add_argument("--out", type=Path, default=Path("runs/tuning.json"))
    given = arguments.parse_args()
    known: dict[str, Any] = json.loads(given.out.read_text()) if given.out.exists() else {}
    for method in given.methods.split(","):
        save = partial(_save, given.out, known)
        for entry in search(given.preset, method, given.tries, given.refine, known, save):
            print(f"{entry['precision@1']:.4f}  method={method} {entry['settings']}", flush=True)


def _save(path: Path, known: dict[str, Any]) -> None:
    write_text(path, json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
