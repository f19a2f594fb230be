"""Equal care: every method has as many tries, on training rows that were held out, and every try is kept.

A search has three parts, the same for each method: so many tries of one seed (first the preset as it is, then what a
seeded sampler of Optuna suggests from the tries before); the best four with two seeds more, each with other rows held
out; and the winner with twice the rounds, again and again, until that stops paying. The test rows are not looked at,
and of rows with sets of labels only the one label that a client would know. What was tried stands in a file, a line
each, and is not run again: a search that was stopped goes on by the same command, and comes to the same tries.

A grid has no parts: every combination of the values that are given, with every seed, and nothing else changed.
"""

import hashlib
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from fedaws.config import SPARSE, Config, Section, typed
from fedaws.core.methods import method_of
from fedaws.errors import FedawsError, MissingData
from fedaws.files import append_line, checked, parse_json, read_text
from fedaws.record.made_with import made_with
from fedaws.training.session import Reporter
from fedaws.training.train import train

FINALISTS = 4
SEEDS = 3
DOUBLINGS = 4
HELD_OUT = 0.2
KEPT = ("precision@1", "precision@3", "precision@5", "max_cosine", "seconds")
MOST_BYTES = 100_000_000

Choice = dict[str, str]
"""What is varied → the settings that were chosen for it, as typed after -s; an empty text is the preset's own."""
Space = dict[str, list[str]]
"""What is varied → the choices, the preset's own first."""


class Try(Section):
    """A line of the file: one run."""

    settings: tuple[str, ...]
    seed: int
    rounds: int
    measures: dict[str, float]  # none where the run was refused or diverged
    commit: str = ""
    error: str = ""
    base: str = ""  # a digest of what was not varied; older lines do not have it


@dataclass
class Tries:
    """The tries of one method, in their file."""

    path: Path
    known: dict[tuple[str, tuple[str, ...], int], Try] = field(default_factory=dict)

    def __post_init__(self) -> None:
        lines = read_text(self.path, MOST_BYTES).splitlines() if self.path.exists() else []
        for number, line in enumerate(lines, 1):
            if not line.endswith("}"):  # a crash has cut it short: the try is run again
                continue
            where = f"{self.path}, line {number}"
            one = checked(Try, parse_json(line, where), where)
            self.known[one.base, one.settings, one.seed] = one

    def of(self, cfg: Config, settings: Sequence[str], seed: int, reporter: Callable[[str], Reporter]) -> Try:
        """The try with these settings and this seed: the one there is, or else it is run and kept."""
        varied = (tuple(settings), seed)
        base = _digest(cfg)
        kept = self.known.get((base, *varied)) or self.known.get(("", *varied))
        if kept is None:
            kept = self.known[base, *varied] = _run(cfg, settings, seed, reporter).model_copy(update={"base": base})
            self.path.parent.mkdir(parents=True, exist_ok=True)
            append_line(self.path, kept.model_dump_json())
        return kept

    def count(self, cfg: Config) -> int:
        """How many tries of this configuration there are."""
        return sum(base in (_digest(cfg), "") for base, _, _ in self.known)


def _digest(cfg: Config) -> str:
    return hashlib.sha256(cfg.model_dump_json(exclude_defaults=True).encode()).hexdigest()[:16]


# --- what is varied -------------------------------------------------------------------------------------------------


def space_of(cfg: Config, vary: Mapping[str, Sequence[str]] | None = None) -> Space:
    """What is varied for the method of a configuration: its dimension, step sizes and own settings, and what is given.

    >>> space_of(Config(method="fixed"))["clients.margin"]
    ['', 'clients.margin=0.7', 'clients.margin=1.0']
    """
    method = method_of(cfg)
    sparse = cfg.model.name == "bag"
    space: Space = {"model.embedding_dim": _each("model.embedding_dim", [2**n for n in range(4, 11)])}
    if sparse:
        space["server.table_lr"] = _around("server.table_lr", cfg.server.table_lr or cfg.server.lr)
    if cfg.model.hidden or not sparse:
        space["server.lr"] = _around("server.lr", cfg.server.lr)
    if method.trains_own_row:
        space["clients.class_lr"] = _around("clients.class_lr", cfg.class_lr)
    if method.rows == "all":
        space["clients.scale"] = _each("clients.scale", [2.0, 4.0, 8.0, 16.0, 32.0])
        if sparse and not cfg.model.hidden:  # the rows alone have the server's optimiser
            rates = {"sgd": (1.0, 10.0, 100.0), "adagrad": (0.03, 0.1, 0.3), "adam": (0.001, 0.01)}
            space["server.optimizer"] = [
                f"server.optimizer={name} server.lr={lr}" for name, lrs in rates.items() for lr in lrs
            ]
    else:
        space["clients.margin"] = _each("clients.margin", [0.7, 0.9, 1.0])
    if method.spread:
        space["spread.weight"] = _each("spread.weight", [0.001, 0.01, 0.1, 1.0, 10.0])
        space["spread.regularizer"] = list(_regularizers(cfg))
    space |= {key: [f"{key}={value}" for value in values] for key, values in (vary or {}).items()}
    # The preset's own is the empty text, and no other.
    return {key: ["", *(c for c in choices if cfg.override(c.split()) != cfg)] for key, choices in space.items()}


