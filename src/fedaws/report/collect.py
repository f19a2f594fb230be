"""What run folders hold: the runs of a report, their groups, and the tensors of those shown class by class."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BaseModel, Field, model_validator
from torch import Tensor

from fedaws.config import Config, typed
from fedaws.core.methods import method_names, method_of, role_of
from fedaws.errors import FedawsError
from fedaws.record.files import read_tensors
from fedaws.record.folder import PARTICIPANTS, PEOPLE, Facts, RunFolder
from fedaws.record.journal import differences
from fedaws.record.made_with import MADE_WITH
from fedaws.report.reader import attempt, check, read_lines, read_object
from fedaws.tensor_files import tensor_sizes

MOST_RUNS = 64
_MOST_LETTERS = 60  # of a name that a file gives

Row = dict[str, float]
"""A line of metrics.jsonl, its finite numbers only; "round" is a whole one."""

Count = Annotated[int, Field(ge=0, le=2**53)]


class Pair(BaseModel):
    """Examples of one class that are taken for another."""

    true: Count
    taken: Count
    count: Count
    examples: list[Count] = Field(default=[], max_length=16)
    images: list[str] = Field(default=[], max_length=16)  # PNG files in base64


class Details(BaseModel):
    """details.json, as `fedaws.evaluate.per_class` makes it."""

    round: Count
    examples: Annotated[Count, Field(ge=1)]
    test_examples: Count
    label_sets: bool
    best_of: Count
    classes_tested: Count
    histogram: list[Count] = Field(min_length=1, max_length=100)
    classes: list[Count] = Field(max_length=10_000)
    right: list[Count]
    count: list[Count]
    errors: Count
    pairs: list[Pair] = Field(max_length=100)
    confusion: list[list[Count]] | None = Field(default=None, max_length=200)

    @model_validator(mode="after")
    def _shapes(self) -> "Details":
        if not len(self.classes) == len(self.right) == len(self.count):
            raise ValueError("its lists differ in length")
        if self.confusion and any(len(row) != len(self.confusion) for row in self.confusion):
            raise ValueError("its confusion matrix is not square")
        return self


Rate = Annotated[float, Field(ge=0, le=1)]
Score = Annotated[float, Field(ge=-1e9, le=1e9)]


class Measured(BaseModel):
    """A rate, and its interval if there is one."""

    value: Rate
    low: Rate | None = None
    high: Rate | None = None


class Threshold(BaseModel):
    """A threshold, and what it costs."""

    wanted: str = Field(max_length=60)
    threshold: Score
    far: Measured
    frr: Measured


class Curve(BaseModel):
    """Corners of a DET curve."""

    far: list[Rate] = Field(min_length=1, max_length=1000)
    frr: list[Rate] = Field(min_length=1, max_length=1000)


class Histogram(BaseModel):
    """Scores of one person and of two, in bins of equal width."""

    low: Score
    high: Score
    same: list[Count] = Field(min_length=1, max_length=1000)
    other: list[Count] = Field(min_length=1, max_length=1000)


class Person(BaseModel):
    """Somebody's errors: their own examples rejected, others' accepted as them."""

    name: str = Field(max_length=200)
    examples: Count
    frr: Rate | None = None
    far: Rate | None = None


class TakenFor(BaseModel):
    """The share of one person's examples that are accepted as another."""

    tested: str = Field(max_length=200)
    taken: str = Field(max_length=200)
    share: Rate
    examples: Count


class People(BaseModel):
    """people.json, as `fedaws.evaluate.people` makes it."""

    trained: bool
    people: Count
    ask: Count | None = None  # examples asked about at once, if that is known
    same: Annotated[Count, Field(ge=1)]
    other: Annotated[Count, Field(ge=1)]
    eer: Measured
    thresholds: list[Threshold] = Field(max_length=20)
    det: Curve
    histogram: Histogram
    at: Score
    each: list[Person] = Field(max_length=2_000)
    pairs: list[TakenFor] = Field(max_length=100)

    @model_validator(mode="after")
    def _shapes(self) -> "People":
        if len(self.det.far) != len(self.det.frr) or len(self.histogram.same) != len(self.histogram.other):
            raise ValueError("its lists differ in length")
        if not self.histogram.low < self.histogram.high:
            raise ValueError("its histogram has no width")
        return self


class Attendance(BaseModel):
    """A line of participants.jsonl: who answered in a round over Flower, and who did not and why."""

    round: Count
    asked: Count
    replies: Count
    answered: list[str] = Field(default=[], max_length=1000)
    dropped: dict[str, str] = Field(default={}, max_length=1000)


