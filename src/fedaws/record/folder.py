"""The run folder: config.toml, metrics.jsonl, checkpoints/, model/; all of it in docs/run-folder.md."""

import json
from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError
from torch import Tensor

from fedaws import config as configuration
from fedaws.config import Config
from fedaws.core.spreadout import NEIGHBORS
from fedaws.errors import FedawsError
from fedaws.files import LARGE, append_line, only_writer, read_text, write_text
from fedaws.record.files import read_tensors, write_tensors
from fedaws.record.made_with import note_versions
from fedaws.record.png import png_base64
from fedaws.tensor_files import damaged, tensor_sizes
from fedaws.types import Params, ServerState

PARTICIPANTS = "participants.jsonl"
"""Over Flower: who answered in each round, and who did not."""
AUDIT = "audit.json"
"""What `fedaws audit` found."""
PEOPLE = "people.json"
"""Error rates of verification and the people behind them, by `fedaws trials`."""
_KEPT = 2  # checkpoints
_RANKS = "ranks"  # the folder of what the ranks but the first have written
_LONGEST = 1 << 28  # bytes of metrics.jsonl
_NEIGHBORS = f"spread/{NEIGHBORS}"  # ids of classes, which are looked up unchecked
_MEMORIES = ("optimizer", "row_optimizer", "tables", "spread", "weighting", "average", "best")
"""The mappings of a state that are saved, each under its name."""


class PrivacyFacts(BaseModel):
    """What a private run promises: (ε, δ) for each person, of all θ that it has released so far, and no more."""

    model_config = ConfigDict(frozen=True)

    epsilon: float
    epsilon_if_known: float | None = None  # against whoever knows who took part in which round
    delta: float
    clip: float
    noise: float  # multiplier of the clip
    releases: NonNegativeInt  # rounds, with those that a crash lost
    people: NonNegativeInt
    per_round: NonNegativeInt
    cohorts: str  # how they are made
    neighbours: str  # between what ε is
    covers: Literal["theta", "theta and means of rows"] = "theta"
    rows: Literal["none", "nothing released", "joint"]
    """Of class embeddings: no ε holds, as the server sees them; they are nobody's; or each is its owner's alone, and ε
    holds for all that the others see, with the means of all rows."""


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
    ranks: Annotated[int, Field(ge=1, le=65_536)] = 1  # processes that wrote this checkpoint, each a file with its rows
    shared: dict[
        str, Annotated[int, Field(ge=0, le=LARGE)]
    ] = {}  # tensors whose row i is in the file of rank i mod ranks, with their rows


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

    def held(self) -> AbstractContextManager[None]:
        """Keep other processes from writing into the folder."""
        return only_writer(self.path)

    def note_versions(self) -> None:
        """Keep what the run is made with."""
        note_versions(self.path)

    def check_free(self) -> None:
        """Refuse a folder that has a run."""
        if self.started:
            raise FedawsError(
                f"{self.path} already holds a run; add --resume (resume=True) to go on, or choose another folder"
            )

    def create(self, cfg: Config) -> None:
        """Start a run here; refuses a folder that has one."""
        self.check_free()
        self.write_new(cfg)

    def write_new(self, cfg: Config) -> None:
        """The files of a run that begins."""
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
        write_tensors(self.checkpoint_file(state.round_num), pack(state), facts.model_dump(mode="json"))
        self.drop_old_checkpoints()

    def drop_old_checkpoints(self) -> None:
        """Leave the two newest, and no rows of others."""
        kept = self.checkpoints()[-_KEPT:]
        for old in self.checkpoints()[:-_KEPT]:
            old.unlink(missing_ok=True)
        rounds = {path.stem for path in kept}
        self.drop_rank_files(rounds)

    def drop_rank_files(self, but: Collection[str] = ()) -> None:
        """Remove the rows that ranks have written, but those of some checkpoints, by the stems of their names."""
        for rows in (self.path / "checkpoints" / _RANKS).glob("round-*.safetensors"):
            if rows.stem.partition("-of-")[0].rpartition("-")[0] not in but:
                rows.unlink(missing_ok=True)

    def checkpoint_file(self, round_num: int) -> Path:
        """Where the state after this round is kept."""
        return self.path / "checkpoints" / f"round-{round_num:08d}.safetensors"

    def checkpoints(self) -> list[Path]:
        """The checkpoint files, oldest first."""
        return sorted((self.path / "checkpoints").glob("round-*.safetensors"))

    def load_checkpoint(self, start: ServerState) -> tuple[ServerState, Facts] | None:
        """The newest checkpoint, fitted into the run's starting state; None if there is none yet."""
        files = self.checkpoints()
        if not files:
            return None
        tensors, facts = read_state(files[-1])
        return unpack(tensors, facts, start, files[-1], len(start.W)), facts

    # model

    def save_model(self, theta: Params, W: Tensor, bias: Tensor | None, facts: Facts) -> None:
        """The finished model: weights, and what is needed to use them."""
        state = ServerState(facts.round, theta, W, bias=bias)
        write_tensors(self.model_file, pack(state), facts.model_dump(mode="json"))

    def load_model(self, instead_of_rows: tuple[int, int] | None = None) -> SavedModel:
        """The finished model, or an unfinished run's newest checkpoint.

        Its rows can stay where they are: then W is nothing of the shape `instead_of_rows`, and takes no memory.
        """
        source = self.model_file if self.finished else next(reversed(self.checkpoints()), None)
        if source is None:
            raise FedawsError(f"{self.path} has no model and no checkpoint yet; train it to its first checkpoint")
        tensors, facts = read_state(source, without=() if instead_of_rows is None else ("W",))
        if instead_of_rows is not None:
            tensors["W"] = torch.full((1, 1), torch.nan).expand(instead_of_rows)
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


