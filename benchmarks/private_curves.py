"""Precision against ε, for real classes and for generated clients: docs/results/private-curves.json and .md.

    OMP_NUM_THREADS=1 python benchmarks/private_curves.py --out DIR [--sets TEXT] [--results docs/results]

Methods with which an ε holds: nobody's row is moved by others' (`fixed-spread`, `positive-only`), or by noisy sums of
them alone (`private`: `fedaws` with rows that stay at home). For each set, method and ε two runs on seed 0
choose the server's step, by training examples that are held out; the best trains on all of them, with the seeds that
the set has, and is tested once. "No noise" clips too. A cell is a file in `--out`, written after every run: a killed
benchmark goes on where it was. Omniglot is $FEDAWS_DATA/omniglot/omniglot28.npz. Trying costs privacy that ε does not
count. Cohorts and noise come from the operating system, so that a run is never the same again.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
import torch.nn.functional as F

import fedaws
from fedaws import Config, Reporter
from fedaws.data import FederatedData, load_data
from fedaws.evaluate import Model, TestSet
from fedaws.evaluate.precision import precision_at
from fedaws.files import write_text
from fedaws.privacy.accountant import noise_to_signal
from fedaws.record.made_with import made_with
from private_rows import split

TARGETS = (1.0, 2.0, 4.0, 8.0, None)
FIRST = (2.0, None, 8.0, 1.0, 4.0)  # the order in which they are run: what is asked most comes first
TRIES = [f"privacy.clip={clip} server.lr={lr}" for clip, lr in ((0.1, 0.03), (0.1, 0.01))]
BASE = Config().override(
    [
        *("clients.sampling=poisson", "clients.lr=1", "server.optimizer=adam", "privacy.clip=0.1"),
        *("train.rounds=200", "train.evaluate_every=10000", "train.threads=1"),
    ]
)
AT_HOME = ("method=fedaws", "privacy.rows=private", "spread.regularizer=moments", "spread.whitening=0.2")
"""`private`; the share of whitening is that of benchmarks/private_rows.py on omniglot."""
NEARLY = 0.01
"""Of precision: what may be lost to noise by what is called nearly free."""


@dataclass(frozen=True)
class Set:
    """A federation, the methods that are tried on it, and how many seeds are tested."""

    people: int
    per_round: int
    classes: int
    methods: tuple[str, ...]
    settings: tuple[str, ...]
    seeds: int
    data: Callable[[tuple[str, ...], bool], FederatedData]
    measure: str = "precision@1"


def omniglot(_: tuple[str, ...], choosing: bool) -> FederatedData:
    """1,623 characters at 14 × 14, one a client: drawers 0 to 14 train, of which 12 to 14 choose, 15 to 19 test."""
    return split("omniglot", choosing)


@cache
def generated(settings: tuple[str, ...], choosing: bool) -> FederatedData:
    """Of seed 0, as the settings of `[data]` say; to choose by, a quarter of the training examples are held out."""
    held_out = ["data.validation=0.25"] if choosing else []
    return load_data(Config().override([*(s for s in settings if s.startswith("data.")), *held_out]))


def shared_out(people: int, seeds: int = 3) -> Set:
    """100 classes, shared out among so many clients of 8 examples each; in a round a tenth of them, at most 2,000."""
    each = people // 100
    data = f"data.name=synthetic data.classes=100 data.clients_per_class={each} data.examples_per_class={10 * each}"
    settings = (*data.split(), "model.hidden=[64]", "model.embedding_dim=32", "clients.examples_per_step=all")
    return Set(people, min(people // 10, 2_000), 100, ("fixed-spread",), settings, seeds, generated)


_OMNIGLOT = ("model.hidden=[64]", "model.embedding_dim=64", "clients.examples_per_step=4", "clients.class_lr=0.1")
SETS = {
    "generated, 1,000": shared_out(1_000),
    "generated, 10,000": shared_out(10_000),
    "generated, 30,000": shared_out(30_000),
    "generated, 100,000": shared_out(100_000),
    "omniglot": Set(1623, 1623, 1623, ("positive-only", "private"), _OMNIGLOT, 1, omniglot, "enrolled"),
}


def run(where: Set, method: str, target: float | None, tried: str, seed: int, choosing: bool) -> dict[str, Any]:
    asked = [] if target is None else [f"privacy.epsilon={target}"]
    size = [] if where.per_round == where.people else [f"clients.per_round={where.per_round}"]
    cfg = BASE.override(
        [
            *(AT_HOME if method == "private" else [f"method={method}"]),
            *(s for s in where.settings if not s.startswith("data.")),
            *size,
            *tried.split(),
            *asked,
            f"seed={seed}",
        ]
    )
    data, began = where.data(where.settings, choosing), cpu()
    measures = {"enrolled": partial(enrolled, data)} if where.measure == "enrolled" else {}
    trained = fedaws.train(data, None, cfg, measures=measures, reporter=Reporter(on_warning=lambda _: None))
    found = {key: trained.metrics[-1][key] for key in ("precision@1", *measures)} | {"seconds": round(cpu() - began, 1)}
    if trained.facts.privacy is not None:
        parameters, facts = sum(p.numel() for p in trained.theta.values()), trained.facts.privacy
        ratio = noise_to_signal(facts.noise, where.per_round, parameters)
        found |= {"epsilon": facts.epsilon, "delta": facts.delta, "noise": facts.noise, "noise_to_signal": ratio}
    return found


def enrolled(data: FederatedData, model: Model, test: TestSet) -> float:
    """Precision@1 where each person's row is the mean embedding of its own training examples: made on its device."""
    assert isinstance(data.x, torch.Tensor)
    assert isinstance(test.y, torch.Tensor)
    z = F.normalize(model.embed(data.x), dim=1)
    rows = F.normalize(z.new_zeros(data.num_classes, z.shape[1]).index_add_(0, data.y, z), dim=1)
    return precision_at(replace(model, W=rows, bias=None).rank(model.embed(test.x), 1), test.y, 1)


