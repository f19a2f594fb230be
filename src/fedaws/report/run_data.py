"""One run folder as a report has it: what can be read of its files, and a notice of the rest."""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from fedaws.config import Config
from fedaws.core.methods import method_names, method_of, role_of
from fedaws.errors import FedawsError
from fedaws.record.facts import Facts
from fedaws.record.files import read_tensors
from fedaws.record.folder import PARTICIPANTS, PEOPLE, RunFolder
from fedaws.record.made_with import MADE_WITH
from fedaws.report.reader import attempt, check, read_lines, read_model, read_object
from fedaws.report.stored import Attendance, Details, People
from fedaws.tensor_files import tensor_sizes

_MOST_LETTERS = 60  # of a name that a file gives

Row = dict[str, float]
"""A line of metrics.jsonl, its finite numbers only; "round" is a whole one."""


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


def read_run(place: Path, notices: list[str]) -> RunData:
    """The run in a folder, as far as it has come."""
    folder = RunFolder(place)
    rows = _read_metrics(folder.metrics_file, notices)
    run = RunData(folder_name(place), folder, folder.config(), rows, folder.finished)
    run.weights, run.facts = _read_facts(folder, notices)
    if run.weights is not None:
        run.sizes = attempt(notices, tensor_sizes, run.weights) or {}
    run.details = attempt(notices, read_model, Details, folder.details_file, {"round"})  # no more: nothing to test on
    run.people = attempt(notices, read_model, People, place / PEOPLE)
    run.made_with = attempt(notices, _read_versions, place / MADE_WITH) or {}
    answers = read_lines(place / PARTICIPANTS, Attendance.model_validate_json, notices)
    run.attendance = [answer for _, answer in sorted({answer.round: answer for answer in answers}.items())]
    run.rejected = attempt(notices, _read_rejected, place / "flower.json") or {}
    if not run.rows and run.facts is None:
        notices.append(f"{place} has no figures and no checkpoint yet: only its settings are shown")
    elif not run.finished:
        notices.append(
            f"{place} is unfinished: {run.rounds_done:,} of {run.config.train.rounds:,} rounds; "
            "its figures are those of its last measured round"
        )
    return run


def folder_name(place: Path) -> str:
    """How a run is called: its folder and the one above."""
    return "/".join(place.resolve().parts[-2:])


def _short(text: str) -> str:
    """A name from a file, in one line of bounded length."""
    line = " ".join(str(text).split())
    return line if len(line) <= _MOST_LETTERS else line[: _MOST_LETTERS - 1] + "…"


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
        facts = attempt(notices, _facts_in, path)
        if facts is not None:
            return path, facts
    return None, None


def _facts_in(path: Path) -> Facts:
    _, text = read_tensors(path, only=())
    return check(path, Facts.model_validate_json, text)


def _read_versions(path: Path) -> dict[str, str]:
    return {_short(k): str(v)[:200] for k, v in list(read_object(path).items())[:20]}


def _read_rejected(path: Path) -> dict[str, int]:
    """Dropped replies by reason, as Flower's server counts them over the run."""
    reasons = read_object(path).get("rejected")
    counts = reasons.items() if isinstance(reasons, dict) else ()
    return {_short(k): v for k, v in counts if isinstance(v, int) and not isinstance(v, bool)}


# --- tensors, read only for the runs that are shown class by class ---------------------------------------------------


@dataclass(frozen=True)
class Trace:
    """Rows of W after a round."""

    round: int
    classes: Tensor  # [n]
    rows: Tensor  # [n, d]


def class_matrix(run: RunData, notices: list[str]) -> Tensor | None:
    """W at the end, or as far as the run has come."""
    if run.weights is None:
        return None
    tensors, _ = attempt(notices, read_tensors, run.weights, only=("W",)) or ({}, "")
    W = tensors.get("W")
    if W is None or W.ndim != 2 or len(W) < 2 or not W.is_floating_point():
        notices.append(f"{run.weights} has no matrix W of class embeddings; left out")
        return None
    return W.float()


def traces(run: RunData, notices: list[str]) -> list[Trace]:
    """The rows of W that were kept along the way."""
    steps: list[Trace] = []
    for path in run.folder.traces():
        step = attempt(notices, _read_trace, path)
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
