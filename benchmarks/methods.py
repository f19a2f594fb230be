"""Every method on every set, tuned alike: docs/results/methods.json and .md.

    python benchmarks/methods.py [--sets digits,delicious,omniglot] [--rows "a;b"] [--slow]
        [--out runs/methods] [--results docs/results]
    python benchmarks/methods.py --collect        # only write the page of what is there

Each row of the table has the same number of tries, drawn from the same seed over the same space, on held-out training
rows; the best try then trains on all of them with three seeds and is tested. A cell (a row on a set) is a file in
`--out` that is written after every run, so that a killed benchmark goes on where it was. `--slow` adds CIFAR-100.
Omniglot is read from $FEDAWS_DATA/omniglot/omniglot28.npz: x [32460, 28, 28] bytes, y, drawer.
"""

import argparse
import json
import os
import random
import re
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedaws
from fedaws import FedawsError, Model, Reporter, TestSet, config
from fedaws.core.last_step import ridge, shared_covariance
from fedaws.data.federated import FederatedData, from_arrays
from fedaws.evaluate.precision import precision_at, right
from fedaws.files import write_text
from fedaws.record.made_with import made_with
from fedaws.runners.sums import ask_sums
from fedaws.sparse import SparseRows
from fedaws.types import Sums

TRIES, SEEDS = 6, 3
RIDGES = (0.01, 0.1, 1.0, 10.0)
KEPT = ("precision@1", "precision@5", "psp@1", "max_cosine", "min_separation", "worst", "never")


@dataclass(frozen=True)
class Row:
    """A line of the table: settings that make it, and which parts of the space it has."""

    settings: str
    space: tuple[str, ...]
    needs: str = ""  # label sets
    oracle: bool = False  # its clients see other classes' rows


def _fedaws(regularizer: str, *space: str) -> Row:
    plain = "spread.center=false spread.whiten=false spread.neighbors=auto"
    return Row(f"method=fedaws {plain} spread.regularizer={regularizer}", ("dim", "class_lr", *space))


ROWS = {
    "positive-only": Row("method=positive-only", ("dim", "class_lr")),
    "fixed": Row("method=fixed", ("dim",)),
    "fixed-spread": Row("method=fixed-spread", ("dim",)),
    "fedaws, margin": _fedaws("margin", "weight", "moments"),
    "fedaws, nearest": _fedaws("nearest", "weight", "moments"),
    "fedaws, moments": _fedaws("moments"),
    "fedaws, softmax": _fedaws("softmax", "weight", "moments"),
    "fedaws, uniformity": _fedaws("uniformity", "weight", "moments"),
    "fedaws, energy": _fedaws("energy", "weight", "moments"),
    "fedaws, preset's spread": Row("method=fedaws", ("dim", "class_lr", "weight")),
    "fedaws, even weights": Row("method=fedaws clients.weighting=uniform", ("dim", "class_lr", "weight")),
    "agnostic": Row("method=agnostic", ("dim", "class_lr", "weight", "ascent")),
    "feduv": Row("method=feduv", ("code",)),
    "glas": Row("method=glas", ("dim", "class_lr", "weight"), needs="label sets"),
    "fedalc": Row("method=fedalc", ("dim", "class_lr", "weight"), needs="label sets"),
    "softmax": Row("method=softmax", ("dim", "scale"), oracle=True),
    "contrastive": Row("method=contrastive", ("dim",), oracle=True),
}