def cpu() -> float:
    return time.process_time()


def fill(cell: dict[str, list[Any]], where: Set, method: str, target: float | None) -> Iterator[None]:
    """Run what is missing of a cell; it can be kept after every run."""
    while len(cell["tries"]) < len(TRIES):
        found = run(where, method, target, TRIES[len(cell["tries"])], 0, choosing=True)
        cell["tries"].append(found[where.measure])
        yield
    best = TRIES[max(range(len(TRIES)), key=cell["tries"].__getitem__)]
    while len(cell["seeds"]) < where.seeds:
        found = run(where, method, target, best, len(cell["seeds"]), choosing=False)
        cell["seeds"].append({"settings": best, **found})
        yield


# --- the page ---------------------------------------------------------------------------------------------------------


def page(results: dict[str, Any]) -> str:
    lines = [
        "# Precision against ε",
        "",
        "Made by `python benchmarks/private_curves.py --out DIR` from [private-curves.json](private-curves.json), and",
        "not by hand. Test precision@1 in per cent, of a single run each, or mean ± deviation where there is a ±; δ is",
        "N^−1.1; 200 rounds, clip 0.1, Adam at the server with a step of 0.01 or 0.03, chosen for every cell by",
        "held-out training examples: privacy that ε does not count. `generated`: 100 Gaussian classes shared out among",
        "so many clients of 8 examples, MLP 32-64-32. `omniglot`: a client a character, MLP 196-64-64; precision is by",
        "rows that each client makes of its own training examples under the finished θ, and in brackets by the rows of",
        "the run. `private` is `fedaws` with rows that stay at home, θ and the means of rows under one ε. See",
        "[differential privacy](../privacy.md).",
        "",
        "| set | people | a round | classes | method | ε = 1 | 2 | 4 | 8 | no noise |",
        "|---|---:|---:|---:|---|---:|---:|---:|---:|---:|",
    ]
    noise = ["", "The noise's length over the longest mean change of θ there can be, in the same cells:", ""]
    noise += ["| set | method | ε = 1 | 2 | 4 | 8 |", "|---|---|---:|---:|---:|---:|"]
    for name, found in results["sets"].items():
        for method, curve in found["methods"].items():
            figures = [curve.get(str(target)) for target in TARGETS]
            told = [f"{found[key]:,}" for key in ("people", "per_round", "classes")]
            lines.append(f"| {name} | {' | '.join(told)} | `{method}` | {' | '.join(map(_figure, figures))} |")
            noise.append(f"| {name} | `{method}` | {' | '.join(map(_ratio, figures[:-1]))} |")
    return "\n".join([*lines, *noise, "", *_free(results)]) + "\n"


