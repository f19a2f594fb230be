"""Error rates on people who took no part: docs/results/people.json and .md.

    python benchmarks/strangers.py [--sets voices,faces,characters] [--methods "fedaws;softmax"] [--minutes 8]
        [--out runs/people] [--collect]

For each set and split of its people every method has the same number of tries, drawn from the same seed; a try is
measured on held-out people out of those who train, on each of some folds, never on the split's test people. The try
that is best on average then trains on all of the others with each seed, and is measured once on the test people
(`data.test_strangers`), by cosines and by cosines in the metric of `within`. A cell is a file in `--out`, written
after every run: a killed benchmark goes on where it was, and `--minutes` ends it by itself. `--collect` runs nothing
and writes the page of all cells that are whole.

Voices are $FEDAWS_DATA/audiomnist/audiomnist-logmel.npz (x [6000, 40, 64], speaker, repetition, frames), faces
$FEDAWS_DATA/lfw/lfw48.npz (x [2228, 48, 48], person), characters $FEDAWS_DATA/omniglot/omniglot28.npz (x, y, alphabet,
character, background).
"""

import argparse
import json
import os
import random
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedaws
from fedaws import Config
from fedaws.data.federated import FederatedData
from fedaws.evaluate.comparisons import comparisons
from fedaws.evaluate.error_rates import eer
from fedaws.evaluate.intervals import figures
from fedaws.evaluate.strangers import compared
from fedaws.files import write_text
from fedaws.record.made_with import made_with

FOLDS = 3  # of the people who train; so many parts, of which the first few are held out in turn


@dataclass(frozen=True)
class People:
    """Examples, whose each is, which of them test the closed set, and the people's names."""

    x: np.ndarray  # [N, features]
    y: np.ndarray  # [N]
    tested: np.ndarray  # [N]
    names: tuple[str, ...]
    groups: np.ndarray  # [people] what is held out together: a person alone, or an alphabet
    test_groups: tuple[np.ndarray, ...]  # of each split
    mirrored: np.ndarray  # [N] examples again, mirrored; they only train
    directions: int = 0  # of the most variance that the examples are told by, each of unit variance; 0: as they are


@dataclass(frozen=True)
class Set:
    """A set of people, and how much of it is run."""

    title: str
    load: Callable[[], People]
    base: Config
    seeds: int
    splits: int
    tries: int
    held_out: int  # of the folds
    note: str = ""  # what else was chosen, and on whom


# --- the people -------------------------------------------------------------------------------------------------------


def voices() -> People:
    """Mean and deviation of 40 mel bands over the frames of an utterance, and of their change."""
    stored = np.load(_root() / "audiomnist" / "audiomnist-logmel.npz")
    mel, frames = stored["x"].astype(np.float32) / 255, np.minimum(stored["frames"], stored["x"].shape[2])
    spoken = (np.arange(mel.shape[2]) < frames[:, None]).astype(np.float32)[:, None]
    steps = np.diff(mel, axis=2) * spoken[:, :, 1:]
    mean = (mel * spoken).sum(2) / spoken.sum(2)
    deviation = np.sqrt((((mel - mean[:, :, None]) * spoken) ** 2).sum(2) / spoken.sum(2))
    change = np.sqrt((steps**2).sum(2) / spoken[:, :, 1:].sum(2))
    x, y = np.concatenate([mean, deviation, change], axis=1), stored["speaker"].astype(np.int64)
    people = np.random.default_rng(0).permutation(60)
    return _shuffled(x, y, stored["repetition"] >= 8, np.arange(60), tuple(np.split(people, 3)))


