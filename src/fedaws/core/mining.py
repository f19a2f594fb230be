"""Stochastic negative mining: the nearest classes, found exactly and in tiles."""

import warnings
from itertools import pairwise

import torch
from torch import Tensor

from fedaws.core.rows import best_of, here, ids_of, largest, own_part, places_of, put_together, summed
from fedaws.core.sampled_classes import positions
from fedaws.errors import FedawsError
from fedaws.machine import blocks
from fedaws.sparse import starts_of

_ASKED = 3  # so many of its neighbours does a class ask for theirs
_QUERIES = 1024  # rows of a tile
_GROUP = 32  # columns whose maximum is taken first
_ALIGN = 1024  # tile widths, so that group maxima run over whole vector registers


def nearest(
    W: Tensor, cohort: Tensor, candidates: Tensor | None, num_neighbors: int, queries: Tensor | None = None
) -> Tensor:
    r"""N_k(c) within C′, without c: the ids of the k classes nearest to each of the cohort's, nearest first, [m, k].

    `queries` are W[cohort], where they are at hand. Exact, in tiles. Only a group of columns whose maximum passes a
    row's k-th best so far can hold a better one, so the search looks at few groups instead of at every column, and the
    matrix product stays the cost.

    >>> nearest(torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]]), torch.tensor([0, 2]), None, 1)
    tensor([[1],
            [1]])
    """
    available = len(W) if candidates is None else len(candidates)
    if num_neighbors >= available:
        raise FedawsError(
            f"num_neighbors={num_neighbors} needs at least {num_neighbors + 1} candidates, got {available}; "
            "lower spread.neighbors or raise spread.candidates"
        )
    queries = W[cohort] if queries is None else queries
    if candidates is None:  # each process looks among its own rows
        pool = here(W)
        shift = _half_squared_norms(W, pool)
        scores, places = best_columns(queries, pool, num_neighbors, places_of(W, cohort), shift)
        return best_of(W, scores, ids_of(W, places), num_neighbors)[1]
    pool, part = W[candidates], own_part(W, len(cohort))  # for its own queries among all of C′
    own = positions(candidates, cohort[part])
    _, places = best_columns(queries[part], pool, num_neighbors, own, _half_squared_norms(W, pool))
    return put_together(W, candidates[places], len(cohort))


def nearest_known_(
    W: Tensor, cohort: Tensor, candidates: Tensor | None, known: Tensor, queries: Tensor | None = None
) -> Tensor:
    r"""N_k(c) as far as it is known, [m, k], kept in `known` [C, k] (−1: none yet); rows of W have unit length.

    .. math:: N_k(c) \leftarrow \text{the } k \text{ nearest of } C' \cup N_k(c) \cup \bigcup_{y \in N_3(c)} N_k(y)

    A neighbour's neighbours are likely neighbours (NN-descent: Dong, Charikar & Li 2011), so that over the rounds the
    lists come near those over all classes, at the cost of |C′| + 5k scores for each c, however many classes there are.

    >>> W, known = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]]), torch.full((3, 1), -1, dtype=torch.int32)
    >>> known[2] = 1
    >>> nearest_known_(W, torch.tensor([2]), torch.tensor([0, 2]), known)  # 0 is all that is drawn, but 1 was nearer
    tensor([[1]])
    """
    k, queries = known.shape[1], W[cohort] if queries is None else queries
    own = known[cohort].long()
    asked = own[:, :_ASKED]
    theirs = torch.where(asked[:, :, None] < 0, -1, known[asked.clamp_min(0)].long()).flatten(1)
    ids = torch.cat([nearest(W, cohort, candidates, k, queries), own, theirs], 1)
    ids = ids.masked_fill_(ids == cohort[:, None], -1).sort(dim=1).values
    nobody = ids < 0
    nobody[:, 1:] |= ids[:, 1:] == ids[:, :-1]
    scores = _scores_of(W, queries, ids.clamp_min_(0)).masked_fill_(nobody, -torch.inf)
    neighbors = ids.gather(1, scores.topk(k, dim=1).indices)
    known[cohort] = neighbors.to(known.dtype)
    return neighbors


