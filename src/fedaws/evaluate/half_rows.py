"""W in half precision in a file of its own, for identifying among more classes than memory should hold.

The file is read a piece at a time, for every question anew (from the system's cache, if it has room), and never mapped:
a mapped file that somebody cuts short would end the process.
"""

from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from fedaws.core.mining import best_columns
from fedaws.errors import FedawsError
from fedaws.evaluate.model import REMOVED
from fedaws.evaluate.precision import Ranking
from fedaws.files import write_bytes
from fedaws.tensor_files import damaged, read_safetensors, read_tiles, tensor_shapes

_FORMAT = "fedaws-rows-1"
_TILE = 1 << 16  # rows at a time


class HalfRows:
    """The rows in a file by `write_half_rows`; give it to :meth:`fedaws.Run.identify` or :func:`fedaws.load`."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        tensors, about = read_safetensors(self.path, only=("shift",))
        shape = tensor_shapes(self.path).get("W", ())
        if about.get("format") != _FORMAT or len(shape) != 2 or tensors.get("shift", torch.empty(0)).shape != shape[:1]:
            raise FedawsError(f"{self.path} has no rows in half precision; write it by Run.save_half_rows")
        self.model = about.get("model", "")
        self.num_classes, self.dim = shape
        self._shift = tensors["shift"]
        self._known = int((self._shift < -REMOVED / 2).sum())

    def lacks(self, number: int) -> bool:
        """Whether a class has been removed."""
        return bool(self._shift[number] >= -REMOVED / 2)

    def rank(self, embeddings: Tensor, k: int, probes: int = 0) -> Ranking:
        """The k best classes of each embedding [B, d] and their scores, best first; all classes are looked at."""
        k = min(k, self._known)
        best = Ranking(torch.empty(len(embeddings), 0, dtype=torch.int64), torch.empty(len(embeddings), 0))
        for first, tile in self._tiles():
            shift = self._shift[first : first + len(tile)]
            scores, classes = best_columns(embeddings.cpu(), tile, min(k, len(tile)), shift=shift)
            both = Ranking(torch.cat([best.classes, classes + first], 1), torch.cat([best.scores, scores], 1))
            scores, order = both.scores.topk(min(k, both.scores.shape[1]))
            best = Ranking(both.classes.gather(1, order), scores)
        return Ranking(*(part.to(embeddings.device) for part in best))

    def _tiles(self) -> Iterator[tuple[int, Tensor]]:
        for first, tile in read_tiles(self.path, "W", _TILE):
            rows = tile.float()
            if not bool(torch.isfinite(rows).all()):
                raise damaged(self.path, "NaN or infinite values in its rows")
            yield first, rows


def remove_half_row(path: Path, number: int) -> None:
    """Write the file anew without the row of a class."""
    tensors, about = read_safetensors(path)
    tensors["W"][number] = 0
    tensors["shift"][number] = -REMOVED
    write_bytes(path, save(tensors, about))


def write_half_rows(path: Path, W: Tensor, shift: Tensor | None, model: str) -> None:
    """Keep W [C, d] in half precision, what is taken from the classes' scores [C], and which model they belong to."""
    rows = W.detach().cpu().half()
    if not bool(torch.isfinite(rows).all()):
        raise FedawsError(
            f"rows of W are too long for half precision (up to {float(W.abs().max()):.3g}); keep them whole"
        )
    taken = torch.zeros(len(W)) if shift is None else shift.detach().cpu().float()
    write_bytes(path, save({"W": rows.contiguous(), "shift": taken.contiguous()}, {"format": _FORMAT, "model": model}))