def _figure(cell: dict[str, list[Any]] | None) -> str:
    seeds = (cell or {}).get("seeds", [])
    if not seeds:
        return "–"
    values = [100 * _measured(seed) for seed in seeds]
    own = f" ({100 * fmean(seed['precision@1'] for seed in seeds):.1f})" if "enrolled" in seeds[0] else ""
    return f"{fmean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "") + own


def _measured(seed: dict[str, Any]) -> float:
    return float(seed.get("enrolled", seed["precision@1"]))


def _ratio(cell: dict[str, list[Any]] | None) -> str:
    seeds = (cell or {}).get("seeds", [])
    return f"{seeds[0]['noise_to_signal']:.2g}" if seeds else "–"


def _free(results: dict[str, Any]) -> list[str]:
    """What ε = 2 costs, by set, and from how many people on it is nearly nothing."""
    lines = ["What ε = 2 costs beside no noise, in points:", ""]
    for name, found in results["sets"].items():
        for method, curve in found["methods"].items():
            cells = [curve.get(str(target), {}).get("seeds") for target in (2.0, None)]
            if all(cells):
                private, bare = (fmean(map(_measured, cell)) for cell in cells)
                cost = f"{100 * (bare - private):.1f}".replace("-", "−")
                free = " (nearly free)" if bare - private <= NEARLY else ""
                lines.append(f"- {name}, `{method}`: {cost}{free}")
    return lines


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=Path, default=Path("runs/private-curves"))
    arguments.add_argument("--sets", default="", help="only those whose names have this text in them")
    arguments.add_argument("--seconds", type=float, default=float("inf"), help="begin no run after so many")
    arguments.add_argument("--results", type=Path, default=Path("docs/results"))
    given = arguments.parse_args()
    torch.set_num_threads(1)
    began = time.monotonic()
    kept: dict[str, Any] = {}
    for name, where in SETS.items():
        facts = {"people": where.people, "per_round": where.per_round, "classes": where.classes}
        kept[name] = {**facts, "methods": {method: {} for method in where.methods}}
        for method, target in product(where.methods, FIRST):
            place = given.out / f"{name}-{method}-{target}.json".replace(", ", "-").replace(",", "")
            cell = json.loads(place.read_text()) if place.exists() else {"tries": [], "seeds": []}
            wanted = given.sets in name and time.monotonic() - began < given.seconds
            for _ in fill(cell, where, method, target) if wanted else ():
                write_text(place, json.dumps(cell) + "\n")
                if time.monotonic() - began > given.seconds:
                    break
            if cell["seeds"]:
                kept[name]["methods"][method][str(target)] = cell
                print(f"{name}, {method}, ε = {target}: {_figure(cell)} %", flush=True)
        generated.cache_clear()  # one set in memory at a time
    results = {"made_with": made_with(), "tries": TRIES, "sets": kept}
    write_text(given.results / "private-curves.json", json.dumps(results, indent=1) + "\n")
    write_text(given.results / "private-curves.md", page(results))


if __name__ == "__main__":
    main()
