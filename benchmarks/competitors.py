"""What an engineer of extreme classification would use today, beside FedAwS: Parabel, Bonsai and a probabilistic tree.

    pip install omikuji napkinxc      # into an environment of their own: nothing here depends on them
    python benchmarks/competitors.py delicious [yso-finna-en] [--runs runs/table3] [--results docs/results]

Each is trained with its own defaults on all labels of the training rows, and on one label of each, which is all that
FedAwS's clients have. Our own figures come from the run folders of `fedaws reproduce table3`. What was measured before
is read from competitors.json and not run again; `--again` runs it again.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedaws
from fedaws import config
from fedaws.data.label_sets import one_label
from fedaws.data.load import load_label_sets
from fedaws.experiments.sleec.measure import measured
from fedaws.files import write_text
from fedaws.sparse import SparseRows

THREADS, TOP = 2, 5
Trained = tuple[tuple[float, float], Callable[[SparseRows], Any], int]
"""Seconds of training and of its computing, rows → the five best labels of each, bytes on disk."""


def write_rows(path: Path, x: SparseRows, labels: SparseRows) -> None:
    """In the XC repository's format."""
    assert x.values is not None
    ids, values, starts = x.indices.tolist(), x.values.tolist(), x.starts.tolist()
    names, begins = labels.indices.tolist(), labels.starts.tolist()
    with path.open("w") as file:
        file.write(f"{len(x)} {x.width} {labels.width}\n")
        for i in range(len(x)):
            pairs = sorted(zip(ids[starts[i] : starts[i + 1]], values[starts[i] : starts[i + 1]], strict=True))
            row = " ".join(f"{f}:{v:.7g}" for f, v in pairs)
            file.write(f"{','.join(map(str, names[begins[i] : begins[i + 1]]))} {row}\n")


def omikuji_model(folder: Path, x: SparseRows, labels: SparseRows, **settings: Any) -> Trained:
    import omikuji  # noqa: PLC0415 - of an environment of its own

    hyper = omikuji.Model.default_hyper_param()
    for key, value in settings.items():
        setattr(hyper, key, value)
    write_rows(folder / "train.txt", x, labels)
    stop = stopwatch()
    model = omikuji.Model.train_on_data(str(folder / "train.txt"), hyper, THREADS)
    seconds = stop()
    model.save(str(folder / "model"))

    def best(rows: SparseRows) -> Any:
        assert rows.values is not None
        ids, values, starts = rows.indices.tolist(), rows.values.tolist(), rows.starts.tolist()
        found = np.full((len(rows), TOP), -1)
        for i in range(len(rows)):
            pairs = list(zip(ids[starts[i] : starts[i + 1]], values[starts[i] : starts[i + 1]], strict=True))
            top = [label for label, _ in model.predict(pairs, top_k=TOP)]
            found[i, : len(top)] = top
        return found

    return seconds, best, size_of(folder / "model")


def parabel(folder: Path, x: SparseRows, labels: SparseRows) -> Trained:
    return omikuji_model(folder, x, labels)


def bonsai(folder: Path, x: SparseRows, labels: SparseRows) -> Trained:
    return omikuji_model(folder, x, labels, cluster_balanced=False, cluster_k=100, cluster_min_size=1, max_depth=3)


def plt(folder: Path, x: SparseRows, labels: SparseRows) -> Trained:
    from napkinxc.models import PLT  # noqa: PLC0415 - of an environment of its own

    model = PLT(str(folder / "model"), threads=THREADS, seed=0)
    stop = stopwatch()
    model.fit(x.to_scipy(), labels.to_scipy())
    seconds = stop()

    def best(rows: SparseRows) -> Any:
        found = np.full((len(rows), TOP), -1)
        for i, top in enumerate(model.predict(rows.to_scipy(), top_k=TOP)):
            found[i, : len(top)] = top
        return found

    return seconds, best, size_of(folder / "model")


MODELS = {"Parabel (omikuji)": parabel, "Bonsai (omikuji)": bonsai, "probabilistic label tree (napkinxc)": plt}


def stopwatch() -> Callable[[], tuple[float, float]]:
    """Seconds since now, and what all threads have computed in them."""
    wall, cpu = time.perf_counter(), time.process_time()
    return lambda: (time.perf_counter() - wall, time.process_time() - cpu)


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def compete(name: str, known: dict[str, Any], save: Callable[[], None]) -> None:
    """Whatever of this set is not known yet."""
    train, test, weights = load_label_sets(config.load(name))
    rows = ((train.labels.counts > 0) & (train.x.counts > 0)).nonzero().ravel()
    x, drawn = train.x.index_select(0, rows), one_label(train.labels, seed=0)[rows]
    one = SparseRows(drawn, None, torch.arange(len(rows) + 1), train.labels.width)
    versions = {"all": train.labels.index_select(0, rows), "one": one}
    for labels, sets in versions.items():
        for model, fit in MODELS.items():
            key = f"{name} | {model} | {labels}"
            if key in known:
                continue
            with tempfile.TemporaryDirectory() as place:
                (seconds, computed), best, size = fit(Path(place), x, sets)
                stop = stopwatch()
                found = best(test.x)
                asked, _ = stop()
            measures = measured(torch.from_numpy(found), test.labels, weights)
            known[key] = entry(name, model, labels, measures, seconds, asked, size)
            known[key]["training_cpu_seconds"] = round(computed, 1)
            print(key, {k: round(100 * v, 1) for k, v in measures.items()}, f"{seconds:.0f} s", flush=True)
            save()