def faces() -> People:
    """Half the pixels each way, without a picture's own brightness and contrast, and once more mirrored to train."""
    stored = np.load(_root() / "lfw" / "lfw48.npz")
    x = stored["x"].astype(np.float32).reshape(-1, 24, 2, 24, 2).mean((2, 4)).reshape(-1, 576)
    x = (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True) / 4
    y = np.unique(stored["person"], return_inverse=True)[1].astype(np.int64)
    people = np.random.default_rng(0).permutation(y.max() + 1)
    nth = np.zeros(len(y), np.int64)
    for person in people:
        nth[y == person] = np.arange((y == person).sum())
    first = _shuffled(x, y, nth < 2, np.arange(len(people)), tuple(np.array_split(people, 3)))
    train = ~first.tested
    again = first.x[train].reshape(-1, 24, 24)[:, :, ::-1].reshape(-1, 576)
    return replace(
        first,
        x=np.concatenate([first.x, again]),
        y=np.concatenate([first.y, first.y[train]]),
        tested=np.pad(first.tested, (0, len(again))),
        mirrored=np.pad(first.mirrored, (0, len(again)), constant_values=True),
        directions=100,
    )


def characters() -> People:
    """14 × 14 pixels; strangers are whole alphabets, those of the test out of the evaluation part."""
    stored = np.load(_root() / "omniglot" / "omniglot28.npz")
    x = stored["x"].astype(np.float32).reshape(-1, 14, 2, 14, 2).mean((2, 4)).reshape(-1, 196) / 255
    groups = np.unique(stored["alphabet"], return_inverse=True)[1]
    others = np.random.default_rng(0).permutation(np.unique(groups[~stored["background"]]))
    seen = np.unique(groups[stored["background"]])
    used = np.isin(groups, [*seen, *others[:18]])
    number = np.where(used, np.cumsum(used) - 1, -1)
    rows = number[stored["y"]] >= 0
    y = number[stored["y"]][rows].astype(np.int64)
    names = tuple(f"{a}/{c}" for a, c in zip(stored["alphabet"][used], stored["character"][used], strict=True))
    thirds = tuple(np.split(others[:18], 3))
    return _shuffled(x[rows], y, stored["drawer"][rows] >= 16, groups[used], thirds, names)


def _root() -> Path:
    return Path(os.environ["FEDAWS_DATA"])


def _shuffled(
    x: np.ndarray, y: np.ndarray, tested: np.ndarray, groups: np.ndarray, test: tuple[Any, ...], names: Any = None
) -> People:
    """In another order, once: the first examples of a person, who is enrolled by them, are of all kinds."""
    order = np.random.default_rng(1).permutation(len(y))
    names = names or tuple(str(number) for number in range(len(groups)))
    return People(x[order].astype(np.float32), y[order], tested[order], names, groups, test, np.zeros(len(y), bool))


# --- what is tried ----------------------------------------------------------------------------------------------------


def _base(rounds: int, **more: Any) -> Config:
    return Config().with_(
        model={"hidden": [256], "embedding_dim": 64},
        clients={"lr": 1.0, "class_lr": 0.1, "examples_per_step": 8, **more},
        server={"optimizer": "muon", "lr": 0.02, "momentum": 0.9},
        train={"rounds": rounds, "evaluate_every": 10_000, "threads": 1},
    )


