"""One run folder for all ranks: the first writes it, but for the rows of a checkpoint, of which each writes its own.

All ranks must see the same folder. A checkpoint is there once its first file is, which is written last.
"""

import json
import os
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from fedaws.config import Config
from fedaws.core.rows import here
from fedaws.errors import FedawsError
from fedaws.ranks.group import Ranks
from fedaws.ranks.rows import SharedRows, row_blocks
from fedaws.record.facts import Facts
from fedaws.record.files import write_tensors
from fedaws.record.folder import RunFolder
from fedaws.record.state import pack, read_state, rows_file, unpack
from fedaws.tensor_files import Pieces, write_safetensors
from fedaws.types import Params, ServerState


class SharedFolder(RunFolder):
    """The same folder, asked by all ranks at the same time; what the first finds holds for all."""

    def __init__(self, path: Path, ranks: Ranks, tables: dict[str, int]) -> None:
        """`tables` are the parameters of which each rank has its part, with the number of their rows."""
        super().__init__(path)
        self._ranks, self._tables = ranks, tables

    @property
    def started(self) -> bool:
        """Whether there is a run here at all."""
        return self._ranks.any(self._ranks.first and super().started)

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return self._ranks.any(self._ranks.first and super().finished)

    def held(self) -> AbstractContextManager[None]:
        """Keep other runs from writing into the folder."""
        return super().held() if self._ranks.first else nullcontext()

    def note_versions(self) -> None:
        """Keep what the run is made with."""
        if self._ranks.first:
            super().note_versions()

    def write_new(self, cfg: Config, without: Collection[str] = ()) -> None:
        """The files of a run that begins."""
        if self._ranks.first:
            super().write_new(cfg, without)

    def append_metrics(self, row: dict[str, Any]) -> None:
        """Add one line."""
        if self._ranks.first:
            super().append_metrics(row)

    def rewind_metrics(self, round_num: int) -> list[dict[str, Any]]:
        """Forget the rows after a checkpoint."""
        rows = super().rewind_metrics(round_num) if self._ranks.first else []
        told: list[dict[str, Any]] = json.loads(self._ranks.tell(json.dumps(rows)))
        return told

    def save_trace(self, round_num: int, classes: Tensor, rows: Tensor) -> None:
        """Keep the rows of some classes."""
        if self._ranks.first:
            super().save_trace(round_num, classes, rows)

    def save_details(self, details: dict[str, Any]) -> None:
        """Keep what the figures hide."""
        if self._ranks.first:
            super().save_details(details)

    def save_checkpoint(self, state: ServerState, facts: Facts) -> None:
        """Keep the state, each rank its own rows; the first closes it once all are on the disk."""
        path, ranks, shared = self.checkpoint_file(state.round_num), self._ranks, self._shared(state)
        tensors = {name: here(tensor) for name, tensor in pack(state).items()}
        about = facts.model_copy(update={"ranks": ranks.world, "shared": shared})
        if not ranks.first:
            own = {name: tensors[name] for name in shared}
            write_tensors(rows_file(path, ranks.rank, ranks.world), own, about.model_dump(mode="json"))
        ranks.wait()
        if ranks.first:
            write_tensors(path, tensors, about.model_dump(mode="json"))
            self.drop_old_checkpoints()
        ranks.wait()

    def load_checkpoint(self, start: ServerState) -> tuple[ServerState, Facts] | None:
        """The newest checkpoint, of any number of ranks; None if there is none yet."""
        files = self.checkpoints()
        newest = self._ranks.tell(str(files[-1]) if files else "")
        if not newest:
            return None
        path, ranks, shared = Path(newest), self._ranks, self._shared(start)
        tensors, facts = read_state(path, ranks.rank, ranks.world)
        if facts.forgotten:
            raise FedawsError(
                f"class {facts.forgotten[0]} was removed from {self.path}, and ranks cannot go on without somebody; "
                "go on in one process: fedaws train … --resume"
            )
        for name in (shared.keys() - facts.shared.keys()) & tensors.keys():  # written by one process
            tensors[name] = tensors[name][ranks.rank :: ranks.world].clone()
        spread = {name: here(memory) for name, memory in start.spread.items()}
        state = unpack(tensors, facts, replace(start, W=here(start.W), spread=spread), path, len(start.W))
        spread = {
            name: SharedRows(memory, len(start.W), ranks) if f"spread/{name}" in shared else memory
            for name, memory in state.spread.items()
        }
        facts = facts.model_copy(update={"ranks": 1, "shared": {}})
        return replace(state, W=SharedRows(state.W, len(start.W), ranks), spread=spread), facts

    def save_model(self, theta: Params, W: Tensor, bias: Tensor | None, facts: Facts) -> None:
        """The finished model in one file, as one process would write it; nobody has all of it in memory."""
        tensors = pack(ServerState(facts.round, theta, W, bias=bias))
        shared = self._shared(ServerState(facts.round, theta, W))
        whole = {name: _pieces(SharedRows(here(tensors[name]), count, self._ranks)) for name, count in shared.items()}
        if self._ranks.first:
            write_tensors(self.model_file, {**tensors, **whole}, facts.model_dump(mode="json"))
        else:  # sends its rows in the order in which they are written
            with Path(os.devnull).open("wb") as nowhere:
                write_safetensors(nowhere, whole, {})
        self._ranks.wait()

    def _shared(self, state: ServerState) -> dict[str, int]:
        """What each rank has a part of, and the rows of the whole."""
        rows = {name: len(tensor) for name, tensor in pack(state).items() if isinstance(tensor, SharedRows)}
        tables = {f"{part}/{name}": count for name, count in self._tables.items() for part in ("theta", "tables")}
        return rows | {name: count for name, count in tables.items() if name in pack(state)}


def _pieces(rows: SharedRows) -> Pieces:
    """The whole, block by block; all ranks are to ask for the blocks at the same time."""

    def blocks() -> Iterator[Tensor]:
        for ids in row_blocks(rows):
            yield rows[ids]

    return Pieces(rows.dtype, tuple(rows.shape), blocks())
