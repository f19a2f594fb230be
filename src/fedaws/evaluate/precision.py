"""The k best classes of an example, and precision@k, in tiles over examples and classes."""

from typing import NamedTuple

import torch
from torch import Tensor

TILE = 4_000_000
"""Scores in a tile; |examples| × C is never whole in memory."""


class Ranking(NamedTuple):
    """Classes by falling score."""

    classes: Tensor  # [B, k]
    scores: Tensor  # [B, k]


def rank(embeddings: Tensor, W: Tensor, k: int) -> Ranking:
    """The k classes with the highest scores w_c · g, best first.

    >>> rank(torch.tensor([[0.6, 0.8]]), torch.eye(2), k=1).classes
    tensor([[1]])
    """
    k = min(k, len(W))
    width = max(k, min(len(W), TILE // 256))
    parts = [_rank_block(block, W, k, width) for block in embeddings.split(max(1, TILE // width))]
    return Ranking(torch.cat([p.classes for p in parts]), torch.cat([p.scores for p in parts]))


def _rank_block(embeddings: Tensor, W: Tensor, k: int, width: int) -> Ranking:
    scores, classes = embeddings.new_empty(len(embeddings), 0), torch.empty(len(embeddings), 0, dtype=torch.int64)
    classes = classes.to(W.device)
    for start in range(0, len(W), width):
        tile = embeddings @ W[start : start + width].T
        top = tile.topk(min(k, tile.shape[1]), dim=1)
        scores, classes = torch.cat([scores, top.values], 1), torch.cat([classes, top.indices + start], 1)
        scores, order = scores.topk(min(k, scores.shape[1]), dim=1)
        classes = classes.gather(1, order)
    return Ranking(classes, scores)


def precision_at(ranking: Ranking, labels: Tensor, k: int) -> float:
    """The mean share of the k best classes that are right; with one label an example at most 1/k.

    >>> precision_at(Ranking(torch.tensor([[2, 0, 1]]), torch.zeros(1, 3)), torch.tensor([0]), k=3)
    0.3333333333333333
    """
    hits = (ranking.classes[:, :k] == labels[:, None]).sum()
    return float(hits) / (k * len(labels))