VOICES = (
    "The features, taking their mean away and the space of the tries were chosen on people held out of the first "
    "split's forty, some of whom are strangers of the other two splits; the first split's strangers had no part in it. "
    "The second fold, and regularisers among the tries of `fedaws`, came after a table with one fold and eq. (6) alone."
)
SHORT = "Small encoders and short runs, so that all of it takes minutes of one core: far from the best there can be."
FACES = (
    "24 × 24 pixels told by the 100 directions of most variance among those who train, who also have every picture "
    "mirrored. This and the rounds were chosen on people held out of the first split, by eight tries of `fedaws`, five "
    "of `softmax`, three of `positive-only` and one of each other (pixels, a small convolutional network, directions, "
    "mirrored or not), so if anything for `fedaws`. "
    "That `moments` is worth a try was known from private rows on these strangers, in a table with one fold; "
    "and regularisers were drawn at random at first, until strangers of that draw had been seen. "
    f"{SHORT}"
)
SETS = {
    "voices": Set("AudioMNIST, 40 speakers trained, 20 strangers", voices, _base(150), 3, 3, 4, 2, VOICES),
    "faces": Set(
        "LFW crops, 137 people trained, 68 strangers", faces, _base(75, examples_per_step=4), 3, 3, 4, 2, FACES
    ),
    "characters": Set(
        "Omniglot, 964 characters trained, strangers of six unseen alphabets",
        characters,
        _base(100, per_round=200, examples_per_step=4),
        3,
        3,
        3,
        1,
        SHORT,
    ),
}
SHARED: dict[str, tuple[Any, ...]] = {
    "model.embedding_dim": (64, 128),
    "server.lr": (0.01, 0.02, 0.04),
    "train.rounds": (0.67, 1.0, 1.33),  # times the set's
}
METHODS: dict[str, tuple[list[str], dict[str, tuple[Any, ...]]]] = {
    "fedaws": (
        [],
        {
            "spread.margin": (0.5, 0.8, 1.0),
            "spread.whitening": (0.2, 0.5, 1.0),
            "clients.class_lr": (0.03, 0.1, 0.3),
        },
    ),
    "softmax": (["method=softmax"], {"clients.scale": (4.0, 8.0, 16.0), "clients.lr": (0.3, 1.0, 3.0)}),
    "fixed": (["method=fixed"], {"clients.margin": (0.7, 0.9, 1.0)}),
    "positive-only": (
        ["method=positive-only"],
        {"clients.class_lr": (0.003, 0.01, 0.03), "clients.margin": (0.7, 0.9, 1.0)},
    ),
    "feduv": (["method=feduv", "model.embedding_dim=127"], {"model.embedding_dim": (127, 255)}),
    "private rows": (
        ["privacy.rows=private", "spread.regularizer=moments"],
        {"spread.whitening": (0.2, 0.5, 1.0), "clients.class_lr": (0.03, 0.1, 0.3)},
    ),
}
REGULARIZERS = {"margin": "spread.margin", "nearest": None, "moments": "spread.whitening"}  # of fedaws, and their own


def drawn(method: str, number: int) -> dict[str, Any]:
    """The settings of a try; the first are the set's own. What methods share they draw alike.

    >>> drawn("fedaws", 3)["server.lr"] == drawn("fixed", 3)["server.lr"], drawn("softmax", 0)
    (True, {})
    """
    if number == 0:
        return {}
    space = SHARED | METHODS[method][1]
    found = {key: random.Random(f"{key} {number}").choice(values) for key, values in space.items()}
    if method != "fedaws":
        return found
    regularizer = list(REGULARIZERS)[number % len(REGULARIZERS)]  # in turns: few tries have all of them
    idle = set(REGULARIZERS.values()) - {REGULARIZERS[regularizer]}
    return {key: value for key, value in found.items() if key not in idle} | {"spread.regularizer": regularizer}


def config(of: Set, method: str, number: int, seed: int) -> Config:
    settings = drawn(method, number)
    share = settings.pop("train.rounds", 1.0)
    settings |= {"train.rounds": round(share * of.base.train.rounds), "seed": seed}
    return of.base.override(METHODS[method][0]).override(settings)


@cache
def people_of(name: str) -> People:
    return SETS[name].load()


