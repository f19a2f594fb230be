"""Data of exactly the shape of a public extreme-classification set, with something to learn in it, from a seed.

Labels come in groups of about 64, frequent and rare ones in each. An example has a label drawn from the long tail and
the next ones of its group; its features are those of its labels, those of their group, and words that say nothing.
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedaws.data.label_sets import Split
from fedaws.data.sources.array_cache import Arrays, cached
from fedaws.data.sources.xc import SETS, Shape, to_arrays, to_split
from fedaws.errors import FedawsError
from fedaws.hashing import Word, hash64, hash_tensor
from fedaws.sparse import SparseRows, starts_of

_VERSION = "xc-synthetic-2"
_GROUP = 64
_OWN = 8  # features of a label, and of a group
_FROM_LABEL, _FROM_GROUP = 0.45, 0.7  # up to here an entry is of a label, of a group; else it says nothing
_CHUNK = 100_000  # examples made at once
_LARGE = 5_000_000  # entries from which on they are kept in the cache
_PARTS: dict[str, Word] = {"train": "xctrain", "test": "xctest"}


def xc_synthetic(like: str, scale: float, seed: int, cache: Path) -> tuple[Split, Split]:
    """Training and test part of the shape of the set `like`, or of that times `scale` in every direction."""
    if like not in SETS:
        raise FedawsError(f"data.like={like}; wanted one of {', '.join(SETS)}")
    shape = scaled(SETS[like], scale)
    train, test = (_part(shape, f"{like}-{scale:g}-{seed}-{word}", seed, word, cache) for word in ("train", "test"))
    return train, test


def scaled(shape: Shape, scale: float) -> Shape:
    """A set with a part of the features, labels and examples, but as many of them per example, as far as there are."""
    features, labels = (max(2, round(scale * count)) for count in (shape.features, shape.labels))
    return Shape(
        features,
        labels,
        max(1, round(scale * shape.train)),
        max(1, round(scale * shape.test)),
        min(shape.labels_per_example, labels / 4 + 1),
        min(shape.features_per_example, features / 4 + 1),
        max(0.5, shape.head * scale),
        shape.propensity,
    )


def _part(shape: Shape, name: str, seed: int, word: str, cache: Path) -> Split:
    rows = shape.train if word == "train" else shape.test

    def build() -> Arrays:
        return to_arrays(generate(shape, rows, seed, word))

    if rows * shape.features_per_example < _LARGE:
        return generate(shape, rows, seed, word)
    return to_split(cached(cache / "xc" / f"synthetic-{name}.safetensors", f"{_VERSION} {shape} {seed}", build))


def generate(shape: Shape, rows: int, seed: int, word: str) -> Split:
    """So many examples of a shape; `word` names the part, so that training and test differ."""
    chunks = [
        _chunk(shape, min(_CHUNK, rows - start), seed, hash64(seed, _PARTS[word], start))
        for start in range(0, rows, _CHUNK)
    ]
    labels, label_counts, features, values, feature_counts = map(torch.cat, zip(*chunks, strict=True))
    return Split(
        SparseRows(features.to(torch.int32), values, starts_of(feature_counts), shape.features),
        SparseRows(labels.to(torch.int32), None, starts_of(label_counts), shape.labels),
    )


def _chunk(shape: Shape, rows: int, seed: int, key: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(key)
    groups = max(1, shape.labels // _GROUP)
    # Label l is member l // groups of group l % groups, so that each group has frequent and rare ones.
    first = _long_tail(torch.rand(rows, generator=rng), shape.labels, shape.head)
    group = first % groups
    size = (shape.labels - 1 - group) // groups + 1
    counts = _counts(rows, shape.labels_per_example, rng).minimum(size)
    row = torch.arange(rows).repeat_interleave(counts)
    starts = counts.cumsum(0) - counts
    within = torch.arange(len(row)) - starts[row]
    labels = group[row] + (first[row] // groups + within) % size[row] * groups

    feature_counts = _counts(rows, shape.features_per_example, rng)
    row = torch.arange(rows).repeat_interleave(feature_counts)
    source, place = torch.rand(len(row), generator=rng), torch.rand(len(row), generator=rng)
    label = labels[starts[row] + (torch.rand(len(row), generator=rng) * counts[row]).long()]
    which = torch.randint(_OWN, (len(row),), generator=rng)
    # The features of a label and of a group are the same for every example: random numbers from their hashes.
    owner = torch.where(source < _FROM_LABEL, label, -1 - group[row])
    owned = hash_tensor(hash64(seed, "features"), owner, which).to(torch.float32) / 2.0**40
    features = _long_tail(torch.where(source < _FROM_GROUP, owned, place), shape.features, shape.features / 1000)
    row, features = _distinct(row, features, shape.features, rng)
    rarity = torch.log1p(features.to(torch.float32)) / np.log1p(shape.features)  # as tf-idf: rare words count more
    values = (0.1 + rarity) * (0.5 + torch.rand(len(row), generator=rng))
    return labels, counts, features, values, torch.bincount(row, minlength=rows)


def _distinct(row: Tensor, features: Tensor, count: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Each row's features in order; what stands twice gives way to any other feature, or to none if that is there."""
    pairs = (row * count + features).sort().values
    twice = torch.nn.functional.pad(pairs[1:] == pairs[:-1], (1, 0))
    again = torch.randint(count, (int(twice.sum()),), generator=rng)
    pairs[twice] = pairs[twice] // count * count + again
    pairs = pairs.sort().values.unique_consecutive()
    return pairs // count, pairs % count


def _long_tail(uniform: Tensor, count: int, head: float) -> Tensor:
    """Numbers below `count`, the n-th with probability ∝ 1 / (n + head): q ((count/q + 1)^u − 1)."""
    drawn = head * torch.expm1(uniform.to(torch.float64) * np.log1p(count / head))
    return drawn.long().clamp_(0, count - 1)


def _counts(rows: int, mean: float, rng: torch.Generator) -> Tensor:
    """At least one each, so many on the average."""
    return 1 + torch.poisson(torch.full((rows,), mean - 1), generator=rng).long()
