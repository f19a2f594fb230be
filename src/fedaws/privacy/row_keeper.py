"""A node's own row on its disk, for nobody else's eyes: what it was after each round, until the server has counted it.

The file beside the node's key has a row for every round that it took part in, by the number of rounds done then; 0 is
the row it began with, drawn here and known to nobody. The server says in which round it last counted this node. Rows of
later rounds, whose answers were lost, are forgotten then; earlier ones are kept for a server that has lost rounds.
"""

import os
import stat
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from fedaws.core.start import secret_rows
from fedaws.errors import FedawsError
from fedaws.files import atomically
from fedaws.tensor_files import read_safetensors

ROW_FILE = "row.safetensors"
_MOST = 100  # rounds that a server may have lost


class RowKeeper:
    """Keeps the row of one node."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / ROW_FILE

    def counted(self, number: int, dim: int) -> Tensor:
        """The row as it was when the server last counted this node, after so many rounds; 0: the first row; [d]."""
        rows = self._rows()
        if number == 0 and "0" not in rows:
            rows = {"0": secret_rows(1, dim)[0]}
            self._write(rows)
        row = rows.get(str(number))
        if row is None or row.shape != (dim,):
            raise FedawsError(
                f"{self.path} has no row of {dim} numbers after round {number}; the server has lost too many rounds, "
                "or is another one: move the file away to join anew"
            )
        return row

    def keep(self, counted: int, number: int, row: Tensor) -> None:
        """Add the row that a round gave, before anybody is told of it."""
        rows = {n: r for n, r in self._rows().items() if int(n) <= counted}
        newest = dict(sorted(rows.items(), key=lambda item: int(item[0]))[-_MOST:])
        self._write(newest | {str(number): row})

    def _rows(self) -> dict[str, Tensor]:
        if not self.path.exists():
            return {}
        if os.name == "posix" and stat.S_IMODE(self.path.stat().st_mode) & 0o077:
            raise FedawsError(f"others can read {self.path}; first: chmod 600 {self.path}")
        rows, _ = read_safetensors(self.path)
        if not all(name.isdecimal() and row.ndim == 1 and row.dtype == torch.float32 for name, row in rows.items()):
            raise FedawsError(f"{self.path} is damaged; move it away to join anew")
        return rows

    def _write(self, rows: dict[str, Tensor]) -> None:
        with atomically(self.path) as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(save({name: row.contiguous() for name, row in rows.items()}))