@dataclass(frozen=True)
class Trace:
    """Rows of W after a round."""

    round: int
    classes: Tensor  # [n]
    rows: Tensor  # [n, d]


@dataclass
class RunData:
    """One run folder."""

    name: str
    folder: RunFolder
    config: Config
    rows: list[Row] = field(default_factory=list)
    finished: bool = False
    facts: Facts | None = None
    sizes: dict[str, int] = field(default_factory=dict)  # numbers in each tensor of the model
    weights: Path | None = None  # of the model, or of the newest sound checkpoint
    details: Details | None = None
    people: People | None = None
    made_with: dict[str, str] = field(default_factory=dict)
    attendance: list[Attendance] = field(default_factory=list)
    rejected: dict[str, int] = field(default_factory=dict)

    @property
    def last(self) -> Row:
        """The newest figures."""
        return self.rows[-1] if self.rows else {}

    @property
    def rounds_done(self) -> int:
        """The newest round that anything tells of."""
        return max(int(self.last.get("round", 0)), self.facts.round if self.facts else 0)

    @property
    def theta_numbers(self) -> int:
        """Parameters of the encoder."""
        return sum(size for name, size in self.sizes.items() if name.startswith("theta/"))

    def fact(self, name: str) -> Any:
        """What the weights say of themselves; None if they do not say it, as those of older versions."""
        return getattr(self.facts, name, None)

    @property
    def own_data(self) -> bool:
        """Whether the data were given in Python, so that no configuration names them."""
        return bool(self.fact("own_data")) and not self.attendance

    @property
    def method(self) -> str:
        """The name of the method, which may be one that only the user's code knows."""
        return self.config.method

    @property
    def own_method(self) -> bool:
        """Whether the method is a user's."""
        return self.method not in method_names() or bool(self.fact("own_method"))

    @property
    def role(self) -> str:
        """What the method is."""
        usual = "a method of your own" if self.own_method else role_of(self.method)
        return _short(self.fact("role") or "") or usual

    @property
    def sent_rows(self) -> str | None:
        """What of W a client is sent, if it is known."""
        return self.fact("rows") or (None if self.own_method else method_of(Config(method=self.method)).rows)

    @property
    def tested_on(self) -> str:
        """Which examples the figures are of: "test", "held-out" or "training"."""
        return str(self.fact("tested_on") or ("held-out" if self.config.data.validation else "test"))


@dataclass
class Group:
    """Runs that differ in nothing but the seed."""

    label: str
    runs: list[RunData]
    colour: int = 0  # its number

    @property
    def config(self) -> Config:
        """The first seed's."""
        return self.runs[0].config

    @property
    def shown(self) -> RunData:
        """The run whose classes are shown one by one: the first seed, if it has details."""
        return next((run for run in self.runs if run.details), self.runs[0])


@dataclass
class Collected:
    """All that a report is made from."""

    groups: list[Group]
    notices: list[str]
    places: list[Path]  # of the runs, those that could not be read among them

    @property
    def runs(self) -> list[RunData]:
        """All runs."""
        return [run for group in self.groups for run in group.runs]

    def without_paths(self, notice: str) -> str:
        """The notice with runs by their names: where on somebody's disk they lie is not for every reader of a page."""
        for place in sorted(filter(Path.is_absolute, self.places), key=lambda place: -len(str(place))):
            notice = notice.replace(str(place), _name(place))
        return notice


def collect(paths: Sequence[Path]) -> Collected:
    """The runs in these folders, or in the folders below them; refused only if there is none that can be read."""
    notices: list[str] = []
    places = list(dict.fromkeys(place for path in paths for place in find_runs(path)))
    runs = [attempt(partial(_read_run, place, notices), notices) for place in places[:MOST_RUNS]]
    if len(places) > MOST_RUNS:
        notices.append(f"{len(places)} runs were given; the first {MOST_RUNS} are shown")
    groups = grouped([run for run in runs if run is not None], notices)
    if not groups:
        raise FedawsError(notices[0] if notices else f"no run folder in {', '.join(map(str, paths))}")
    return Collected(groups, notices, places)


def _name(place: Path) -> str:
    """The folder and the one above."""
    return "/".join(place.resolve().parts[-2:])


