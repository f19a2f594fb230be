"""What run folders hold, read with suspicion: whatever is missing or damaged becomes a notice, never an exception."""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

import torch
from pydantic import BaseModel, Field, ValidationError, model_validator
from torch import Tensor

from fedaws.config import Config
from fedaws.core.methods import method_names
from fedaws.errors import FedawsError
from fedaws.record.files import read_tensors, tensor_sizes
from fedaws.record.folder import PARTICIPANTS, Facts, RunFolder
from fedaws.record.journal import differences
from fedaws.record.made_with import MADE_WITH

MOST_RUNS = 64
_T = TypeVar("_T")

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
    rows: list[Row]
    finished: bool = False
    facts: Facts | None = None
    sizes: dict[str, int] = field(default_factory=dict)  # numbers in each tensor of the model
    weights: Path | None = None  # of the model, or of the newest sound checkpoint
    details: Details | None = None
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


@dataclass
class Group:
    """Runs that differ in nothing but the seed."""

    label: str
    runs: list[RunData]

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
    runs, places = [], [place for path in paths for place in find_runs(path)]
    places = list(dict.fromkeys(places))
    for place in places[:MOST_RUNS]:
        run = _tried(lambda place=place: _read_run(place, notices), notices)  # type: ignore[misc]
        if run is not None:
            runs.append(run)
    if len(places) > MOST_RUNS:
        notices.append(f"{len(places)} runs were given; the first {MOST_RUNS} are shown")
    if not runs:
        raise FedawsError(notices[0] if notices else f"no run folder in {', '.join(map(str, paths))}")
    return Collected(grouped(runs), notices, places)


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
    found = [p for p in below if any((p / part).exists() for part in ("metrics.jsonl", "model", "checkpoints"))]
    order = {method: place for place, method in enumerate(method_names())}
    return sorted(found, key=lambda p: (p.parent, order.get(p.name.rpartition("-seed")[0], len(order)))) or [path]


def grouped(runs: Iterable[RunData]) -> list[Group]:
    """Runs with the same settings but for the seed, in the order in which they came, each under a name of its own."""
    by_settings: dict[str, list[RunData]] = {}
    for run in runs:
        key = run.config.model_copy(update={"seed": 0}).model_dump_json()
        by_settings.setdefault(key, []).append(run)
    groups = [sorted(same, key=lambda run: run.config.seed) for same in by_settings.values()]
    return [Group(label, same) for label, same in zip(_labels([g[0].config for g in groups]), groups, strict=True)]


def _labels(configs: list[Config]) -> list[str]:
    """The method; where two have the same one, also the settings in which these differ."""
    labels = []
    for cfg in configs:
        same = [other for other in configs if other.method == cfg.method]
        keys = dict.fromkeys(key for other in same for key, _, _ in differences(cfg, other) if key != "seed")
        chosen = [key for key in keys if key != "name"] or list(keys)
        extra = [f"{key.split('.')[-1]}={setting(cfg, key)}" for key in chosen[:3]]
        labels.append(" ".join([cfg.method, *extra]))
    return [f"{label} ({labels[: i + 1].count(label)})" if labels.count(label) > 1 else label
            for i, label in enumerate(labels)]  # fmt: skip


def setting(cfg: Config, dotted: str) -> str:
    """The value of a setting by its dotted name, as it is typed after -s; of a path on somebody's disk its last part.

    >>> setting(Config(), "clients.lr"), setting(Config().override(["data.name=/home/me/mine.npz"]), "data.name")
    ('0.3', 'mine.npz')
    """
    value: Any = cfg
    for part in dotted.split("."):
        value = getattr(value, part)
    if value is None:
        return "none"
    if not isinstance(value, str):
        return json.dumps(value)
    return Path(value).name if Path(value).is_absolute() else value


# --- one folder -----------------------------------------------------------------------------------------------------


def _read_run(place: Path, notices: list[str]) -> RunData:
    folder = RunFolder(place)
    run = RunData(_name(place), folder, folder.config(), [], folder.finished)
    run.rows = _metrics(folder, notices)
    run.weights, run.facts = _weights(folder, notices)
    if run.weights is not None:
        weights = run.weights
        run.sizes = _tried(lambda: tensor_sizes(weights), notices) or {}
    run.details = _tried(lambda: _details(folder), notices)
    run.made_with = _tried(lambda: _words(place / MADE_WITH), notices) or {}
    run.attendance = _attendance(place / PARTICIPANTS, notices)
    run.rejected = _tried(lambda: _rejected(place / "flower.json"), notices) or {}
    if not run.rows and run.facts is None:
        notices.append(f"{place} has no figures and no checkpoint yet: only its settings are shown")
    elif not run.finished:
        notices.append(
            f"{place} is unfinished: {run.rounds_done:,} of {run.config.train.rounds:,} rounds; "
            "its figures are those of its last measured round"
        )
    return run


def _tried(read: Callable[[], _T], notices: list[str]) -> _T | None:
    """What can be read, or a notice of why not."""
    try:
        return read()
    except FedawsError as error:
        notices.append(" ".join(str(error).split()))
    except OSError as error:
        notices.append(f"cannot read {error.filename}: {error.strerror or error}")
    return None


