"""An approximate index of the class embeddings, for those who identify few examples at a time among very many classes.

The rows of W are sorted into cells around k-means centres (an inverted file, faiss); a search looks into the few cells
nearest to the example. Scores of what it finds are exact; what lies in other cells is missed.
"""

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedaws.errors import FedawsError
from fedaws.evaluate.model import REMOVED
from fedaws.evaluate.precision import Ranking

_TRAINING = 64  # rows for each cell that k-means sees


class ClassIndex:
    """The rows of W in about √C cells; a class's `shift` is taken from its scores."""

    def __init__(self, W: Tensor, cells: int | None = None, shift: Tensor | None = None) -> None:
        self._shifted = shift is not None
        faiss, rows = _faiss(), _array(W if shift is None else torch.cat([W, -shift[:, None]], 1))
        self.num_classes, dim = rows.shape
        self.cells = max(1, round(math.sqrt(len(W)))) if cells is None else cells
        if not 1 <= self.cells <= len(W):
            raise FedawsError(f"cells={cells}; wanted 1 to {len(W)}, the number of classes")
        self._centres = faiss.IndexFlatIP(dim)  # held here too: the index does not keep it alive
        self._index = faiss.IndexIVFFlat(self._centres, dim, self.cells, faiss.METRIC_INNER_PRODUCT)
        self._index.cp.min_points_per_centroid, self._index.cp.max_points_per_centroid = 1, _TRAINING
        self._index.train(rows)
        self._index.add(rows)

    def rank(self, embeddings: Tensor, k: int, probes: int = 16) -> Ranking:
        """The k best classes in the `probes` nearest cells, best first; where they hold fewer, class −1 at score −∞."""
        if probes < 1:
            raise FedawsError(f"probes={probes}; wanted at least one cell to look into")
        self._index.nprobe = min(probes, self.cells)
        queries = F.pad(embeddings, (0, 1), value=1.0) if self._shifted else embeddings  # (g, 1) · (w, −shift)
        results = self._index.search(_array(queries), min(k, self.num_classes))
        scores, classes = (torch.from_numpy(array).to(embeddings.device) for array in results)
        classes = classes.masked_fill(scores <= REMOVED / 2, -1)
        return Ranking(classes, scores.masked_fill_(classes < 0, -torch.inf))


def _array(rows: Tensor) -> Any:
    return np.ascontiguousarray(rows.detach().cpu().numpy(), dtype=np.float32)


def _faiss() -> Any:
    try:
        import faiss  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise FedawsError(f"an index needs faiss ({error}); pip install 'fedaws[index]'") from None
    return faiss