@cache
def federation(name: str, split: int, fold: int | None) -> FederatedData:
    """Those who train with clients, the split's test people without, and with a fold also its people."""
    people = people_of(name)
    test = np.isin(people.groups, people.test_groups[split])
    beyond = np.isin(people.groups, np.concatenate(people.test_groups)) & (name == "characters")
    rest = np.random.default_rng(split).permutation(np.setdiff1d(people.groups, people.groups[test | beyond]))
    chosen = np.isin(people.groups, [] if fold is None else rest[fold::FOLDS])
    away = (test | chosen)[people.y]
    there = ~(beyond & ~test)[people.y] & ~(people.mirrored & away)  # alphabets of other splits are neither
    x = _told_by_sums(people, there & ~away & ~people.tested)
    parts = {"test_strangers": np.flatnonzero(test), "strangers": np.flatnonzero(chosen)}
    apart: dict[str, Any] = {
        part: [people.names[person] for person in numbers] for part, numbers in parts.items() if len(numbers)
    }
    kept = np.unique(people.y[there])
    number = np.searchsorted(kept, people.y)
    train, tested = there & ~people.tested, there & people.tested
    return fedaws.from_arrays(
        x[train],
        number[train],
        x[tested],
        number[tested],
        class_names=[people.names[person] for person in kept],
        **apart,
    )


def _told_by_sums(people: People, trained: np.ndarray) -> np.ndarray:
    """Examples without the mean of those who train, in their directions of most variance: sums over clients tell it."""
    x = people.x - people.x[trained].mean(0)
    if not people.directions:
        return x
    variance, directions = np.linalg.eigh(x[trained].T @ x[trained] / trained.sum())
    most = slice(-people.directions, None)
    return (x @ (directions[:, most] / np.sqrt(variance[most])) / 4).astype(np.float32)


# --- running ----------------------------------------------------------------------------------------------------------


def tried(name: str, split: int, method: str, number: int, fold: int) -> float:
    """The EER of a try on a fold of people held out of those who train."""
    run = fedaws.train(federation(name, split, fold), None, config(SETS[name], method, number, seed=0))
    return float(run.metrics[-1]["strangers_eer"])


def within(run: fedaws.Run, data: FederatedData) -> np.ndarray:
    """Σ^−½ [d, d], with Σ how embeddings of a person who trained differ from their mean: a sum over clients."""
    z, y = run.embed(data.x).double(), data.y
    counts = torch.bincount(y).double()
    means = torch.zeros(len(counts), z.shape[1], dtype=z.dtype).index_add_(0, y, z) / counts.clamp_min(1)[:, None]
    apart = z - means[y]
    covariance = apart.T @ apart / len(z)
    mean = covariance.trace() / len(covariance)  # one mean eigenvalue more in every direction
    values, vectors = torch.linalg.eigh(covariance + mean * torch.eye(len(covariance), dtype=z.dtype))
    metric: np.ndarray = ((vectors * values.rsqrt()) @ vectors.T).numpy()
    return metric


def tested(name: str, split: int, method: str, number: int, seed: int) -> dict[str, Any]:
    """A run on all who train, measured on the test people; with its interval over people for the first seed."""
    began = time.process_time()
    data = federation(name, split, None)
    run = fedaws.train(data, None, config(SETS[name], method, number, seed))
    last = run.metrics[-1]
    found: dict[str, Any] = {key: last.get(key) for key in ("precision@1", "test_strangers_eer", "test_strangers_frr")}
    assert data.test_strangers is not None
    z = run.embed(data.test_strangers.x).double().numpy() @ within(run, data)
    told = comparisons(z, data.test_strangers.people.numpy(), enroll=5)
    found["within_eer"] = eer(told.targets, told.nontargets)
    if seed == 0:
        interval = figures(compared(run.model, data.test_strangers, 5), {"eer": eer}, draws=100)["eer"]
        found |= {"low": interval.low, "high": interval.high}
    return found | {"try": number, "seconds": round(time.process_time() - began, 2)}