# What is tried; a choice may be several settings. `lr` is every row's.
_DENSE = {
    "lr": ["clients.lr=0.3", "clients.lr=1.0", "clients.lr=3.0"],
    "class_lr": ["clients.class_lr=0.1", "clients.class_lr=0.3", "clients.class_lr=1.0"],
    "dim": ["model.embedding_dim=32", "model.embedding_dim=64", "model.embedding_dim=128"],
    "code": ["model.embedding_dim=127", "model.embedding_dim=255", "model.embedding_dim=511"],
    "weight": ["spread.weight=0.1", "spread.weight=1.0", "spread.weight=10.0"],
    "moments": ["", "spread.center=true", "spread.center=true spread.whiten=true"],
    "scale": ["clients.scale=4.0", "clients.scale=8.0", "clients.scale=16.0"],
    "ascent": ["options.step=0.03", "options.step=0.1", "options.step=0.3"],
}
_TABLE = {**_DENSE, "lr": ["server.table_lr=0.3", "server.table_lr=1.0", "server.table_lr=3.0"]}


@dataclass(frozen=True)
class Set:
    """Data, the settings all rows share, and what may be tried."""

    about: str
    base: str  # a preset
    settings: str
    space: dict[str, list[str]]
    held_out: str = ""
    label_sets: bool = False
    own_data: bool = False


SETS = {
    "digits": Set(
        "10 classes, 1,347 examples of 8 × 8 pixels, all clients in each of 300 rounds; MLP of 128 hidden units. A "
        "quarter of the training rows is held out for tuning.",
        "digits",
        "train.rounds=300 train.evaluate_every=300 train.checkpoint_every=300",
        _DENSE,
        "data.validation=0.25",
    ),
    "delicious": Set(
        "983 labels, 12,920 examples of 500 features with 19 labels each, 50 clients in each of 200 rounds; a table of "
        "feature embeddings. A fifth of the training rows is held out for tuning.",
        "delicious",
        "train.rounds=200 train.evaluate_every=200 train.checkpoint_every=200 train.threads=1",
        _TABLE,
        "data.validation=0.2",
        label_sets=True,
    ),
    "omniglot": Set(
        "1,623 characters, 20 drawers of each: 15 for training, 5 for testing, of the 15 three held out for tuning; "
        "28 × 28 pixels, MLP of 256 hidden units, 200 clients in each of 600 rounds.",
        "digits",
        "name=omniglot model.hidden=[256] clients.per_round=200 clients.examples_per_step=5 train.rounds=600 "
        "train.evaluate_every=600 train.checkpoint_every=600",
        _DENSE,
        own_data=True,
    ),
    "cifar100": Set(
        "100 classes, ResNet-8, 300 rounds: a short budget. A tenth of the training rows is held out for tuning.",
        "cifar100-resnet32",
        "model.name=resnet8 train.rounds=300 train.evaluate_every=300 train.checkpoint_every=300",
        _DENSE,
        "data.validation=0.1",
    ),
}


# --- one cell ---------------------------------------------------------------------------------------------------------


def tries_of(row: Row, space: dict[str, list[str]], count: int = TRIES) -> list[str]:
    """Settings to try. Every row draws from all of the space, so that what rows share is drawn alike."""
    rng = random.Random(0)
    draws = [{part: rng.choice(choices) for part, choices in space.items()} for _ in range(count)]
    return [" ".join(filter(None, (draw[part] for part in ("lr", *row.space)))) for draw in draws]


def fill(cell: dict[str, Any], name: str, where: Set, row: Row) -> Iterator[None]:
    """Do what is missing in a cell, and yield after every run."""
    settings = tries_of(row, where.space)
    for tried in settings[len(cell["tries"]) :]:
        measures = run(name, where, row, tried, seed=0, tuning=True)
        cell["tries"].append({"settings": tried, **measures})
        yield
    best = max(cell["tries"], key=lambda each: each.get("precision@1", -1.0))
    if "precision@1" not in best:
        return
    for seed in range(len(cell["seeds"]), SEEDS):
        cell["seeds"].append(run(name, where, row, best["settings"], seed, tuning=False, ridges=best["ridges"]))
        yield


