"""Sets of the Extreme Classification Repository, and others in its forms: text, or pairs of .npz matrices."""

import hashlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedaws.data.label_sets import as_sparse
from fedaws.data.sources.array_cache import Arrays, cached
from fedaws.data.sources.npz import read_npz
from fedaws.data.sources.xc_text import Matrices, read_text, widest
from fedaws.errors import FedawsError, MissingData
from fedaws.hashing import fold
from fedaws.sparse import SparseRows

_VERSION = "xc-1"  # of what the cache holds; raise it when the reader changes what it gives
_REPOSITORY = "http://manikvarma.org/downloads/XC/XMLRepository.html"
_ARRAYS = {"features", "values", "feature_starts", "labels", "label_starts", "widths"}
_PAIRS = (("X.{}.npz", "Y.{}.npz", ("trn", "tst")), ("X_{}.npz", "Y_{}.npz", ("train", "test")))


@dataclass(frozen=True)
class Shape:
    """The published figures of a set, and where it is to be had."""

    features: int
    labels: int
    train: int
    test: int
    labels_per_example: float
    features_per_example: float  # not in the paper's table: about what the bag-of-words files have
    head: float  # of the generator: labels that are about as frequent as the most frequent one
    propensity: tuple[float, float] = (0.55, 1.5)  # A and B of Jain et al. 2016
    home: str = _REPOSITORY


SETS = {
    "delicious": Shape(500, 983, 12_920, 3_185, 19.03, 18.2, 30),
    "yso-finna-en": Shape(42_722, 17_913, 505_064, 125_698, 2.37, 11.2, 100, home="the Annif corpora of NatLibFi"),
    "amazoncat-13k": Shape(203_882, 13_330, 1_186_239, 306_782, 5.04, 71.2, 2.2),
    "wikilshtc-325k": Shape(1_617_899, 325_056, 1_778_351, 587_084, 3.19, 42.1, 20, (0.5, 0.4)),
    "amazon-670k": Shape(135_909, 670_091, 490_449, 153_025, 5.45, 75.7, 200, (0.6, 2.6)),
}


class Split(NamedTuple):
    """Sparse examples and their label sets."""

    x: SparseRows
    labels: SparseRows


def xc(name: str, roots: Iterable[Path], cache: Path) -> tuple[Split, Split]:
    """The training and the test part of a named set; `xc` is whatever lies in the first root itself."""
    roots = list(roots)
    if name == "xc" and not roots:
        raise FedawsError("data.name=xc needs the folder with train.txt and test.txt; set data.root")
    folder = roots[0] if name == "xc" else _find(name, roots, cache)
    if folder is None:
        raise MissingData(
            f"{name} is not below {' or '.join(map(str, [*roots, cache]))}; get its bag-of-words version from "
            f"{SETS[name].home} and put train.txt and test.txt into {(roots or [cache])[0] / name}"
        )
    train, test = (_split(folder, part, cache / "xc") for part in (0, 1))
    for a, b, what in ((train.x, test.x, "features"), (train.labels, test.labels, "labels")):
        if a.width != b.width:
            raise FedawsError(
                f"{folder}: training part of {a.width} {what}, test part of {b.width}; wanted the same number: "
                "they are not of one set"
            )
    return train, test


def some_rows(split: Split, count: int | None) -> Split:
    """So many of the rows at random, the same for every seed, so that runs are compared on the same ones."""
    if count is None or count >= len(split.x):
        return split
    rng = torch.Generator().manual_seed(fold(*b"test rows"))
    rows = torch.randperm(len(split.x), generator=rng)[:count].sort().values
    return Split(split.x.index_select(0, rows), split.labels.index_select(0, rows))


def to_split(arrays: Arrays) -> Split:
    """From the arrays of the cache."""
    if arrays.keys() != _ARRAYS or arrays["widths"].shape != (2,):
        raise FedawsError(f"arrays {', '.join(arrays)}; wanted {', '.join(_ARRAYS)}, with two widths")
    widths = list(map(int, arrays["widths"].tolist()))
    part = {name: torch.from_numpy(array) for name, array in arrays.items()}
    x = SparseRows(part["features"], part["values"], part["feature_starts"], widths[0])
    labels = SparseRows(part["labels"], None, part["label_starts"], widths[1])
    return Split(as_sparse(x), as_sparse(labels, "labels", values=False))


def to_arrays(matrices: Matrices) -> Arrays:
    """What the cache holds of a part."""
    widths = np.array([matrices.num_features, matrices.num_labels], dtype=np.int64)
    arrays = {name: array for name, array in matrices._asdict().items() if isinstance(array, np.ndarray)}
    return arrays | {"widths": widths}


# --- where they are -------------------------------------------------------------------------------------------------


def _find(name: str, roots: list[Path], cache: Path) -> Path | None:
    """The folder of a set: a root itself, or below it or its `xc` one that is named like the set, however spelt."""
    for root in [*roots, cache]:
        try:
            if _files(root, 0):
                return root
            for parent in (root, root / "xc"):
                folders = sorted(parent.iterdir()) if parent.is_dir() else []
                for folder in folders:
                    if _plain(folder.name) == _plain(name) and folder.is_dir() and _files(folder, 0):
                        return folder
        except OSError as error:
            raise FedawsError(
                f"cannot look into {root}: {error.strerror or error}; make it readable or set data.root"
            ) from None
    return None


