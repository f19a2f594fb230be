"""Where the classes are: cosines between all of them, and a picture of them in two dimensions."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fedaws.core.mining import nearest
from fedaws.report.run_data import Trace

MOST_IN_A_MATRIX = 100
NEAREST_PAIRS = 12
BINS = 40
_WHOLE = 340_000_000_000
"""Multiplications for the nearest pairs of all runs together, seven seconds on one core: enough for four runs of 17,913
classes and 512 dimensions."""
_PRODUCTS = 60_000_000_000  # a second, where not all classes can be searched
_TILE = 256  # rows
_SAMPLED = 1_000  # classes whose pairs make the histogram of many
_MOST_DRAWN = 160
_MOST_ON_A_RING = 40
_STANDS_OUT = 0.4  # length of the mean of unit rows
_SIN, _COS = 0.8, 0.6


@dataclass(frozen=True)
class Cosines:
    """Cosines between class embeddings."""

    classes: int
    matrix: Tensor | None  # [C, C] if they are few
    histogram: list[int]  # of pairs, in `BINS` bins from −1 to 1
    pairs: list[tuple[int, int, float]]  # the nearest ones, nearest first
    searched: int  # classes whose neighbours were looked for
    mean: float


def cosines(W: Tensor, shares: int = 1) -> Cosines:
    """All cosines of few classes; of many a histogram and the nearest pairs.

    `shares` is among how many such searches the time is shared out: each then looks at fewer classes.

    >>> nearest_pairs = cosines(torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])).pairs
    >>> [(a, b, round(cosine, 3)) for a, b, cosine in nearest_pairs]
    [(1, 2, 0.8), (0, 1, 0.6), (0, 2, 0.0)]
    """
    rows = normalize(W)
    count = len(W)
    if count <= MOST_IN_A_MATRIX:
        matrix = (rows @ rows.T).clamp(-1, 1)
        left, right = torch.triu_indices(count, count, 1)
        values = matrix[left, right]
        searched = count
        order = values.argsort(descending=True, stable=True)[:NEAREST_PAIRS]
        pairs = list(zip(left[order].tolist(), right[order].tolist(), values[order].tolist(), strict=True))
    else:
        matrix = None
        chosen = torch.randperm(count, generator=torch.Generator().manual_seed(0))[:_SAMPLED]
        left, right = torch.triu_indices(len(chosen), len(chosen), 1)
        values = (rows[chosen] @ rows[chosen].T)[left, right]
        whole = shares * count * count * rows.shape[1] // 2 <= _WHOLE
        searched = count if whole else max(2, min(count - 1, _PRODUCTS // max(1, shares) // (count * rows.shape[1])))
        pairs = _nearest_of_all(rows) if whole else _nearest_pairs(rows, searched)
    histogram = torch.histc(values, BINS, -1, 1).long().tolist()
    return Cosines(count, matrix, histogram, pairs, searched, float(values.mean()))


def _nearest_of_all(rows: Tensor) -> list[tuple[int, int, float]]:
    """Every pair once, in tiles from the diagonal to the right; a tile's best pairs are in its best rows."""
    pairs: list[tuple[int, int, float]] = []
    for start in range(0, len(rows), _TILE):
        tile = rows[start : start + _TILE] @ rows[start:].T
        tile[:, : len(tile)].masked_fill_(torch.ones(len(tile), len(tile), dtype=torch.bool).tril_(), -2.0)
        best = tile.amax(1).topk(min(NEAREST_PAIRS, len(tile))).indices.sort().values
        values, places = tile[best].flatten().topk(min(NEAREST_PAIRS, best.numel() * tile.shape[1]))
        left = best[places // tile.shape[1]] + start
        right = places % tile.shape[1] + start
        pairs += zip(left.tolist(), right.tolist(), values.clamp_max(1).tolist(), strict=True)
        pairs = sorted(pairs, key=lambda pair: -pair[2])[:NEAREST_PAIRS]
    return [pair for pair in pairs if pair[2] >= -1]


def _nearest_pairs(rows: Tensor, searched: int) -> list[tuple[int, int, float]]:
    """Each of the searched classes with its nearest; a pair that finds each other counts once."""
    cohort = torch.linspace(0, len(rows) - 1, searched).long()
    closest = nearest(rows, cohort, None, 1).squeeze(1)
    values = (rows[cohort] * rows[closest]).sum(1)
    cosine_of: dict[tuple[int, int], float] = {}
    for place in values.argsort(descending=True, stable=True)[: 2 * NEAREST_PAIRS].tolist():
        a, b = sorted((int(cohort[place]), int(closest[place])))
        cosine_of.setdefault((a, b), float(values[place]))
    return [(a, b, cosine) for (a, b), cosine in cosine_of.items()][:NEAREST_PAIRS]


@dataclass(frozen=True)
class Motion:
    """The classes of a run in the plane, round by round."""

    rounds: list[int]
    classes: list[int]
    places: list[list[tuple[float, float] | None]]  # for each round, for each class; None before it joined
    largest: list[float]  # cosine of two of these classes, for each round
    mean: list[float]
    share: float  # the part of the last rows' squared length that the plane shows


def motions(runs: Sequence[Sequence[Trace]]) -> tuple[list[Motion], int | None]:
    """All runs and rounds in one plane; and the run whose classes fall together upwards in it, if one's do.

    Across: of the run that is spread best the directions u, v in which few classes lie on a ring, as far as they can (a
    regular simplex does exactly), and many have their longest extent. Where the rows of some run have a mean m that
    stands out, we look at u, v and m from a slant: up is v cos τ + m sin τ. That is a plane too, and the same always.
    """
    ends = [normalize(traces[-1].rows) for traces in runs]
    means = [float(rows.mean(0).norm()) for rows in ends]
    best = ends[means.index(min(means))]
    count, dim = best.shape
    if count <= min(dim, _MOST_ON_A_RING):
        angle = torch.arange(count) * (2 * math.pi / count)
        left, _, right = torch.linalg.svd(best.T @ torch.stack([angle.cos(), angle.sin()], 1), full_matrices=False)
        plane = left @ right  # [d, 2], the nearest orthonormal pair
    else:
        centred = best - best.mean(0)
        plane = torch.linalg.svd(centred.T @ centred)[0][:, :2]
    fallen = means.index(max(means)) if max(means) > _STANDS_OUT and dim > 2 else None
    if fallen is not None:
        mean = ends[fallen].mean(0)
        mean = normalize((mean - plane @ (plane.T @ mean))[None])[0]
        plane = torch.stack([plane[:, 0], _COS * plane[:, 1] + _SIN * mean], 1)
    return [_motion(traces, plane) for traces in runs], fallen


def _motion(traces: Sequence[Trace], plane: Tensor) -> Motion:
    classes = sorted({c for trace in traces for c in trace.classes.tolist()})
    classes = classes[:: -(-len(classes) // _MOST_DRAWN)]
    places = []
    largest = []
    mean = []
    for trace in traces:
        rows = normalize(trace.rows)
        where = dict(zip(trace.classes.tolist(), (rows @ plane).tolist(), strict=True))
        places.append([(where[c][0], where[c][1]) if c in where else None for c in classes])
        left, right = torch.triu_indices(len(rows), len(rows), 1)
        values = (rows @ rows.T)[left, right]
        largest.append(float(values.max()) if len(values) else 0.0)
        mean.append(float(values.mean()) if len(values) else 0.0)
    end = normalize(traces[-1].rows)
    share = float((end @ plane).square().sum() / end.square().sum().clamp_min(1e-12))
    return Motion([trace.round for trace in traces], classes, places, largest, mean, share)