def fill(cell: dict[str, Any], name: str, split: int, method: str) -> Iterator[None]:
    """Run what is missing of a cell; it can be kept after every run."""
    of = SETS[name]
    for number in range(of.tries):
        if number == len(cell["tries"]):
            cell["tries"].append([])
        while len(cell["tries"][number]) < of.held_out:
            cell["tries"][number].append(tried(name, split, method, number, len(cell["tries"][number])))
            yield
    means = [statistics.fmean(folds[: of.held_out]) for folds in cell["tries"][: of.tries]]
    best = means.index(min(means))
    cell["seeds"] = [seed for seed in cell["seeds"] if seed["try"] == best]  # more folds may choose another
    while len(cell["seeds"]) < of.seeds:
        cell["seeds"].append(tested(name, split, method, best, len(cell["seeds"])))
        yield


def collected(out: Path) -> dict[str, Any]:
    """All cells that are whole: set → split → method."""
    sets: dict[str, Any] = {}
    for name, of in SETS.items():
        for split in range(of.splits):
            cells = {method: _read(_place(out, name, split, method)) for method in METHODS}
            whole = {method: cell for method, cell in cells.items() if len(cell["seeds"]) == of.seeds}
            if whole:
                sets.setdefault(name, {})[str(split)] = whole
    return sets


def _place(out: Path, name: str, split: int, method: str) -> Path:
    return out / f"{name}-{split}-{method.replace(' ', '-')}.json"


def _read(place: Path) -> dict[str, Any]:
    cell: dict[str, Any] = json.loads(place.read_text()) if place.exists() else {"tries": [], "seeds": []}
    return cell


# --- the page ---------------------------------------------------------------------------------------------------------


def page(results: dict[str, Any]) -> str:
    """Markdown of the results."""
    lines = [
        "# People who took no part",
        "",
        "Made by `python benchmarks/strangers.py`. EER in percent on *strangers*: people without a client, each",
        "enrolled by the mean embedding of five examples, all other examples compared with everybody. For every split",
        "of the people every method has tries, drawn alike, each measured on folds of people held out of those who",
        "train (*tries × folds*); the try that is best on average then trains on all of these, and the strangers are",
        "measured once. Tries of `fedaws` take eq. (6), eq. (7) and `moments` in turns. An MLP on features of fixed",
        "size, one client a person; see [strangers](../people.md#strangers).",
        "",
        "*In the metric of those who train* embeddings are multiplied by Σ^−½ before they are compared, where Σ is how",
        "the embeddings of a person who trained vary around their mean, plus its mean eigenvalue in every direction",
        "(within-class covariance normalisation). Sums over clients tell it. A dash: not measured for all runs.",
    ]
    for name, of in SETS.items():
        lines += ["", f"## {name.capitalize()}", "", *_section(of, results["sets"].get(name, {}))]
    return "\n".join(lines) + "\n"


def _section(of: Set, splits: dict[str, Any]) -> list[str]:
    if not splits:
        return [f"{of.title}: not finished."]
    runs = f"{_counted(len(splits), 'split')} of the people, {_counted(of.seeds, 'seed')} each"
    heads = " | ".join(f"split {int(split) + 1} (95 % over people)" for split in splits)
    lines = [
        f"{of.title}; {runs}. {_spread_words(of, splits)}",
        *([of.note] if of.note else []),
        *_unfinished(of, splits),
        "",
        f"| method | EER on strangers | {heads} | in the metric of those who train | FRR at FAR 1 % | "
        "EER held out, best try | tries × folds | precision@1, trained |",
        f"|---|---:|{'---:|' * len(splits)}---:|---:|---:|---:|---:|",
    ]
    for method in METHODS:
        cells = [each.get(method) for each in splits.values()]
        label = f"`{method}`" if method != "private rows" else "private rows, `moments`"
        lines.append(
            f"| {label} | {_overall(cells)[0]} | {' | '.join([*map(_of_split, cells), *_overall(cells)[1:]])} |"
        )
    pairs = [(each["fedaws"], each["softmax"]) for each in splits.values() if {"fedaws", "softmax"} <= each.keys()]
    gaps = [
        100 * (ours["test_strangers_eer"] - theirs["test_strangers_eer"])
        for two in pairs
        for ours, theirs in zip(*(cell["seeds"] for cell in two), strict=True)
    ]
    where = "" if len(pairs) == len(splits) else f", on {_counted(len(pairs), 'split')}"
    told = f"`fedaws` less `softmax`, run by run{where}: {_with_spread(gaps)} points." if gaps else ""
    return [*lines, "", told.replace("-", "−")] if told else lines


