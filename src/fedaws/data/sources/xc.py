"""Sets of the Extreme Classification Repository, and others in its forms: text, or pairs of .npz matrices."""

import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from fedaws import files
from fedaws.data.label_sets import Split, as_sparse
from fedaws.data.sources.array_cache import Arrays, cached
from fedaws.data.sources.npz import read_npz
from fedaws.data.sources.xc_text import Header, read_header, read_text, widest
from fedaws.errors import FedawsError, MissingData
from fedaws.hashing import fold
from fedaws.sparse import SparseRows, from_numpy

_VERSION = "xc-1"  # of what the cache holds; raise it when the reader changes what it gives
_REPOSITORY = "http://manikvarma.org/downloads/XC/XMLRepository.html"
_ARRAYS = ("features", "values", "feature_starts", "labels", "label_starts", "widths")
_WORDS = ("train", "test")
NAMES = "labels.txt"
_FIX = "save it anew: scipy.sparse.save_npz"
_PAIRS = (  # of matrices: examples and labels of the training part, then of the test part
    (("X.trn.npz", "Y.trn.npz"), ("X.tst.npz", "Y.tst.npz")),
    (("X_train.npz", "Y_train.npz"), ("X_test.npz", "Y_test.npz")),
)


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


_DERIVED = "NatLibFi's Annif corpora by benchmarks/make_yso.py (docs/extreme-classification.md)"
_MADE = "github.com/staeiou/arxiv_archive by benchmarks/make_arxiv_authors.py"

SETS = {
    "delicious": Shape(500, 983, 12_920, 3_185, 19.03, 18.2, 30),
    "yso-finna-en": Shape(42_722, 17_913, 505_064, 125_698, 2.37, 11.2, 100, home=_DERIVED),
    "arxiv-authors": Shape(69_814, 248_544, 552_480, 130_733, 2.47, 30.0, 300, home=_MADE),
    "amazoncat-13k": Shape(203_882, 13_330, 1_186_239, 306_782, 5.04, 71.2, 2.2),
    "wikilshtc-325k": Shape(1_617_899, 325_056, 1_778_351, 587_084, 3.19, 42.1, 20, (0.5, 0.4)),
    "amazon-670k": Shape(135_909, 670_091, 490_449, 153_025, 5.45, 75.7, 200, (0.6, 2.6)),
}


def xc(name: str, roots: Iterable[Path], cache: Path, tested: bool = True) -> tuple[Split, Split | None]:
    """The training and the test part of a named set; `xc` is whatever lies in the first root itself.

    If the test part is not `tested` on, it is not read and need not be there.
    """
    roots = list(roots)
    if name == "xc" and not roots:
        raise FedawsError("data.name=xc needs the folder with train.txt and test.txt; set data.root")
    folder = roots[0] if name == "xc" else _find(name, roots, cache)
    if folder is None:
        raise MissingData(
            f"{name} is not below {' or '.join(map(str, [*roots, cache]))}; make or get its bag-of-words version from "
            f"{SETS[name].home} and put train.txt and test.txt into {(roots or [cache])[0] / name}"
        )
    train = _split(folder, 0, cache / "xc")
    if not tested:
        return train, None
    test = _split(folder, 1, cache / "xc")
    for a, b, what in ((train.x, test.x, "features"), (train.labels, test.labels, "labels")):
        if a.width != b.width:
            raise FedawsError(
                f"{folder}: training part of {a.width} {what}, test part of {b.width}; wanted the same number: "
                "they are not of one set"
            )
    return train, test


def label_names(name: str, roots: Iterable[Path], cache: Path, classes: int) -> list[str] | None:
    """The labels' names by the file beside the training part, if there is one; one that comes again gets a number."""
    roots = list(roots)
    folder = roots[0] if name == "xc" else _find(name, roots, cache)
    if folder is None or not (folder / NAMES).is_file():
        return None
    names = read_names(folder / NAMES, classes, 20_000_000)  # every checkpoint has them
    seen = Counter(names)
    return [name if name and seen[name] == 1 else f"{name} #{number}".strip() for number, name in enumerate(names)]


def read_names(path: Path, classes: int, longest: int = 1 << 30) -> list[str]:
    """A name per class, each on a line of its own; what is not printable becomes a space."""
    lines = files.read_text(path, longest).removesuffix("\n").split("\n")
    if len(lines) != classes:
        raise FedawsError(f"{path} has {len(lines):,} lines for {classes:,} classes; wanted one name per line")
    return [" ".join("".join(c if c.isprintable() else " " for c in line).split()) for line in lines]


def other_data(name: str, roots: Iterable[Path], cache: Path) -> tuple[Path, Header] | None:
    """Where a named set is looked for and other data lie: their folder, and how large their training part is.

    They are other data if these numbers are not the set's.
    """
    folder = _find(name, list(roots), cache)
    if folder is None:
        return None
    first, *second = _files(folder, 0)
    header = Header(*_shape(first), _shape(second[0])[1]) if second else read_header(first)
    known = SETS[name]
    return None if header == (known.train, known.features, known.labels) else (folder, header)


def _shape(path: Path) -> tuple[int, int]:
    shape = read_npz(path, ("shape",), "sparse matrix", _FIX)["shape"]
    if shape.shape != (2,) or shape.dtype.kind not in "iu":
        raise FedawsError(f"{path} is not a sound sparse matrix (its shape is not two whole numbers); {_FIX}")
    return int(shape[0]), int(shape[1])