def entry(
    name: str, model: str, labels: str, measures: dict[str, float], seconds: float, asked: float, size: int
) -> dict[str, Any]:
    shown = {k: round(100 * v, 2) for k, v in measures.items() if "@" in k}
    return {
        "data": name,
        "model": model,
        "labels": labels,
        **shown,
        "training_seconds": round(seconds, 1),
        "prediction_seconds": round(asked, 2),
        "bytes": size,
        "load": round(os.getloadavg()[0], 1),
    }


def ours(name: str, runs: Path) -> dict[str, Any]:
    """What `fedaws reproduce table3` has left of this set, seed 0."""
    found = {}
    for folder in sorted((runs / name).glob("*-seed0")):
        method = folder.name.removesuffix("-seed0")
        key = f"{name} | {method} | {'all' if method == 'sleec' else 'one'}"
        if (folder / "oracle.json").exists():
            facts = json.loads((folder / "oracle.json").read_text())["measures"]
            found[key] = entry(
                name, "SLEEC (ours)", "all", facts, facts["seconds"], facts["prediction_seconds"], facts["bytes"]
            )
        elif (folder / "model" / "model.safetensors").exists():
            run = fedaws.load(folder)
            _, test, _ = load_label_sets(run.config)
            stop = stopwatch()
            run.identify(test.x, TOP)
            asked, _ = stop()
            last = run.metrics[-1]
            found[key] = entry(name, f"`{method}`", "one", last, last["seconds"], asked, size_of(folder / "model"))
    return found


COLUMNS = ["precision@1", "precision@3", "precision@5", "psp@1", "psp@3", "psp@5"]


def page(results: dict[str, Any]) -> str:
    made = ", ".join(f"{name} {number}" for name, number in results["versions"].items())
    lines = [
        "# Beside the tools of extreme classification",
        "",
        "Made by `python benchmarks/competitors.py` from [competitors.json](competitors.json), and not by hand.",
        "Test rows with all their labels, percent. Every tool has its own defaults and two threads, SLEEC one learner",
        "and rough tuning where its authors add up fifteen learners or more. Our own methods have their presets, of",
        "which `fedaws` and `softmax` were tuned on held-out training rows, and `fixed` has FedAwS's settings: with a",
        "dimension of its own it has more ([Table 3](table3.md)). *Stale* figures are of code that would come to",
        "others today.",
        "Trained on *one* label of each training row, drawn at random, or on *all*; FedAwS's clients have one. omikuji",
        "predicts row by row from Python. The machine was shared, its load is in the data: times say no more than the",
        "order of size; beside them, where known, what all threads have computed.",
        f"{made}.",
    ]
    for name in dict.fromkeys(e["data"] for e in results["entries"].values()):
        heads = ["model", "labels", *(c.replace("precision", "P").replace("psp", "PSP") for c in COLUMNS)]
        lines += [
            "",
            f"## {name}",
            "",
            _row([*heads, "training", "prediction", "size"]),
            _row(["---"] * 2 + ["---:"] * 9),
        ]
        entries = [e for e in results["entries"].values() if e["data"] == name]
        for e in sorted(entries, key=lambda e: (e["labels"] == "all", -e["precision@1"])):
            figures = [f"{e[c]:.1f}" for c in COLUMNS]
            computed = f" ({e['training_cpu_seconds']:,.0f})" if "training_cpu_seconds" in e else ""
            ends = [
                f"{e['training_seconds']:,.0f} s{computed}",
                f"{e['prediction_seconds']:,.1f} s",
                f"{e['bytes'] / 1e6:,.1f} MB",
            ]
            stale = " (stale)" if e.get("stale") else ""  # of code that would come to another figure today
            lines.append(_row([e["model"] + stale, e["labels"], *figures, *ends]))
    return "\n".join(lines) + "\n"


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "?"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("data", nargs="+")
    arguments.add_argument("--runs", type=Path, default=Path("runs/table3"))
    arguments.add_argument("--results", type=Path, default=Path("docs/results"))
    arguments.add_argument("--again", action="store_true")
    arguments.add_argument("--ours", action="store_true", help="train nothing: only read our own runs anew")
    given = arguments.parse_args()
    path = given.results / "competitors.json"
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"versions": {}, "entries": {}}

    def save() -> None:
        write_text(path, json.dumps(results, indent=1, ensure_ascii=False) + "\n")
        write_text(path.with_suffix(".md"), page(results))

    if not given.ours:
        results["versions"] = {name: _version(name) for name in ("omikuji", "napkinxc", "torch")}
    for name in given.data:
        if given.again:
            results["entries"] = {k: e for k, e in results["entries"].items() if e["data"] != name}
        results["entries"] |= ours(name, given.runs)
        if not given.ours:
            compete(name, results["entries"], save)
        save()


if __name__ == "__main__":
    main()
