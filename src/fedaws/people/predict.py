"""The likeliest classes of the examples in a file, some at a time."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray

from fedaws.data.label_sets import has_features
from fedaws.data.sources import xc_text
from fedaws.data.sources.xc import read_matrix
from fedaws.errors import FedawsError
from fedaws.evaluate.model import REMOVED
from fedaws.people.inputs import read_examples
from fedaws.sparse import SparseRows
from fedaws.training.run import Run

BATCH = 4096
"""Examples at a time."""


class Guess(NamedTuple):
    """A class that an example may be of."""

    name: str
    score: float


def predict(
    run: Run, x: SparseRows | NDArray[Any], k: int, batch: int = BATCH, names: Sequence[str] | None = None
) -> Iterator[list[Guess]]:
    """The k likeliest classes of every example, best first; by the run's own names unless others are given."""
    if batch < 1:
        raise FedawsError(f"batch={batch}; wanted one example or more at a time")
    for start in range(0, len(x), batch):
        found = run.identify(x[start : start + batch], k)
        called = (
            run.names_of(found.classes) if names is None else [[names[c] for c in r] for r in found.classes.tolist()]
        )
        for row, scores in zip(called, found.scores.tolist(), strict=True):
            yield [Guess(str(name), score) for name, score in zip(row, scores, strict=True) if score > REMOVED]


def rows_without_features(x: SparseRows | NDArray[Any]) -> list[int]:
    """The numbers of sparse examples that say nothing: all classes score alike on them."""
    return (~has_features(x)).nonzero().flatten().tolist() if isinstance(x, SparseRows) else []


def read_file(run: Run, path: Path) -> SparseRows | NDArray[Any]:
    """Its examples: sparse ones from a text of the XC repository (labels are passed over) or a matrix by scipy.

    Dense ones are read as everywhere: an .npz with an array x, pictures, recordings.
    """
    if run.config.model.name != "bag":
        return read_examples([path], run)
    return read_matrix(path) if path.suffix.lower() == ".npz" else xc_text.read_text(path).x