def some_rows(split: Split, count: int | None) -> Split:
    """So many of the rows at random, the same for every seed, so that runs are compared on the same ones."""
    if count is None or count >= len(split.x):
        return split
    rng = torch.Generator().manual_seed(fold(*b"test rows"))
    rows = torch.randperm(len(split.x), generator=rng)[:count].sort().values
    return Split(split.x.index_select(0, rows), split.labels.index_select(0, rows))


def to_split(arrays: Arrays) -> Split:
    """From the arrays of the cache."""
    if arrays.keys() != set(_ARRAYS) or arrays["widths"].shape != (2,):
        raise FedawsError(f"arrays {', '.join(arrays)}; wanted {', '.join(_ARRAYS)}, with two widths")
    features, values, feature_starts, labels, label_starts, widths = (arrays[name] for name in _ARRAYS)
    most = widest(32 * (features.size + labels.size))  # more than their text has bytes
    if widths.max() > most:
        raise FedawsError(f"{int(widths.max()):,} columns; wanted at most {most:,} for so few entries")
    x = from_numpy(features, values, feature_starts, int(widths[0]))
    sets = from_numpy(labels, None, label_starts, int(widths[1]))
    return Split(as_sparse(x), as_sparse(sets, "labels", values=False))


def to_arrays(split: Split) -> Arrays:
    """What the cache holds of a part."""
    x, labels = split
    widths = torch.tensor([x.width, labels.width])
    tensors = (x.indices, x.values, x.starts, labels.indices, labels.starts, widths)
    return {name: tensor.numpy() for name, tensor in zip(_ARRAYS, tensors, strict=True) if tensor is not None}


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
    texts = [folder / f"{_WORDS[part]}.txt", *sorted(folder.glob(f"*_{_WORDS[part]}.txt"))]
    pairs = [tuple(folder / name for name in pair[part]) for pair in _PAIRS]
    choices: list[tuple[Path, ...]] = [*((text,) for text in texts), *pairs]
    return next((files for files in choices if all(path.is_file() for path in files)), ())


def _split(folder: Path, part: int, cache: Path) -> Split:
    files = _files(folder, part)
    if not files:
        word, pair = _WORDS[part], " and ".join(_PAIRS[0][part])
        instead = ", or set data.validation=0.2 to test on training rows held out" if part else ""
        raise FedawsError(f"{folder} has no {word}.txt, nor {pair}; add its {word} part{instead}")
    resolved = [path.resolve() for path in files]
    facts = [(str(path), os.stat(path).st_size, os.stat(path).st_mtime_ns) for path in resolved]
    digest = hashlib.sha256("\0".join(map(str, resolved)).encode("utf-8", "surrogateescape")).hexdigest()[:16]
    place = cache / f"{folder.resolve().name[:80]}-{files[0].stem[:80]}-{digest}.safetensors"
    arrays = cached(place, f"{_VERSION} {facts}", lambda: to_arrays(read_part(files)))
    try:
        return to_split(arrays)
    except FedawsError as error:
        raise FedawsError(f"{place}: {error}; delete it") from None


def read_part(files: tuple[Path, ...]) -> Split:
    """One text, or a pair of matrices."""
    if len(files) == 1:
        return read_text(files[0])
    x = read_matrix(files[0])
    labels = read_matrix(files[1], values=False)
    if len(x) != len(labels):
        raise FedawsError(f"{files[0]} has {len(x)} rows, {files[1]} {len(labels)}; wanted as many")
    return Split(x, labels)


def read_matrix(path: Path, values: bool = True) -> SparseRows:
    """A matrix as `scipy.sparse.save_npz` writes it, checked; without `values` a set of columns per row."""
    names = ("format", "shape", "indptr", "indices", "data")
    form, shape, starts, columns, numbers = read_npz(path, names, "sparse matrix", _FIX).values()
    flaw, most = None, widest(path.stat().st_size)
    if form.ndim or form.item() not in (b"csr", "csr"):
        flaw = "its format is another, wanted csr"
    elif shape.shape != (2,) or any(part.dtype.kind not in "iu" for part in (shape, starts, columns)):
        flaw = "its shape, row starts or columns are not whole numbers"
    elif any(part.ndim != 1 for part in (starts, columns, numbers)) or numbers.dtype.kind not in "biuf":
        flaw = "its row starts, columns or values are not lists of real numbers"
    elif not 1 <= shape[1] <= most:
        flaw = f"it has {shape[1]:,} columns; wanted 1 to {most:,} in a file of this size"
    elif not 1 <= shape[0] == len(starts) - 1:
        flaw = f"it has {len(starts)} row starts for {shape[0]} rows"
    if flaw:
        raise FedawsError(f"{path} is not a sound sparse matrix ({flaw}); {_FIX}")
    with np.errstate(all="ignore"):  # what does not fit is then below 0 or not finite, and refused
        parts = columns.astype(np.int64), numbers.astype(np.float32), starts.astype(np.int64)
    rows = as_sparse(from_numpy(*parts, int(shape[1])), str(path), values)
    return replace(rows, indices=rows.indices.to(torch.int32))