def run(
    name: str, where: Set, row: Row, tried: str, seed: int, tuning: bool, ridges: dict[str, float] | None = None
) -> dict[str, Any]:
    """The measures of one run; of one that diverges, why. In tuning also the λ of each last step."""
    held_out = where.held_out if tuning else ""
    cfg = config.load(where.base).override(" ".join([where.settings, row.settings, tried, held_out]).split())
    cfg = cfg.override([f"seed={seed}"])
    data = omniglot(tuning) if where.own_data else None
    began = time.process_time()
    measures = {"worst": worst, "never": never}
    try:
        trained = fedaws.train(data, config=cfg, measures=measures, reporter=Reporter(on_warning=lambda _: None))
    except FedawsError as error:
        return {"failed": str(error)}
    seconds = time.process_time() - began
    last = trained.metrics[-1]
    found = {key: round(last[key], 4) for key in KEPT if key in last} | {"seconds": round(seconds, 1)}
    steps = last_steps(trained, RIDGES if ridges is None else None, ridges)
    if ridges is None:
        chosen = {kind: max(by, key=lambda weight: by[weight]) for kind, by in steps.items()}
        return {**found, "ridges": chosen}
    return {**found, "last_step": {kind: next(iter(by.values())) for kind, by in steps.items()}}


def last_steps(
    trained: fedaws.Run, weights: tuple[float, ...] | None, chosen: dict[str, float] | None
) -> dict[str, dict[float, float]]:
    """precision@1 after each closed-form last step, by its λ: no training, only Σz and Σzzᵀ of the training rows."""
    assert trained.data is not None
    sums = ask_sums(trained.encoder, trained.data)(trained.theta, True)
    test = TestSet(trained.data.x_test, trained.data.y_test)
    embeddings = trained.model.embed(test.x)

    def precision(kind: str, weight: float) -> float:
        W, bias = _closed_form(kind, sums, weight)
        model = replace(trained.model, W=W, bias=bias)
        return round(precision_at(model.rank(embeddings, 1), test.y, 1), 4)

    wanted = {kind: weights or (float((chosen or {})[kind]),) for kind in ("ridge", "lda")}
    return {kind: {weight: precision(kind, weight) for weight in each} for kind, each in wanted.items()}


def _closed_form(kind: str, sums: Sums, weight: float) -> tuple[torch.Tensor, torch.Tensor | None]:
    return (ridge(sums, weight), None) if kind == "ridge" else shared_covariance(sums, weight)


def _of_classes(model: Model, test: TestSet) -> torch.Tensor:
    """The share of each class's test examples with it as their best class; of label sets, among their five best."""
    sets = isinstance(test.y, SparseRows)
    best = model.rank(model.embed(test.x), 5 if sets else 1).classes
    labels = test.y.indices if isinstance(test.y, SparseRows) else test.y
    counts = torch.bincount(labels, minlength=len(model.W))
    hits = torch.bincount(best[right(best, test.y)], minlength=len(model.W))
    return hits[counts > 0] / counts[counts > 0]


def worst(model: Model, test: TestSet) -> float:
    """The class that is found least."""
    return float(_of_classes(model, test).min())


def never(model: Model, test: TestSet) -> float:
    """The share of classes that are never found."""
    return float((_of_classes(model, test) == 0).float().mean())


@cache
def omniglot(tuning: bool) -> FederatedData:
    """By drawer: 0–14 train, of which 12–14 are held out for tuning, 15–19 test."""
    with np.load(Path(os.environ.get("FEDAWS_DATA", ".")) / "omniglot" / "omniglot28.npz") as archive:
        x, y, drawer = (archive[key] for key in ("x", "y", "drawer"))
    x, y = x.reshape(len(x), -1), y.astype(np.int64)
    train = drawer < (12 if tuning else 15)
    test = (drawer >= 12) & (drawer < 15) if tuning else drawer >= 15
    return from_arrays(x[train], y[train], x[test], y[test])


# --- the page ---------------------------------------------------------------------------------------------------------


def collect(out: Path) -> dict[str, Any]:
    """All cells that are there."""
    sets: dict[str, Any] = {}
    for name in SETS:
        cells = {row: _read(_place(out, name, row)) for row in ROWS if _place(out, name, row).exists()}
        if cells:
            sets[name] = cells
    return {"made_with": made_with(), "tries": TRIES, "seeds": SEEDS, "sets": sets}