def _metrics(folder: RunFolder, notices: list[str]) -> list[Row]:
    """The rows in the order of their rounds; of a round that stands twice the last."""
    found = _tried(folder.metrics, notices) or []
    lines = len((_tried(folder.metrics_file.read_bytes, notices) or b"").splitlines())
    rows = {row["round"]: clean for row in found if (clean := _numbers(row))}
    if lines > len(found):
        notices.append(f"{folder.metrics_file} has {lines - len(found)} lines that are no rows of metrics; left out")
    return [rows[number] for number in sorted(rows)]


def _numbers(row: dict[str, Any]) -> Row | None:
    if isinstance(row["round"], bool) or not 0 <= row["round"] <= 10**12:
        return None
    kept = {k[:60]: v for k, v in row.items() if isinstance(v, int | float) and not isinstance(v, bool)}
    return {k: v for k, v in kept.items() if abs(v) < 1e300 and math.isfinite(v)}


def _weights(folder: RunFolder, notices: list[str]) -> tuple[Path | None, Facts | None]:
    """The model, or the newest checkpoint that can be read."""
    files = [folder.model_file] if folder.finished else []
    for path in [*files, *reversed(folder.checkpoints())]:
        facts = _tried(lambda path=path: _facts(path), notices)  # type: ignore[misc]
        if facts is not None:
            return path, facts
    return None, None


def _facts(path: Path) -> Facts:
    _, text = read_tensors(path, only=())
    return _checked(lambda: Facts.model_validate_json(text), path)


def _checked(make: Callable[[], _T], path: Path) -> _T:
    try:
        return make()
    except (ValueError, RecursionError) as error:  # pydantic's and json's among them
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise FedawsError(f"{path} is damaged ({reason}); what it holds is left out") from None


def _details(folder: RunFolder) -> Details | None:
    path = folder.details_file
    if not path.exists():
        return None
    text = path.read_bytes()
    found = _checked(lambda: json.loads(text), path)
    if isinstance(found, dict) and set(found) == {"round"}:  # nothing was there to test on
        return None
    return _checked(lambda: Details.model_validate(found), path)


def _object(path: Path) -> dict[str, Any]:
    """A JSON object; empty if there is no such file."""
    if not path.exists():
        return {}
    text = path.read_bytes()
    found = _checked(lambda: json.loads(text), path)
    if not isinstance(found, dict):
        raise FedawsError(f"{path} is damaged (no JSON object); what it holds is left out")
    return found


def _words(path: Path) -> dict[str, str]:
    return {str(k)[:40]: str(v)[:200] for k, v in list(_object(path).items())[:20]}


def _rejected(path: Path) -> dict[str, int]:
    """Dropped replies by reason, as Flower's server counts them over the run."""
    found = _object(path).get("rejected", {})
    kept = found.items() if isinstance(found, dict) else ()
    return {str(k)[:40]: v for k, v in kept if isinstance(v, int) and not isinstance(v, bool)}


def _attendance(path: Path, notices: list[str]) -> list[Attendance]:
    """Of a round that stands twice, as after a restart, the last line counts."""
    if not path.exists():
        return []
    lines = (_tried(lambda: path.read_text(encoding="utf-8", errors="replace"), notices) or "").splitlines()
    found: dict[int, Attendance] = {}
    bad = 0
    for line in lines:
        try:
            one = Attendance.model_validate_json(line)
            found[one.round] = one
        except ValidationError:
            bad += 1
    if bad:
        notices.append(f"{path} has {bad} lines that cannot be read; left out")
    return [found[number] for number in sorted(found)]


# --- tensors, read only for the runs that are shown class by class ---------------------------------------------------


def class_matrix(run: RunData, notices: list[str]) -> Tensor | None:
    """W at the end, or as far as the run has come."""
    if run.weights is None:
        return None
    weights = run.weights
    found = _tried(lambda: read_tensors(weights, only=("W",))[0], notices) or {}
    W = found.get("W")
    if W is None or W.ndim != 2 or len(W) < 2 or not W.is_floating_point():
        notices.append(f"{weights} has no matrix W of class embeddings; left out")
        return None
    return W.float()


def traces(run: RunData, notices: list[str]) -> list[Trace]:
    """The rows of W that were kept along the way."""
    found = list[Trace]()
    for path in run.folder.traces():
        tensors = _tried(lambda path=path: read_tensors(path), notices)  # type: ignore[misc]
        if tensors is None:
            continue
        classes, rows = (tensors[0].get(name) for name in ("classes", "rows"))
        sound = classes is not None and rows is not None and rows.ndim == 2 and classes.shape == rows.shape[:1]
        number = path.stem.removeprefix("W-")
        if classes is None or rows is None or not sound or classes.is_floating_point() or not number.isdigit():
            notices.append(f"{path} is damaged (not rows of W and their classes); left out")
            continue
        if not found or rows.shape[1] == found[0].rows.shape[1]:
            found.append(Trace(int(number), classes.long(), rows.float()))
    later = run.rounds_done
    return [trace for trace in found if trace.round <= later or not later]


def unit(W: Tensor) -> Tensor:
    """Rows of length 1; a row of zeros stays."""
    return torch.nn.functional.normalize(W, dim=1)
