"""The run folder: config.toml, metrics.jsonl, checkpoints/, model/; all of it in docs/run-folder.md."""

import json
from collections.abc import Collection
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedaws import config as configuration
from fedaws.config import Config
from fedaws.errors import FedawsError
from fedaws.files import append_line, only_writer, read_text, write_text
from fedaws.record.facts import Facts
from fedaws.record.files import write_tensors
from fedaws.record.made_with import note_versions
from fedaws.record.png import png_base64
from fedaws.record.state import RANKS, below, pack, read_state, unpack
from fedaws.tensor_files import damaged
from fedaws.types import Params, ServerState

PARTICIPANTS = "participants.jsonl"
"""Over Flower: who answered in each round, and who did not."""
AUDIT = "audit.json"
"""What `fedaws audit` found."""
PEOPLE = "people.json"
"""Error rates of verification and the people behind them, by `fedaws trials`."""
HALF_ROWS = "half_rows.jsonl"
"""Where W was written in half precision, and of which θ it was."""
_KEPT = 2  # checkpoints
_LONGEST = 1 << 28  # bytes of metrics.jsonl


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

    def create(self, cfg: Config, without: Collection[str] = ()) -> None:
        """Start a run here; refuses a folder that has one."""
        self.check_free()
        self.write_new(cfg, without)

    def write_new(self, cfg: Config, without: Collection[str] = ()) -> None:
        """The files of a run that begins; settings that mean nothing in it are left out."""
        write_text(self.path / "config.toml", cfg.to_toml(without))
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

    def note_half_rows(self, path: Path, model: str) -> None:
        """Keep where W will be written in half precision; what is in the folder itself may move with it."""
        place, home = path.resolve(), self.path.resolve()
        kept = place.relative_to(home) if place.is_relative_to(home) else place
        append_line(self.path / HALF_ROWS, json.dumps({"path": str(kept), "model": model}))

    def half_rows(self) -> list[tuple[Path, str]]:
        """Where W was written in half precision, and the digests of θ."""
        noted = self.path / HALF_ROWS
        places = dict[tuple[Path, str], None]()
        for line in read_text(noted, _LONGEST).splitlines() if noted.exists() else ():
            with suppress(KeyError, TypeError, ValueError, RecursionError):  # cut short, before any rows were written
                each = json.loads(line)
                places[self.path / each["path"], each["model"]] = None
        return list(places)

    # checkpoints

    def save_checkpoint(self, state: ServerState, facts: Facts) -> None:
        """Keep the state; the two newest checkpoints stay."""
        write_tensors(self.checkpoint_file(state.round_num), pack(state), facts.model_dump(mode="json"))
        self.drop_old_checkpoints()

    def drop_old_checkpoints(self) -> None:
        """Leave the two newest, and no rows of others."""
        for old in self.checkpoints()[:-_KEPT]:
            old.unlink(missing_ok=True)
        self.drop_rank_files({path.stem for path in self.checkpoints()})

    def drop_rank_files(self, but: Collection[str] = ()) -> None:
        """Remove the rows that ranks have written, but those of some checkpoints, by the stems of their names."""
        for rows in (self.path / "checkpoints" / RANKS).glob("round-*.safetensors"):
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
        theta = {k: t for part in ("theta", "average") for k, t in below(part, tensors).items()}
        return SavedModel(theta, W, facts, bias)


def _parse_row(line: str) -> dict[str, Any] | None:
    """A row of metrics; None for a line that a crash cut short."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and isinstance(row.get("round"), int) else None