def _regularizers(cfg: Config) -> Iterator[str]:
    for name in ("nearest", "margin") if cfg.data.name in SPARSE else ("nearest",):
        for k in (10, 100):
            for even in ("false", "true"):
                yield f"spread.regularizer={name} spread.neighbors={k} spread.center={even} spread.whiten={even}"
    plain = "spread.neighbors=auto spread.center=false spread.whiten=false"
    yield f"spread.regularizer=margin {plain} spread.candidates=all spread.remember=false"
    yield f"spread.regularizer=moments {plain}"


def _each(key: str, values: Sequence[float]) -> list[str]:
    return [f"{key}={typed(value)}" for value in values]


def _around(key: str, value: float) -> list[str]:
    return _each(key, [float(f"{factor * value:.2g}") for factor in (0.1, 0.3, 3.0, 10.0)])


# --- a grid ---------------------------------------------------------------------------------------------------------


def grid(
    cfg: Config,
    choices: Sequence[Sequence[str]],
    seeds: Sequence[int],
    path: Path,
    measure: str,
    reporter: Callable[[str], Reporter] = lambda _: Reporter(),
) -> list[dict[str, Any]]:
    """Each of these choices of settings with each seed, on training rows held out; the results as data, in order."""
    base, stored = with_rows_held_out(cfg), Tries(path)
    results = []
    for settings in choices:
        tries = [stored.of(base, settings, seed, reporter) for seed in seeds]
        values = [one.measures.get(measure) for one in tries]  # none where it was refused or diverged
        results.append({"settings": list(settings), "values": values, "errors": [one.error for one in tries]})
    return results


def combinations(only: Mapping[str, Sequence[str]]) -> list[tuple[str, ...]]:
    """Every choice of a value for each key, as typed after -s.

    >>> combinations({"seed": ["1", "2"], "train.rounds": ["5"]})
    [('seed=1', 'train.rounds=5'), ('seed=2', 'train.rounds=5')]
    """
    return list(product(*([f"{key}={value}" for value in values] for key, values in only.items())))


def with_rows_held_out(cfg: Config) -> Config:
    """The configuration tested on a part of its training rows, a fifth unless it says how many."""
    base = cfg.override([f"data.validation={cfg.data.validation or HELD_OUT}"])
    return base.override(["data.held_out_labels=one"]) if cfg.data.name in SPARSE else base


# --- the search -----------------------------------------------------------------------------------------------------


class Cost(NamedTuple):
    """What a search takes, at least and at most."""

    runs: tuple[int, int]
    times: tuple[int, int]  # the time of the first run


def cost_of(tries: int) -> Cost:
    """What a search of so many tries takes: twice the rounds are tried once at least, and pay four times at most.

    >>> cost_of(30)  # 30 and 4 · 2 seeds more; then 3 seeds of 2, or of 2, 4, 8 and 16 times the rounds
    Cost(runs=(41, 50), times=(44, 128))
    """
    runs = tries + min(FINALISTS, tries) * (SEEDS - 1)
    lengths = [2**n for n in range(1, DOUBLINGS + 1)]
    return Cost((runs + SEEDS, runs + SEEDS * DOUBLINGS), (runs + SEEDS * lengths[0], runs + SEEDS * sum(lengths)))


def tune(
    cfg: Config,
    tries: int,
    path: Path,
    measure: str,
    vary: Mapping[str, Sequence[str]] | None = None,
    reporter: Callable[[str], Reporter] = lambda _: Reporter(),
) -> dict[str, Any]:
    """Search the settings of a configuration's method; the result as data.

    `path` is the file of the tries; `measure` is what is to be large; `vary` adds settings to what is varied.
    """
    base = with_rows_held_out(cfg)
    space = space_of(base, vary)
    stored = Tries(path)

    def value(choice: Choice, seed: int, rounds: int | None = None) -> float:
        settings = [*" ".join(choice.values()).split(), *([] if rounds is None else [f"train.rounds={rounds}"])]
        return stored.of(base, settings, seed, reporter).measures.get(measure, 0.0)

    scores: list[tuple[Choice, float]] = []
    for number in range(tries):
        choice = dict.fromkeys(space, "") if number == 0 else _ask(space, scores, number)
        scores.append((choice, value(choice, 0)))
    ranked = sorted(scores, key=lambda score: -score[1])
    finalists = [(choice, [value(choice, seed) for seed in range(SEEDS)]) for choice, _ in ranked[:FINALISTS]]
    best, values = max(finalists, key=lambda finalist: statistics.fmean(finalist[1]))
    rounds = base.override(" ".join(best.values()).split()).train.rounds
    lengths = [{"rounds": rounds, "values": values}]
    for _ in range(DOUBLINGS):
        longer = [value(best, seed, 2 * rounds) for seed in range(SEEDS)]
        lengths.append({"rounds": 2 * rounds, "values": longer})
        if not _pays(values, longer):
            break
        rounds *= 2
        values = longer
    return {
        "method": cfg.method,
        "measure": measure,
        "held_out": base.data.validation,
        "rounds": rounds,
        "settings": [*" ".join(best.values()).split(), f"train.rounds={rounds}"],
        "values": values,
        "tries": tries,
        "runs": stored.count(base),
        "ten_best": [score for _, score in ranked[:10]],
        "lengths": lengths,
        "space": {key: len(choices) for key, choices in space.items()},
    }