def read_state(
    path: Path, rank: int = 0, world: int = 1, without: Collection[str] = ()
) -> tuple[dict[str, Tensor], Facts]:
    """The tensors of a checkpoint or model and what it says of them; of tensors whose rows are shared out among `world`
    processes those of `rank`, however many processes have written them.
    """
    tensors, text = read_tensors(path, tensor_sizes(path).keys() - without if without else None)
    try:
        facts = Facts.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        raise damaged(path, f"its facts are wrong ({'.'.join(map(str, first['loc']))}: {first['msg']})") from None
    for name, count in facts.shared.items():
        if name in without:
            continue
        if name not in tensors or not tensors[name].ndim:
            raise damaged(path, f"it has no rows of {name!r}")
        files = [path, *(rows_file(path, writer, facts.ranks) for writer in range(1, facts.ranks))]
        there = sum(tensor_sizes(file).get(name, 0) for file in files)  # looked at before memory is taken for all
        own = None
        if tensors[name].numel() * count == there * len(tensors[name]):
            own = _pick((read_tensors(file, [name])[0].get(name) for file in files), count, facts.ranks, rank, world)
        if own is None:
            raise damaged(path, f"the rows of {name!r} that {facts.ranks} ranks have written do not fit together")
        tensors[name] = own
    return tensors, facts


def rows_file(path: Path, rank: int, world: int) -> Path:
    """Where a rank other than the first keeps its rows of a checkpoint."""
    return path.parent / _RANKS / f"{path.stem}-{rank}-of-{world}.safetensors"


def _pick(parts: Iterable[Tensor | None], count: int, writers: int, rank: int, world: int) -> Tensor | None:
    """Of `count` rows that so many processes have written those of one rank; None where they do not fit together."""
    own: Tensor | None = None
    for writer, part in enumerate(parts):
        if part is None or part.ndim < 1 or len(part) != len(range(writer, count, writers)):
            return None
        own = part.new_empty(len(range(rank, count, world)), *part.shape[1:]) if own is None else own
        if part.shape[1:] != own.shape[1:] or part.dtype != own.dtype:
            return None
        ids = torch.arange(writer, count, writers)
        mine = ids % world == rank
        own[ids[mine] // world] = part[mine]
    return own


def _parse_row(line: str) -> dict[str, Any] | None:
    """A row of metrics; None for a line that a crash cut short."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and isinstance(row.get("round"), int) else None


def pack(state: ServerState) -> dict[str, Tensor]:
    """The tensors of a state, each under its owner's name."""
    packed = {"W": state.W} | ({} if state.bias is None else {"bias": state.bias})
    parts = {part: getattr(state, part) for part in ("theta", *_MEMORIES)}
    return packed | {f"{part}/{k}": v for part, mapping in parts.items() for k, v in mapping.items()}


def unpack(tensors: dict[str, Tensor], facts: Facts, start: ServerState, path: Path, classes: int) -> ServerState:
    """The state in a checkpoint, refused unless it has the run's own names, shapes and types."""
    own = pack(start)
    if any(number >= classes for number in facts.forgotten):
        raise damaged(path, f"it has forgotten class {max(facts.forgotten)} of {classes}")
    if "bias" in tensors:  # of the last step, which no start has
        own["bias"] = start.W.new_empty(len(start.W))
    for name in sorted(own.keys() | tensors.keys()):
        got = _kind(tensors.get(name))
        want = _kind(own.get(name))
        if got != want:
            raise FedawsError(
                f"{path} is of another run: {name!r} is {got}, wanted {want}; resume the run it belongs to"
            )
        if name == _NEIGHBORS and not _are_classes(tensors[name], classes):
            raise damaged(path, f"{name!r} has ids beyond {classes} classes")
    tensors = {name: tensor.to(start.W.device) for name, tensor in tensors.items()}
    parts: dict[str, Any] = {part: _below(part, tensors) for part in ("theta", *_MEMORIES)}
    bias = tensors.get("bias")
    return replace(start, round_num=facts.round, W=tensors["W"], bias=bias, loss=facts.loss, **parts)


def _are_classes(ids: Tensor, count: int) -> bool:
    return not ids.numel() or (int(ids.min()) >= -1 and int(ids.max()) < count)


def _kind(tensor: Tensor | None) -> str:
    return "missing" if tensor is None else f"{tensor.dtype} {tuple(tensor.shape)}"