def page(results: dict[str, Any]) -> str:
    """The page, in Markdown."""
    made = results["made_with"]
    lines = [
        "# Every method, tuned alike",
        "",
        *ANSWER,
        "",
        "Made by `python benchmarks/methods.py` from [methods.json](methods.json), and not by hand "
        f"(torch {made['torch']}, {made['machine']}, one thread).",
        f"Each row had {results['tries']} random tries from the same seed over the same space on held-out training "
        f"rows, every one of them in the data; the best then trained on all rows with {results['seeds']} seeds.",
        "Mean ± standard deviation on test rows, in %. *worst* is the class that is found least, *never* the share of",
        "classes never found (of label sets: among the five best). *ridge* and *lda* are precision@1 of the same runs",
        "after a closed-form last step (`train.last_step`), its λ chosen on held-out rows. Seconds are of one core.",
        "Budgets are short and the same for all rows: the figures compare methods and are not the best that each",
        "can do; presets, from which the other settings come, were tuned for `fedaws`. Bold: the best of those whose",
        "clients see no other class's row, and what lies within two of its standard deviations. Three seeds and six",
        "tries are few, and the best of a dozen rows is flattered: a difference of a point says nothing.",
    ]
    for name, cells in results["sets"].items():
        lines += ["", f"## {name.capitalize()}", "", SETS[name].about, "", *_table(name, cells)]
    missing = [name for name in SETS if name not in results["sets"]]
    if missing:
        lines += ["", f"Not run yet: {', '.join(missing)}."]
    return "\n".join([*lines, "", *LEFT_OUT]) + "\n"


ANSWER = [
    "**Take `fedaws`, with `spread.regularizer` = `nearest` or, with less to tune, `moments`.** On the sets that are",
    "finished no method whose server knows no more is clearly better. Beside that:",
    "",
    "- Sets of labels: add `train.last_step=ridge`, which costs one more message and lifted every row on Delicious.",
    "  The highest figures there have even weights and `lda`. On digits neither does much for good rows.",
    "- Nobody may train or return rows: `fixed-spread`. It is about a point behind on both.",
    "- Not even the server may know a row: `feduv`. It is about three points behind on digits. On Delicious it is",
    "  among the best, but with up to 511 dimensions where others had at most 128, which was not told apart.",
    "- Rare classes matter: give clients even weights (`clients.weighting=uniform`). On Delicious `agnostic` finds",
    "  more labels than `fedaws` does, but so does `fedaws` with even weights: that gain is not the ascent's.",
    "- The server may know which labels stand together: `glas` and `fedalc` are within a point of the best of the",
    "  others on Delicious. FedALC's paper reports gains of up to 19 points, on another set; none such is seen here.",
    "- `uniformity` and `energy` are behind `nearest` on both sets.",
    "",
    "**What this does not show.** The six draws happen to leave out parts of the space: no try has a step size of 3, a",
    "`class_lr` of 0.1 or a `spread.weight` of 0.1, and one alone has 128 dimensions. `agnostic`, `fixed-spread` and",
    "the two rows of controls spread as the preset does (on Delicious `nearest`, centred and whitened), the other rows",
    "of `fedaws` as their tries say. `preset's spread` and `even weights` were added after a first look at the",
    "results, as controls for `agnostic`.",
]
LEFT_OUT = [
    "## Not in the tables",
    "",
    "- `glas` and `fedalc` are only where examples have sets of labels. The server must be told how often two labels",
    "  stand together, which no client knows.",
    "- `class-features` needs features of the classes, which these sets do not have; clients of `family` and `fedavg`",
    "  have several classes, so that their figures would not compare. [All methods](../methods.md) has them.",
    "- FedProto sends all classes' mean embeddings to every client, FedRS runs a softmax over all rows at the client,",
    "  and TurboSVM has clients train all of W: each needs other classes' rows at the client.",
    "- `feduv` is FedUV of Hosseini et al. (ICML 2021). Another FedUV (Son et al., CVPR 2024) shares only its name.",
]