def _pays(values: Sequence[float], longer: Sequence[float]) -> bool:
    """Whether more rounds are better by more than the standard error of the difference, seed by seed.

    >>> _pays([0.50, 0.52, 0.51], [0.52, 0.53, 0.54]), _pays([0.50, 0.52, 0.51], [0.54, 0.50, 0.51])
    (True, False)
    """
    gains = [b - a for a, b in zip(values, longer, strict=True)]
    return statistics.fmean(gains) > statistics.stdev(gains) / math.sqrt(len(gains))


def _ask(space: Space, scores: Sequence[tuple[Choice, float]], number: int) -> Choice:
    """What to try next, from what was tried before and the number of the try alone; nothing twice if there is more."""
    import optuna  # noqa: PLC0415 - nobody else need have it

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    kinds: dict[str, Any] = {key: optuna.distributions.CategoricalDistribution(c) for key, c in space.items()}
    before = [choice for choice, _ in scores]
    suggested: Choice = {}
    for attempt in range(20):
        seed = 1000 * attempt + number
        sampler: Any = optuna.samplers.TPESampler(seed=seed, n_startup_trials=8)
        if attempt:
            sampler = optuna.samplers.RandomSampler(seed)
        study = optuna.create_study(direction="maximize", sampler=sampler)
        for choice, value in scores:
            study.add_trial(optuna.trial.create_trial(params=choice, distributions=kinds, value=value))
        suggested = dict(study.ask(kinds).params)
        if suggested not in before:
            break
    return suggested


def _run(cfg: Config, settings: Sequence[str], seed: int, reporter: Callable[[str], Reporter]) -> Try:
    cfg = cfg.override([*settings, f"seed={seed}"])
    rounds = cfg.train.rounds
    cfg = cfg.override([f"train.evaluate_every={rounds}", f"train.checkpoint_every={rounds}"])
    about = Try(settings=tuple(settings), seed=seed, rounds=rounds, measures={}, commit=made_with().get("commit", ""))
    try:
        last = train(config=cfg, reporter=reporter(f"{cfg.method} {' '.join(settings)}, seed {seed}")).metrics[-1]
    except MissingData:
        raise
    except FedawsError as error:  # refused or diverged: a try like others, and no good
        return about.model_copy(update={"error": str(error)})
    return about.model_copy(update={"measures": {name: round(last[name], 5) for name in KEPT if name in last}})


# --- the page -------------------------------------------------------------------------------------------------------


def tuning_page(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Of every preset and method the best found, the number of tries, and the spread of the ten best; Markdown."""
    lines = [
        "# Equal care",
        "",
        "Made by `fedaws tune` from the tries, and not by hand. Percent on training rows held out; of rows with sets",
        "of labels the one label that a client would know counts, so that these figures are far below those of test",
        "rows. Every method has the same tries, of one seed; the best four have three seeds; then the winner has",
        "twice the rounds until it stops paying.",
    ]
    for preset, methods in results.items():
        lines += [
            "",
            f"## {preset}",
            "",
            "| method | tries | runs | measure | best, three seeds | ten best tries, one seed | rounds | settings |",
            "|---|---:|---:|---|---:|---:|---|---|",
        ]
        lines += [_line(one) for one in methods.values()]
    return "\n".join(lines) + "\n"


def _line(one: Mapping[str, Any]) -> str:
    ten = [100 * score for score in one["ten_best"]]
    mean = 100 * statistics.fmean(one["values"])
    spread = 100 * statistics.stdev(one["values"])
    lengths = ", ".join(f"{e['rounds']:,}: {100 * statistics.fmean(e['values']):.1f}" for e in one["lengths"])
    cells = [
        f"`{one['method']}`",
        str(one["tries"]),
        str(one["runs"]),
        one["measure"].replace("precision", "P"),
        f"{mean:.1f} ± {spread:.1f}",
        f"{min(ten):.1f} to {max(ten):.1f}",
        lengths,
        f"`{' '.join(one['settings'])}`",
    ]
    return f"| {' | '.join(cells)} |"
