"""The likeliest classes of the examples in a file, some at a time."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray

from fedaws.data.sources.xc import read_matrix
from fedaws.data.sources.xc_text import read_text
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


def predict(run: Run, path: Path, k: int, batch: int = BATCH) -> Iterator[list[Guess]]:
    """The k likeliest classes of every example in a file, best first, in the file's order."""
    if batch < 1:
        raise FedawsError(f"batch={batch}; wanted one example or more at a time")
    x = read_file(run, path)
    for start in range(0, len(x), batch):
        found = run.identify(x[start : start + batch], k)
        names = run.names_of(found.classes)
        for row, scores in zip(names, found.scores.tolist(), strict=True):
            yield [Guess(str(name), score) for name, score in zip(row, scores, strict=True) if score > REMOVED]


def read_file(run: Run, path: Path) -> SparseRows | NDArray[Any]:
    """Its examples: sparse ones from a text of the XC repository (labels are passed over) or a matrix by scipy.

    Dense ones are read as everywhere: an .npz with an array x, pictures, recordings.
    """
    if run.config.model.name != "bag":
        return read_examples([path], run)
    return read_matrix(path) if path.suffix.lower() == ".npz" else read_text(path).x