def _plain(name: str) -> str:
    return re.sub(r"\.bow$|[^a-z0-9]", "", name.lower())


def _files(folder: Path, part: int) -> tuple[Path, ...]:
    """The files of the training (0) or test (1) part: one text, or a pair of matrices; nothing if there are none."""
    word = ("train", "test")[part]
    texts = [folder / f"{word}.txt", *sorted(folder.glob(f"*_{word}.txt"))]
    for text in texts:
        if text.is_file():
            return (text,)
    for x, y, parts in _PAIRS:
        pair = folder / x.format(parts[part]), folder / y.format(parts[part])
        if all(path.is_file() for path in pair):
            return pair
    return ()


def _split(folder: Path, part: int, cache: Path) -> Split:
    files = _files(folder, part)
    if not files:
        word = ("train", "test")[part]
        raise FedawsError(f"{folder} has no {word}.txt, nor {' and '.join(_pair_names(part))}; add its {word} part")
    resolved = [path.resolve() for path in files]
    facts = [(str(path), os.stat(path).st_size, os.stat(path).st_mtime_ns) for path in resolved]
    digest = hashlib.sha256("\0".join(map(str, resolved)).encode("utf-8", "surrogateescape")).hexdigest()[:16]
    place = cache / f"{folder.resolve().name[:80]}-{files[0].stem[:80]}-{digest}.safetensors"
    arrays = cached(place, f"{_VERSION} {facts}", lambda: to_arrays(_read(files)))
    try:
        return to_split(arrays)
    except FedawsError as error:
        raise FedawsError(f"{place}: {error}; delete it") from None


def _pair_names(part: int) -> tuple[str, str]:
    x, y, parts = _PAIRS[0]
    return x.format(parts[part]), y.format(parts[part])


def _read(files: tuple[Path, ...]) -> Matrices:
    if len(files) == 1:
        return read_text(files[0])
    x, y = (_read_npz(path) for path in files)
    if len(x.starts) != len(y.starts):
        raise FedawsError(f"{files[0]} has {len(x.starts) - 1} rows, {files[1]} {len(y.starts) - 1}; wanted as many")
    kept = y.values != 0
    label_starts = np.concatenate([np.zeros(1, np.int64), kept.cumsum(dtype=np.int64)])[y.starts]
    return Matrices(x.indices, x.values, x.starts, y.indices[kept], label_starts, x.width, y.width)


# --- .npz -----------------------------------------------------------------------------------------------------------


class _Csr(NamedTuple):
    indices: NDArray[np.int32]
    values: NDArray[np.float32]
    starts: NDArray[np.int64]
    width: int


def _read_npz(path: Path) -> _Csr:
    """A matrix as `scipy.sparse.save_npz` writes it, checked."""
    fix = "save it anew: scipy.sparse.save_npz"
    parts = read_npz(path, ("format", "shape", "indptr", "indices", "data"), "sparse matrix", fix)
    try:
        return _checked(path, **parts)
    except FedawsError:
        raise
    except ValueError as error:
        raise FedawsError(f"{path} is not a sound sparse matrix ({error}); {fix}") from None


def _checked(
    path: Path,
    format: NDArray[Any],
    shape: NDArray[Any],
    indptr: NDArray[Any],
    indices: NDArray[Any],
    data: NDArray[Any],
) -> _Csr:
    if format.ndim or format.item() not in (b"csr", "csr"):
        raise ValueError("its format is another, wanted csr")
    if shape.shape != (2,) or any(part.dtype.kind not in "iu" for part in (shape, indptr, indices)):
        raise ValueError("its shape, row starts or columns are not whole numbers")
    if any(part.ndim != 1 for part in (indptr, indices, data)) or data.dtype.kind not in "biuf":
        raise ValueError("its row starts, columns or values are not lists of real numbers")
    rows, width = map(int, shape)
    if not 1 <= width <= widest(path):
        raise ValueError(f"it has {width:,} columns; wanted 1 to {widest(path):,} in a file of this size")
    starts = indptr.astype(np.int64)
    if rows < 1 or len(starts) != rows + 1 or starts[0] != 0 or (starts[1:] < starts[:-1]).any():
        raise ValueError(f"row starts that do not fit {rows} rows")
    if not starts[-1] == len(indices) == len(data):
        raise ValueError(f"{len(indices)} columns, {len(data)} values, wanted {starts[-1]} of both")
    with np.errstate(all="ignore"):  # what is not finite afterwards is refused below
        values = data.astype(np.float32)
    for wrong, what in (
        ((indices < 0) | (indices >= width), f"a column that is not 0 to {width - 1}"),
        (~((values >= 0) & (values < np.inf)), "a value that is negative or not finite"),
    ):
        if wrong.any():
            row = int(np.searchsorted(starts, wrong.argmax(), side="right")) - 1
            raise FedawsError(f"{path}, row {row}: {what}; drop or mend it")
    return _Csr(indices.astype(np.int32), values, starts, width)
