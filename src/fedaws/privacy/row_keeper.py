"""A node's own row on its disk, for nobody else's eyes, and when it may be told of inside a sum.

A file beside the node's key has, for one run, the row as the server last counted it and the row that was told since, by
the number of rounds done then; 0 is the row it began with, drawn here and known to nobody. The server says in which
round it last counted this node: of the two rows the other is then forgotten. What it says must be one of the two, never
0 again, and never an earlier round.
"""

import json
import os
import re
import stat
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save
from torch import Tensor

from fedaws.core.start import secret_rows
from fedaws.errors import FedawsError
from fedaws.files import atomically, parse_json
from fedaws.privacy.sum_keeper import ROW_FILES
from fedaws.tensor_files import read_safetensors

_RUN = re.compile("[0-9a-f]{32}")


class Kept(NamedTuple):
    """A row, and who was in the sum that it was told in."""

    row: Tensor  # [d]
    names: frozenset[str]


class RowKeeper:
    """Keeps the row of one node in one run."""

    def __init__(self, folder: Path, run: str) -> None:
        if not _RUN.fullmatch(run):
            raise FedawsError(f"the server's run is called {run!r:.40}; wanted 32 hexadecimal digits")
        self.path = folder / ROW_FILES.replace("*", run)

    def counted(self, heard: int, number: int, dim: int) -> Kept:
        """The row as the server last counted it, after `heard` rounds, for round `number`; the first is drawn here."""
        with self._locked():
            rows = self._rows()
            if not rows and heard == 0:
                rows = {0: Kept(secret_rows(1, dim)[0], frozenset())}
                self._write(rows)
            return self._checked(rows, heard, number, dim)

    def keep(self, heard: int, number: int, told: Kept | None = None) -> None:
        """Forget what the server did not count, and add the row of round `number` before anybody is told of it."""
        with self._locked():
            rows = self._rows()
            counted = self._checked(rows, heard, number, len(rows[max(rows)].row) if rows else 0)
            self._write({heard: counted} | ({} if told is None else {number: told}))

    def _checked(self, rows: dict[int, Kept], heard: int, number: int, dim: int) -> Kept:
        if heard not in rows:
            raise FedawsError(
                f"the server says that it counted this node in round {heard}; its own file, {self.path}, has "
                f"{sorted(rows) or 'no row'}: the server has lost rounds or lies; begin a new run"
            )
        if not max(heard + 1, *rows) <= number:
            raise FedawsError(f"round {number} after round {max(rows)} of the same run; rounds only rise")
        if rows[heard].row.shape != (dim,):
            raise FedawsError(f"{self.path} has a row of {len(rows[heard].row)} numbers; the server's model has {dim}")
        return rows[heard]

    def _locked(self) -> AbstractContextManager[Any]:
        from filelock import FileLock  # noqa: PLC0415 - a tenth of a second that others need not wait for

        return FileLock(self.path.with_name(f".{self.path.name}.lock"), timeout=60)

    def _rows(self) -> dict[int, Kept]:
        if not self.path.exists():
            return {}
        if os.name == "posix" and stat.S_IMODE(self.path.stat().st_mode) & 0o077:
            raise FedawsError(f"others can read {self.path}; first: chmod 600 {self.path}")
        tensors, about = read_safetensors(self.path)
        try:
            rows = {int(n): Kept(row, frozenset(parse_json(about[n], str(self.path)))) for n, row in tensors.items()}
        except (KeyError, TypeError, ValueError):
            rows = {}
        if not rows or not all(kept.row.ndim == 1 and kept.row.dtype == torch.float32 for kept in rows.values()):
            raise FedawsError(f"{self.path} is damaged; a new run begins with a new row")
        return rows

    def _write(self, rows: Mapping[int, Kept]) -> None:
        tensors = {str(number): kept.row.contiguous() for number, kept in rows.items()}
        names = {str(number): json.dumps(sorted(kept.names)) for number, kept in rows.items()}
        with atomically(self.path, 0o600) as file:
            file.write(save(tensors, names))


def untold(
    heard: Mapping[str, int], everybody: Collection[str], summed: Collection[str], min_cohort: int
) -> str | None:
    """Why a node must not tell of its row in this sum, if it must not: what the server learns is about all, or nobody.

    `heard` is by the cohort's names when each was last counted; `summed` are those who were counted with this node.

    >>> untold({"a": 3, "b": 3}, ["a", "b", "c"], ["a", "b"], 2)
    '1 of 3 nodes are not asked'
    """
    missing, gone = set(everybody) - heard.keys(), set(summed) - heard.keys()
    newcomers = sum(number == 0 for number in heard.values())
    if gone:
        return f"{len(gone)} of the nodes that were counted have left; begin a new run without them"
    if missing or heard.keys() - set(everybody):
        return f"{len(missing)} of {len(set(everybody))} nodes are not asked"
    if len({number for number in heard.values() if number}) > 1:
        return "nodes were counted in different rounds"
    if 0 < newcomers < min_cohort:
        return f"{newcomers} nodes are new; wanted none, or {min_cohort} at a time"
    return None
