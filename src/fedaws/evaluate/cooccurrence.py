r"""How many of the classes that mining picks to be pushed away are positives of the same examples.

The paper explains its Table 4 by this (a small k does badly on multi-label data), but does not measure it.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedaws.core.mining import nearest
from fedaws.sparse import SparseRows


class Cooccurrence(NamedTuple):
    """Of the mined pairs (c, y)."""

    share: float  # those that are both labels of some example
    frequency: float  # mean share of the examples of c that have y too


def cooccurrence(W: Tensor, sets: SparseRows, num_neighbors: int | None) -> Cooccurrence:
    r"""Over all classes c that have examples and their N_k(c) among all classes (None: every other class).

    .. math:: \text{share} = \operatorname{mean}_{c,\, y \in N_k(c)} [\,n_{cy} > 0\,], \qquad
              \text{frequency} = \operatorname{mean}_{c,\, y \in N_k(c)} n_{cy} / n_c

    where n_cy examples have both labels. `sets` are the full label sets, which no client has: this explains a result
    and is no part of training.

    >>> from fedaws.sparse import from_lists
    >>> W = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
    >>> cooccurrence(W, from_lists([[0, 1], [1], [2]], width=3), num_neighbors=1)  # 0 → 1 yes, 1 → 0 yes, 2 → 1 no
    Cooccurrence(share=0.6666666666666666, frequency=0.5)
    """
    labels = sets.to_scipy().astype(np.int64)
    labels.sum_duplicates()
    labels.data[:] = 1
    together = (labels.T @ labels).tocsr()  # n_cy: as many entries as pairs that occur, never C × C
    counts = together.diagonal()
    (cohort,) = counts.nonzero()
    if num_neighbors is None:
        total = len(cohort) * (together.shape[0] - 1)
        frequent = together.sum(1).A1[cohort] - counts[cohort]
        return Cooccurrence(
            float((together.nnz - len(cohort)) / total), float((frequent / counts[cohort]).sum() / total)
        )
    neighbors = nearest(W, torch.from_numpy(cohort).to(W.device), None, num_neighbors).cpu().numpy()
    mined = np.asarray(together[np.repeat(cohort, num_neighbors), neighbors.ravel()]).ravel()  # n_cy of each pair
    return Cooccurrence(float((mined > 0).mean()), float((mined / np.repeat(counts[cohort], num_neighbors)).mean()))
