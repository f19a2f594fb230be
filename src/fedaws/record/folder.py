"""The run folder: config.toml, metrics.jsonl, checkpoints/, model/."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedaws import config as configuration
from fedaws.config import Config
from fedaws.errors import FedawsError
from fedaws.record.files import read_tensors, write_tensors, write_text
from fedaws.types import Params, ServerState

_KEPT = 2  # checkpoints


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
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return self.model_file.exists()

    def create(self, cfg: Config) -> None:
        """Start a run here; refuses a folder that has one."""
        if (self.path / "config.toml").exists():
            raise FedawsError(
                f"{self.path} already holds a run; add --resume to go on with it, or choose another --out"
            )
        write_text(self.path / "config.toml", cfg.to_toml())
        write_text(self.metrics_file, "")

    def config(self) -> Config:
        """The run's configuration."""
        path = self.path / "config.toml"
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            raise FedawsError(f"{self.path} is not a run folder: no readable config.toml in it") from None
        return configuration.from_toml(text, str(path))

    # metrics

    def append_metrics(self, row: dict[str, Any]) -> None:
        """Add one line."""
        with self.metrics_file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def metrics(self, up_to: int | None = None) -> list[dict[str, Any]]:
        """The rows of the rounds up to `up_to`; a last line that a crash cut short is left out."""
        if not self.metrics_file.exists():
            return []
        rows = []
        for line in self.metrics_file.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                continue
            if isinstance(row, dict) and (up_to is None or row.get("round", 0) <= up_to):
                rows.append(row)
        return rows

    def rewind_metrics(self, round_num: int) -> list[dict[str, Any]]:
        """Forget the rows after a checkpoint, which the resumed run will write again."""
        rows = self.metrics(round_num)
        write_text(self.metrics_file, "".join(json.dumps(row) + "\n" for row in rows))
        return rows

    # checkpoints

    def save_checkpoint(self, state: ServerState, facts: dict[str, Any]) -> None:
        """Keep the state; the two newest checkpoints stay."""
        path = self.path / "checkpoints" / f"round-{state.round_num:08d}.safetensors"
        write_tensors(path, _pack(state), facts | {"round": state.round_num, "loss": _finite(state.loss)})
        for old in self.checkpoints()[:-_KEPT]:
            old.unlink(missing_ok=True)

    def checkpoints(self) -> list[Path]:
        """The checkpoint files, oldest first."""
        return sorted((self.path / "checkpoints").glob("round-*.safetensors"))

    def load_checkpoint(self, start: ServerState) -> tuple[ServerState, dict[str, Any]] | None:
        """The newest checkpoint, fitted into the run's starting state; None if there is none yet."""
        files = self.checkpoints()
        if not files:
            return None
        tensors, facts = read_tensors(files[-1])
        return _unpack(tensors, facts, start, files[-1]), facts

    # model

    def save_model(self, state: ServerState, facts: dict[str, Any]) -> None:
        """The finished model: weights, and what is needed to use them."""
        tensors = {name: t for name, t in _pack(state).items() if not name.startswith("slots/")}
        write_tensors(self.model_file, tensors, facts | {"round": state.round_num})

    def load_model(self) -> tuple[Params, Tensor, dict[str, Any]]:
        """θ, W and facts of the finished model, or of the newest checkpoint of an unfinished run."""
        source = self.model_file if self.finished else next(reversed(self.checkpoints()), None)
        if source is None:
            raise FedawsError(f"{self.path} has no model and no checkpoint yet")
        tensors, facts = read_tensors(source)
        if "W" not in tensors:
            raise FedawsError(f"{source} has no class embeddings W; it is not a model")
        theta = {name.removeprefix("theta/"): t for name, t in tensors.items() if name.startswith("theta/")}
        return theta, tensors["W"], facts


def _pack(state: ServerState) -> dict[str, Tensor]:
    packed = {"W": state.W} | {f"theta/{k}": v for k, v in state.theta.items()}
    return packed | {f"slots/{slot}/{k}": v for slot, params in state.slots.items() for k, v in params.items()}


def _unpack(tensors: dict[str, Tensor], facts: dict[str, Any], start: ServerState, path: Path) -> ServerState:
    """The state in a checkpoint, refused unless it has the run's own names, shapes and types."""
    wanted = _pack(replace(start, slots={}))
    found = {name: t for name, t in tensors.items() if not name.startswith("slots/")}
    for name in wanted.keys() | found.keys():
        if name not in found or name not in wanted or found[name].shape != wanted[name].shape:
            got = tuple(found[name].shape) if name in found else "nothing"
            want = tuple(wanted[name].shape) if name in wanted else "nothing"
            raise FedawsError(f"{path} is of another run: {name!r} is {got}, wanted {want}")
    device = start.W.device
    slots: dict[str, Params] = {}
    for name, tensor in tensors.items():
        if name.startswith("slots/"):
            _, slot, key = name.split("/", 2)
            slots.setdefault(slot, {})[key] = tensor.to(device)
    round_num, loss = facts.get("round"), facts.get("loss")
    if not isinstance(round_num, int) or round_num < 0:
        raise FedawsError(f"{path} is damaged: its round is {round_num!r}")
    return replace(
        start,
        round_num=round_num,
        theta={k: tensors[f"theta/{k}"].to(device) for k in start.theta},
        W=tensors["W"].to(device),
        slots=slots,
        loss=float("nan") if loss is None else float(loss),
    )


def _finite(value: float) -> float | None:
    """JSON has no NaN."""
    return value if torch.isfinite(torch.tensor(value)) else None