def _unfinished(of: Set, splits: dict[str, Any]) -> list[str]:
    left = of.splits * len(METHODS) - sum(map(len, splits.values()))
    cells = f"{left} of {of.splits * len(METHODS)} cells, each a method on one of {_counted(of.splits, 'split')}"
    return [f"**Not finished**: {cells}; a method's figures over all are of the splits that are shown."] if left else []


def _of_split(cell: dict[str, Any] | None) -> str:
    if cell is None:
        return "not finished"
    ends = " … ".join(f"{100 * cell['seeds'][0][end]:.1f}" for end in ("low", "high"))
    return f"{_mean([cell], 'test_strangers_eer'):.1f} ({ends})"


def _overall(cells: list[dict[str, Any] | None]) -> list[str]:
    """Figures over all splits; none where a split is missing, as which people it has decides much."""
    there = [cell for cell in cells if cell is not None]
    if len(there) < len(cells):
        return ["–"] * 6
    values = [100 * seed["test_strangers_eer"] for cell in there for seed in cell["seeds"]]
    metric = [100 * seed["within_eer"] for cell in there for seed in cell["seeds"] if "within_eer" in seed]
    told = _with_spread(metric) if len(metric) == len(values) else "–"
    frr, precision = (f"{_mean(there, key):.1f}" for key in ("test_strangers_frr", "precision@1"))
    folds = min(len(each) for cell in there for each in cell["tries"])
    best = statistics.fmean(min(statistics.fmean(each[:folds]) for each in cell["tries"]) for cell in there)
    return [_with_spread(values), told, frr, f"{100 * best:.1f}", f"{len(there[0]['tries'])} × {folds}", precision]


def _spread_words(of: Set, splits: dict[str, Any]) -> str:
    if len(splits) * of.seeds == 1:
        return "Single runs."
    return "± is the deviation over all runs; the interval is that of the first seed."


def _mean(cells: list[dict[str, Any]], key: str) -> float:
    return 100 * statistics.fmean(seed[key] for cell in cells for seed in cell["seeds"])


def _with_spread(values: list[float]) -> str:
    mean = f"{statistics.fmean(values):.1f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.1f}"


def _counted(count: int, one: str, many: str = "") -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--sets", default=",".join(SETS))
    arguments.add_argument("--methods", default=";".join(METHODS), help="separated by ;")
    arguments.add_argument("--minutes", type=float, default=float("inf"), help="end after the run that passes them")
    arguments.add_argument("--out", type=Path, default=Path("runs/people"))
    arguments.add_argument("--results", type=Path, default=Path("docs/results"))
    arguments.add_argument("--collect", action="store_true", help="only write the page of what is there")
    given = arguments.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "spread.margin|classes have collapsed|this run sees")
    if given.collect:
        results = {"sets": collected(given.out)}
        write_text(given.results / "people.json", json.dumps(results, indent=1) + "\n")
        write_text(given.results / "people.md", page(results))
        return
    given.out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    for split in range(max(of.splits for of in SETS.values())):  # a split of every set before the next one
        for name in [name for name in given.sets.split(",") if split < SETS[name].splits]:
            for method in given.methods.split(";"):
                place = _place(given.out, name, split, method)
                cell = _read(place)
                cell.setdefault("made_with", made_with())
                for _ in fill(cell, name, split, method):
                    write_text(place, json.dumps(cell) + "\n")
                    if time.monotonic() - began > 60 * given.minutes:
                        return
                print(name, split, method, cell["tries"], cell["seeds"], flush=True)


if __name__ == "__main__":
    main()