def _table(name: str, cells: dict[str, Any]) -> list[str]:
    lines = [
        "| method | precision@1 | ridge | lda | worst | never | largest cosine | s |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    finished = {row: cell["seeds"] for row, cell in cells.items() if len(cell["seeds"]) == SEEDS}
    whole = {row: seeds for row, seeds in finished.items() if all("precision@1" in seed for seed in seeds)}
    ours = {row: _mean(seeds, "precision@1") for row, seeds in whole.items() if not ROWS[row].oracle}
    first = max(ours, key=lambda each: ours[each], default="")
    near = ours[first] - 2 * statistics.stdev(seed["precision@1"] for seed in whole[first]) if first else 0.0
    for row, seeds in finished.items():
        label = f"{row} (oracle)" if ROWS[row].oracle else row
        if row not in whole:
            lines.append(f"| {label} | diverged | | | | | | |")
            continue
        bold = "**" if ours.get(row, -1.0) >= near else ""
        last = [_percent([{"last": seed["last_step"][kind]} for seed in seeds], "last") for kind in ("ridge", "lda")]
        cosine = f"{_mean(seeds, 'max_cosine'):.2f}".replace("-", "−")
        found = [f"{bold}{_percent(seeds, 'precision@1')}{bold}", *last]
        found += [_percent(seeds, "worst"), _percent(seeds, "never"), cosine, f"{_mean(seeds, 'seconds'):.0f}"]
        lines.append(f"| {label} | {' | '.join(found)} |")
    missing = [row for row in ROWS if row not in finished and (SETS[name].label_sets or not ROWS[row].needs)]
    return lines + (["", f"Not finished: {', '.join(missing)}."] if missing else [])


def _mean(seeds: list[dict[str, float]], key: str) -> float:
    return statistics.fmean(seed[key] for seed in seeds)


def _percent(seeds: list[dict[str, float]], key: str) -> str:
    values = [100 * seed[key] for seed in seeds]
    return f"{statistics.fmean(values):.1f} ± {statistics.stdev(values):.1f}"


# --- the command ------------------------------------------------------------------------------------------------------


def _place(out: Path, name: str, row: str) -> Path:
    return out / name / f"{re.sub('[^a-z]+', '-', row)}.json"


def _read(path: Path) -> dict[str, Any]:
    cell: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"tries": [], "seeds": []}
    return cell


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--sets", default="digits,delicious,omniglot")
    arguments.add_argument("--rows", default=";".join(ROWS), help="separated by ;")
    arguments.add_argument("--slow", action="store_true", help="CIFAR-100 too")
    arguments.add_argument("--collect", action="store_true", help="only write the page of what is there")
    arguments.add_argument("--out", type=Path, default=Path("runs/methods"))
    arguments.add_argument("--results", type=Path, default=Path("docs/results"))
    given = arguments.parse_args()
    torch.set_num_threads(1)
    names = [] if given.collect else [*given.sets.split(","), *(["cifar100"] if given.slow else [])]
    for name in names:
        for label in given.rows.split(";"):
            row = ROWS[label]
            if row.needs == "label sets" and not SETS[name].label_sets:
                continue
            place = _place(given.out, name, label)
            cell = _read(place)
            place.parent.mkdir(parents=True, exist_ok=True)
            for _ in fill(cell, name, SETS[name], row):
                write_text(place, json.dumps(cell, indent=1) + "\n")
            print(name, label, [seed.get("precision@1") for seed in cell["seeds"]], flush=True)
    results = collect(given.out)
    write_text(given.results / "methods.json", json.dumps(results, indent=1) + "\n")
    write_text(given.results / "methods.md", page(results))


if __name__ == "__main__":
    main()
