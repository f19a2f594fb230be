"""The run folder: config.toml, metrics.jsonl, checkpoints/, model/; all of it in docs/run-folder.md."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError
from torch import Tensor

from fedaws import config as configuration
from fedaws.config import Config
from fedaws.core.spreadout import NEIGHBORS
from fedaws.errors import FedawsError
from fedaws.files import append_line, read_text, write_text
from fedaws.record.files import read_tensors, write_tensors
from fedaws.record.png import png_base64
from fedaws.tensor_files import damaged
from fedaws.types import Params, ServerState

PARTICIPANTS = "participants.jsonl"
"""Over Flower: who answered in each round, and who did not."""
PEOPLE = "people.json"
"""Error rates of verification and the people behind them, by `fedaws trials`."""
_KEPT = 2  # checkpoints
_LONGEST = 1 << 28  # bytes of metrics.jsonl
_NEIGHBORS = f"spread/{NEIGHBORS}"  # ids of classes, which are looked up unchecked
_MEMORIES = ("optimizer", "row_optimizer", "tables", "spread", "weighting", "average")
"""The mappings of a state that are saved, each under its name."""


class PrivacyFacts(BaseModel):
    """What a private run promises: (ε, δ) for each person, of all θ that it has released so far, and no more."""

    model_config = ConfigDict(frozen=True)

    epsilon: float
    delta: float
    clip: float
    noise: float  # multiplier of the clip
    releases: NonNegativeInt  # rounds, with those that a crash lost
    people: NonNegativeInt
    per_round: NonNegativeInt
    cohorts: str  # how they are made
    neighbours: str  # between what ε is
    covers: Literal["theta"] = "theta"
    rows: Literal["none", "nothing released"]  # "none": no ε holds for class embeddings, which the server sees


class Facts(BaseModel):
    """What a checkpoint or model says about itself beside its tensors."""

    model_config = ConfigDict(frozen=True)

    example_shape: tuple[int, ...]
    example_dtype: str
    class_names: tuple[str, ...] | None = None
    own_encoder: bool = False  # given by the user: no configuration can build it again
    own_data: bool = False  # likewise
    own_method: bool = False  # likewise
    data: str | None = None  # a digest of data of one's own
    encoder_name: str | None = None  # the class of an own encoder
    role: str = ""  # what the method is, in a few words
    rows: str | None = None  # what of W its clients are sent
    start: str | None = None  # a digest of the weights that training began with, if it did not begin at random
    tested_on: Literal["test", "held-out", "training"] = "test"
    own_measures: tuple[str, ...] = ()  # beside the package's
    classes: NonNegativeInt = 0
    forgotten: tuple[NonNegativeInt, ...] = ()  # classes whose rows were removed on demand, for good
    round: NonNegativeInt = 0
    loss: float = 0.0  # of that round
    loss_sum: float = 0.0  # since the last row of metrics, over
    loss_rounds: NonNegativeInt = 0  # so many rounds
    seconds: float = (
        0.0  # of training so far: rounds, with what is asked before and after them; no measuring or recording
    )
    parts: dict[str, float] = {}  # seconds so far by what they went to: clients, server, evaluation, records
    privacy: PrivacyFacts | None = None  # of a private run


class SavedModel(NamedTuple):
    """What a model's file holds."""

    theta: Params
    W: Tensor
    facts: Facts
    bias: Tensor | None