def find_runs(path: Path) -> list[Path]:
    """The folder itself, or those below it that hold a run, as `compare`, `reproduce` and Flower leave them."""
    if (path / "config.toml").exists():
        return [path]
    if not path.is_dir():
        raise FedawsError(f"{path} is not a folder; give the folder of a run or of a comparison")
    below = sorted(p.parent for depth in ("*", "*/*") for p in path.glob(f"{depth}/config.toml"))
    runs = [p for p in below if any((p / part).exists() for part in ("metrics.jsonl", "model", "checkpoints"))]
    order = {method: place for place, method in enumerate(method_names())}
    return sorted(runs, key=lambda p: (p.parent, order.get(p.name.rpartition("-seed")[0], len(order)))) or [path]


def grouped(runs: Iterable[RunData], notices: list[str]) -> list[Group]:
    """Runs that differ in nothing but the seed, in the order in which they came, each kind under a name of its own.

    Runs that do not even differ in the seed are no sample of anything: their figures are not averaged.
    """
    kinds: dict[object, list[RunData]] = {}
    twins = Counter[object]()
    for run in runs:
        settings = run.config.model_copy(update={"seed": 0}).model_dump_json()
        kind = (run.role, settings)
        twin = (kind, run.config.seed)
        kinds.setdefault((kind, twins[twin]), []).append(run)
        twins[twin] += 1
    repeated = sum(count for count in twins.values() if count > 1)
    if repeated:
        notices.append(
            f"{repeated} runs have the method, settings and seed of another: each is shown by itself, without a mean. "
            "If they differ in code of your own, give each method a name"
        )
    kinds = {kind: sorted(same, key=lambda run: run.config.seed) for kind, same in kinds.items()}
    return [
        Group(label, same) for label, same in zip(_labels([k[0] for k in kinds.values()]), kinds.values(), strict=True)
    ]


def _labels(runs: list[RunData]) -> list[str]:
    """The method; where two have the same one, also what tells them apart."""
    labels = []
    for run in runs:
        same = [other.config for other in runs if other.method == run.method]
        keys = dict.fromkeys(key for cfg in same for key, _, _ in differences(run.config, cfg) if key != "seed")
        chosen = ([key for key in keys if key != "name"] or list(keys))[:3]
        labels.append(
            " ".join([run.method, *(f"{key.split('.')[-1]}={setting(run.config, key)}" for key in chosen[:3])])
        )
    labels = _told_apart(labels, [run.role for run in runs])
    labels = _told_apart(labels, [run.name for run in runs])
    return _told_apart(labels, [str(number) for number in range(1, len(runs) + 1)])


def _told_apart(labels: list[str], notes: list[str]) -> list[str]:
    """Labels that stand twice get their notes, if these differ.

    >>> _told_apart(["a", "a", "b"], ["1", "2", "3"]), _told_apart(["a", "a"], ["1", "1"])
    (['a (1)', 'a (2)', 'b'], ['a', 'a'])
    """
    pairs = list(zip(labels, notes, strict=True))
    notes_of = {label: {note for other, note in pairs if other == label} for label in labels}
    return [f"{label} ({note})" if len(notes_of[label]) > 1 else label for label, note in pairs]


def setting(cfg: Config, dotted: str) -> str:
    """The value of a setting by its dotted name, as it is typed after -s; of a path on somebody's disk its last part.

    >>> setting(Config(), "clients.lr"), setting(Config().override(["data.name=/home/me/mine.npz"]), "data.name")
    ('0.3', 'mine.npz')
    """
    value: Any = cfg
    for part in dotted.split("."):
        value = getattr(value, part)
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else typed(value)


# --- one folder -----------------------------------------------------------------------------------------------------


def _read_run(place: Path, notices: list[str]) -> RunData:
    folder = RunFolder(place)
    rows = _read_metrics(folder.metrics_file, notices)
    run = RunData(_name(place), folder, folder.config(), rows, folder.finished)
    run.weights, run.facts = _read_facts(folder, notices)
    if run.weights is not None:
        run.sizes = attempt(partial(tensor_sizes, run.weights), notices) or {}
    run.details = attempt(partial(_read_details, folder.details_file), notices)
    run.people = attempt(partial(_read_people, place / PEOPLE), notices)
    run.made_with = attempt(partial(_read_versions, place / MADE_WITH), notices) or {}
    answers = read_lines(place / PARTICIPANTS, Attendance.model_validate_json, notices)
    run.attendance = [answer for _, answer in sorted({answer.round: answer for answer in answers}.items())]
    run.rejected = attempt(partial(_read_rejected, place / "flower.json"), notices) or {}
    if not run.rows and run.facts is None:
        notices.append(f"{place} has no figures and no checkpoint yet: only its settings are shown")
    elif not run.finished:
        notices.append(
            f"{place} is unfinished: {run.rounds_done:,} of {run.config.train.rounds:,} rounds; "
            "its figures are those of its last measured round"
        )
    return run