def _scores_of(W: Tensor, queries: Tensor, ids: Tensor) -> Tensor:
    """w_c · w_y of each query w_c with each y of its own ids, [m, n], without a copy of the rows w_y."""
    m, n = ids.shape
    rows, y = here(W), places_of(W, ids)
    known = y >= 0
    if n > len(rows):  # few classes: the sampled product wants no more places than there are columns
        return summed(W, (queries @ rows.T).gather(1, y.clamp_min(0)).masked_fill_(~known, 0))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR")  # "in beta state"
        flat, starts = y[known], starts_of(known.sum(1))
        places = torch.sparse_csr_tensor(
            starts, flat, rows.new_zeros(len(flat)), (m, len(rows)), check_invariants=False
        )
    scores: Tensor = torch.sparse.sampled_addmm(places, queries, rows.T, beta=0.0).values()
    return summed(W, queries.new_zeros(m, n).masked_scatter_(known, scores))


def best_columns(
    queries: Tensor, pool: Tensor, k: int, own: Tensor | None = None, shift: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Each query's k largest scores q · w − shift over the rows w of the pool, largest first, and their rows, [m, k].

    Row `own[i]` does not count for query i. Exact, in tiles; no more memory than a tile, whatever the pool.

    >>> best_columns(torch.tensor([[0.6, 0.8]]), torch.eye(2), k=1)
    (tensor([[0.8000]]), tensor([[1]]))
    """
    size = max(1, min(len(queries), _QUERIES))
    width = min(len(pool), max(_GROUP, blocks.TILE // size // _ALIGN * _ALIGN))
    buffer = pool.new_empty(size * width)
    own = torch.full((len(queries),), -1, device=pool.device) if own is None else own
    parts = zip(queries.split(size), own.split(size), strict=True)
    scores, columns = zip(*(_best_in_tiles(q, o, pool, shift, k, width, buffer) for q, o in parts), strict=True)
    return torch.cat(scores), torch.cat(columns)


def _best_in_tiles(
    queries: Tensor, own: Tensor, pool: Tensor, shift: Tensor | None, k: int, width: int, buffer: Tensor
) -> tuple[Tensor, Tensor]:
    m = len(queries)
    scores, columns = pool.new_empty(m, 0), own.new_empty(m, 0)
    first = min(_ALIGN, width)  # the rest is held against what the first tile has, whose columns are all sorted
    for start, stop in pairwise([0, *range(first, len(pool), width), len(pool)]):
        part = pool[start:stop]
        tile = torch.mm(queries, part.T, out=buffer[: m * len(part)].view(m, len(part)))
        if shift is not None:  # ‖q − w‖² orders like ‖w‖²/2 − q·w
            tile -= shift[start:stop]
        mine = ((own >= start) & (own < stop)).nonzero().squeeze(1)
        tile[mine, own[mine] - start] = -torch.inf
        if scores.shape[1] < k or len(part) % _GROUP:
            better, places = tile.topk(min(k, len(part)), dim=1)
        else:
            better, places = _above(tile, scores[:, -1])
        scores, columns = torch.cat([scores, better], 1), torch.cat([columns, places + start], 1)
        scores, order = scores.topk(min(k, scores.shape[1]), dim=1)
        columns = columns.gather(1, order)
    return scores, columns


def _above(tile: Tensor, threshold: Tensor) -> tuple[Tensor, Tensor]:
    """The entries of each row above its threshold and their columns, [m, most in a row], filled up with −∞."""
    m, n = tile.shape
    groups = n // _GROUP
    body = tile.view(m, _GROUP, groups)  # group j: columns j, j + groups, …
    row, group = (body.amax(1) > threshold[:, None]).nonzero(as_tuple=True)
    values = body[row, :, group]  # [hits, _GROUP]
    hit, member = (values > threshold[row, None]).nonzero(as_tuple=True)
    row = row[hit]
    place = torch.arange(len(row), device=tile.device) - torch.searchsorted(row, row)  # rows come in order
    most = int(place.max()) + 1 if len(place) else 0
    better, columns = tile.new_full((m, most), -torch.inf), row.new_zeros(m, most)
    better[row, place], columns[row, place] = values[hit, member], member * groups + group[hit]
    return better, columns


def _half_squared_norms(W: Tensor, pool: Tensor) -> Tensor | None:
    """‖w‖²/2 of each row, or None where all are equal and do not change the order."""
    squares = torch.linalg.vector_norm(pool, dim=1).square_().mul_(0.5)
    most, least = largest(W, torch.stack([squares.max(), -squares.min()])).tolist()
    return None if most + least <= 1e-5 * most else squares