class RunFolder:
    """Reads and writes one run's folder. Every file is written whole or not at all."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def model_file(self) -> Path:
        """The finished model."""
        return self.path / "model" / "model.safetensors"

    @property
    def metrics_file(self) -> Path:
        """One JSON object per evaluated round."""
        return self.path / "metrics.jsonl"

    @property
    def started(self) -> bool:
        """Whether there is a run here at all."""
        return (self.path / "config.toml").exists()

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return self.model_file.exists()

    def create(self, cfg: Config) -> None:
        """Start a run here; refuses a folder that has one."""
        if self.started:
            raise FedawsError(
                f"{self.path} already holds a run; add --resume (resume=True) to go on, or choose another folder"
            )
        write_text(self.path / "config.toml", cfg.to_toml())
        write_text(self.metrics_file, "")

    def config(self) -> Config:
        """The run's configuration."""
        path = self.path / "config.toml"
        if not path.exists():
            raise FedawsError(f"{self.path} is not a run folder: no config.toml in it")
        return configuration.from_toml(read_text(path), str(path))

    # metrics

    def append_metrics(self, row: dict[str, Any]) -> None:
        """Add one line."""
        append_line(self.metrics_file, json.dumps(row))

    def metrics(self, up_to: int | None = None) -> list[dict[str, Any]]:
        """The rows of the rounds up to `up_to`; a last line that a crash cut short is left out."""
        if not self.metrics_file.exists():
            return []
        lines = read_text(self.metrics_file, _LONGEST, errors="replace").splitlines()
        rows = [row for row in map(_parse_row, lines) if row is not None]
        return [row for row in rows if up_to is None or row["round"] <= up_to]

    def rewind_metrics(self, round_num: int) -> list[dict[str, Any]]:
        """Forget the rows after a checkpoint, which the resumed run will write again."""
        rows = self.metrics(round_num)
        write_text(self.metrics_file, "".join(json.dumps(row) + "\n" for row in rows))
        return rows

    # for the report

    def save_trace(self, round_num: int, classes: Tensor, rows: Tensor) -> None:
        """Keep the rows of some classes as they are after this round."""
        path = self.path / "trace" / f"W-{round_num:08d}.safetensors"
        write_tensors(path, {"classes": classes, "rows": rows}, {"round": round_num})

    def traces(self) -> list[Path]:
        """Their files, oldest first."""
        return sorted((self.path / "trace").glob("W-*.safetensors"))

    @property
    def details_file(self) -> Path:
        """Per-class figures and confusions of the last round."""
        return self.path / "details.json"

    def save_details(self, details: dict[str, Any]) -> None:
        """Keep what `fedaws.evaluate.per_class` found; images become PNG files in base64."""
        write_text(self.details_file, json.dumps(details, default=png_base64) + "\n")

    def save_people(self, people: dict[str, Any]) -> None:
        """Keep what `fedaws.evaluate.people` found."""
        write_text(self.path / PEOPLE, json.dumps(people) + "\n")

    # checkpoints

    def save_checkpoint(self, state: ServerState, facts: Facts) -> None:
        """Keep the state; the two newest checkpoints stay."""
        path = self.path / "checkpoints" / f"round-{state.round_num:08d}.safetensors"
        write_tensors(path, _pack(state), facts.model_dump(mode="json"))
        for old in self.checkpoints()[:-_KEPT]:
            old.unlink(missing_ok=True)

    def checkpoints(self) -> list[Path]:
        """The checkpoint files, oldest first."""
        return sorted((self.path / "checkpoints").glob("round-*.safetensors"))

    def load_checkpoint(self, start: ServerState) -> tuple[ServerState, Facts] | None:
        """The newest checkpoint, fitted into the run's starting state; None if there is none yet."""
        files = self.checkpoints()
        if not files:
            return None
        tensors, facts = read_state(files[-1])
        return _unpack(tensors, facts, start, files[-1]), facts

    # model

    def save_model(self, theta: Params, W: Tensor, bias: Tensor | None, facts: Facts) -> None:
        """The finished model: weights, and what is needed to use them."""
        state = ServerState(facts.round, theta, W, bias=bias)
        write_tensors(self.model_file, _pack(state), facts.model_dump(mode="json"))

    def load_model(self) -> SavedModel:
        """The finished model, or an unfinished run's newest checkpoint."""
        source = self.model_file if self.finished else next(reversed(self.checkpoints()), None)
        if source is None:
            raise FedawsError(f"{self.path} has no model and no checkpoint yet; train it to its first checkpoint")
        tensors, facts = read_state(source)
        W = tensors.get("W")
        bias = tensors.get("bias")
        if W is None or W.ndim != 2:
            raise damaged(source, "no matrix W of class embeddings in it")
        if bias is not None and bias.shape != W.shape[:1]:
            raise damaged(source, f"a bias of shape {tuple(bias.shape)} for {len(W)} classes")
        theta = {k: t for part in ("theta", "average") for k, t in _below(part, tensors).items()}
        return SavedModel(theta, W, facts, bias)


def _below(part: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    prefix = f"{part}/"
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def read_state(path: Path) -> tuple[dict[str, Tensor], Facts]:
    """The tensors of a model or checkpoint, and what it says of itself."""
    tensors, text = read_tensors(path)
    try:
        return tensors, Facts.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        raise damaged(path, f"its facts are wrong ({'.'.join(map(str, first['loc']))}: {first['msg']})") from None


def _parse_row(line: str) -> dict[str, Any] | None:
    """A row of metrics; None for a line that a crash cut short."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and isinstance(row.get("round"), int) else None


def _pack(state: ServerState) -> dict[str, Tensor]:
    packed = {"W": state.W} | ({} if state.bias is None else {"bias": state.bias})
    parts = {part: getattr(state, part) for part in ("theta", *_MEMORIES)}
    return packed | {f"{part}/{k}": v for part, mapping in parts.items() for k, v in mapping.items()}


def _unpack(tensors: dict[str, Tensor], facts: Facts, start: ServerState, path: Path) -> ServerState:
    """The state in a checkpoint, refused unless it has the run's own names, shapes and types."""
    own = _pack(start)
    if "bias" in tensors:  # of the last step, which no start has
        own["bias"] = start.W.new_empty(len(start.W))
    for name in sorted(own.keys() | tensors.keys()):
        got = _kind(tensors.get(name))
        want = _kind(own.get(name))
        if got != want:
            raise FedawsError(
                f"{path} is of another run: {name!r} is {got}, wanted {want}; resume the run it belongs to"
            )
        if name == _NEIGHBORS and not _are_classes(tensors[name], len(start.W)):
            raise damaged(path, f"{name!r} has ids beyond {len(start.W)} classes")
    tensors = {name: tensor.to(start.W.device) for name, tensor in tensors.items()}
    parts: dict[str, Any] = {part: _below(part, tensors) for part in ("theta", *_MEMORIES)}
    bias = tensors.get("bias")
    return replace(start, round_num=facts.round, W=tensors["W"], bias=bias, loss=facts.loss, **parts)


def _are_classes(ids: Tensor, count: int) -> bool:
    return not ids.numel() or (int(ids.min()) >= -1 and int(ids.max()) < count)


def _kind(tensor: Tensor | None) -> str:
    return "missing" if tensor is None else f"{tensor.dtype} {tuple(tensor.shape)}"
