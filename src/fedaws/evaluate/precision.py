"""The k best classes of an example, and precision@k, in tiles over examples and classes."""

from typing import NamedTuple

import torch
from torch import Tensor

from fedaws.core.mining import best_columns
from fedaws.core.rows import best_of, here, ids_of
from fedaws.sparse import Rows, SparseRows

_NEAR = 10  # classes that make a crowd


class Ranking(NamedTuple):
    """Classes by falling score."""

    classes: Tensor  # [B, k]
    scores: Tensor  # [B, k]


def rank(embeddings: Tensor, W: Tensor, k: int, shift: Tensor | None = None) -> Ranking:
    """The k classes with the highest scores w_c · g, less the classes' `shift` [C], best first; in tiles.

    >>> rank(torch.tensor([[0.6, 0.8]]), torch.eye(2), k=1).classes
    tensor([[1]])
    """
    k = min(k, len(W))
    scores, places = best_columns(embeddings, here(W), k, shift=shift)
    scores, classes = best_of(W, scores, ids_of(W, places), k)
    return Ranking(classes, scores)


def crowding(W: Tensor, weight: float) -> Tensor | None:
    r"""What a class's scores are lowered by where other classes are near, [C]; None for a weight of 0.

    .. math:: shift_c = weight \cdot \frac1k \sum_{y \in N_k(c)} w_c \cdot w_y, \qquad k = 10

    Rows in a crowd are near to more examples than are theirs: hubs (Dinu et al. 2015; with a weight of ½ this is the
    class's half of the CSLS of Conneau et al. 2018). It needs W alone, and a search of all classes for all: O(C² d).

    >>> crowding(torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, -1.0]]), 0.5)  # ½ · mean of 0.6 and 0; 0.6, −0.8; …
    tensor([ 0.1500, -0.0500, -0.2000])
    """
    if not weight or len(W) < 2:
        return None
    scores, _ = best_columns(W, W, min(_NEAR, len(W) - 1), own=torch.arange(len(W), device=W.device))
    return scores.mean(1).mul_(weight)


def precision_at(ranking: Ranking, labels: Rows, k: int) -> float:
    """The mean share of the k best classes that are right; with one label an example at most 1/k.

    >>> precision_at(Ranking(torch.tensor([[2, 0, 1]]), torch.zeros(1, 3)), torch.tensor([0]), k=3)
    0.3333333333333333
    """
    return float(right(ranking.classes[:, :k], labels).sum()) / (k * len(labels))


def right(classes: Tensor, labels: Rows) -> Tensor:
    """Which of each example's classes [B, k] are its label, or among its labels; [B, k].

    >>> from fedaws.sparse import from_lists
    >>> right(torch.tensor([[2, 0], [1, 2]]), from_lists([[0, 1], [2]], width=3)).tolist()
    [[False, True], [False, True]]
    """
    if isinstance(labels, Tensor):
        return classes == labels[:, None]
    if not len(labels.indices):
        return torch.zeros_like(classes, dtype=torch.bool)
    pairs = (labels.row_of_each * labels.width + labels.indices).sort().values
    codes = torch.arange(len(labels), device=classes.device)[:, None] * labels.width + classes
    return pairs[torch.searchsorted(pairs, codes).clamp_max(len(pairs) - 1)] == codes


def propensity_scored(ranking: Ranking, labels: SparseRows, weights: Tensor, k: int) -> float:
    r"""PSP@k: what the k best classes gain, a right one its weight 1/p, over the most that any k classes could.

    .. math:: \sum_i \sum_{l \in top_k(i) \cap Y_i} 1/p_l \Big/ \sum_i \max_{|S| \le k} \sum_{l \in S \cap Y_i} 1/p_l

    >>> from fedaws.sparse import from_lists
    >>> ranking, labels = Ranking(torch.tensor([[2, 0]]), torch.zeros(1, 2)), from_lists([[0, 1]], width=3)
    >>> propensity_scored(ranking, labels, torch.tensor([1.0, 4.0, 2.0]), k=2)  # 1 of 1 + 4
    0.2
    """
    classes = ranking.classes[:, :k]
    gained = (weights[classes] * right(classes, labels)).sum(dtype=torch.float64)
    # Each row's labels by falling weight: sorted by weight, then stably by row; the first k of each row count.
    weight = weights[labels.indices]
    order = weight.argsort(descending=True)
    rows, by_row = labels.row_of_each[order].sort(stable=True)
    first = torch.arange(len(rows), device=rows.device) - labels.starts[rows] < k
    possible = weight[order[by_row]][first].sum(dtype=torch.float64)
    return float(gained / possible) if possible > 0 else 0.0