def _short(text: str) -> str:
    """A name from a file, in one line of bounded length."""
    return " ".join(str(text).split())[:_MOST_LETTERS]


def _read_metrics(path: Path, notices: list[str]) -> list[Row]:
    """The rows in the order of their rounds; of a round that stands twice the last."""
    rows = read_lines(path, _parse_row, notices)
    return [row for _, row in sorted({row["round"]: row for row in rows}.items())]


def _parse_row(line: str) -> Row:
    """A row's finite numbers; a line without a round is no row."""
    values = json.loads(line)
    if not isinstance(values, dict):
        raise ValueError("no JSON object")
    numbers = {k: v for k, v in values.items() if isinstance(v, int | float) and not isinstance(v, bool)}
    row = {_short(k): v for k, v in numbers.items() if abs(v) < 1e300 and math.isfinite(v)}
    if not isinstance(row.get("round"), int) or not 0 <= row["round"] <= 10**12:
        raise ValueError("no round")
    return row


def _read_facts(folder: RunFolder, notices: list[str]) -> tuple[Path | None, Facts | None]:
    """The model, or the newest checkpoint that can be read, and what it says of itself."""
    models = [folder.model_file] if folder.finished else []
    for path in [*models, *reversed(folder.checkpoints())]:
        facts = attempt(partial(_facts_in, path), notices)
        if facts is not None:
            return path, facts
    return None, None


def _facts_in(path: Path) -> Facts:
    _, text = read_tensors(path, only=())
    return check(lambda: Facts.model_validate_json(text), path)


def _read_details(path: Path) -> Details | None:
    details = read_object(path)
    if not details.keys() - {"round"}:  # nothing was there to test on
        return None
    return check(lambda: Details.model_validate(details), path)


def _read_people(path: Path) -> People | None:
    people = read_object(path)
    return check(lambda: People.model_validate(people), path) if people else None


def _read_versions(path: Path) -> dict[str, str]:
    return {_short(k): str(v)[:200] for k, v in list(read_object(path).items())[:20]}


def _read_rejected(path: Path) -> dict[str, int]:
    """Dropped replies by reason, as Flower's server counts them over the run."""
    reasons = read_object(path).get("rejected")
    counts = reasons.items() if isinstance(reasons, dict) else ()
    return {_short(k): v for k, v in counts if isinstance(v, int) and not isinstance(v, bool)}


# --- tensors, read only for the runs that are shown class by class ---------------------------------------------------


def class_matrix(run: RunData, notices: list[str]) -> Tensor | None:
    """W at the end, or as far as the run has come."""
    if run.weights is None:
        return None
    tensors, _ = attempt(partial(read_tensors, run.weights, only=("W",)), notices) or ({}, "")
    W = tensors.get("W")
    if W is None or W.ndim != 2 or len(W) < 2 or not W.is_floating_point():
        notices.append(f"{run.weights} has no matrix W of class embeddings; left out")
        return None
    return W.float()


def traces(run: RunData, notices: list[str]) -> list[Trace]:
    """The rows of W that were kept along the way."""
    steps: list[Trace] = []
    for path in run.folder.traces():
        step = attempt(partial(_read_trace, path), notices)
        if step is not None and (not steps or step.rows.shape[1] == steps[0].rows.shape[1]):
            steps.append(step)
    return [step for step in steps if step.round <= run.rounds_done or not run.rounds_done]


def _read_trace(path: Path) -> Trace:
    tensors, _ = read_tensors(path)
    number = path.stem.removeprefix("W-")
    match tensors.get("classes"), tensors.get("rows"):
        case Tensor() as classes, Tensor() as rows if number.isdigit() and not classes.is_floating_point():
            if rows.ndim == 2 and classes.shape == rows.shape[:1]:
                return Trace(int(number), classes.long(), rows.float())
    raise FedawsError(f"{path} is damaged (not rows of W and their classes); left out")


def unit(W: Tensor) -> Tensor:
    """Rows of length 1; a row of zeros stays."""
    return torch.nn.functional.normalize(W, dim=1)
