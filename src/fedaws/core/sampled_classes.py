r"""Oracles where all of W does not fit: their clients are sent a sample of the classes.

Each round draws S of the C classes uniformly, the same for the whole cohort. An example of class y meets its own row
and those of the others in the sample, n of them (S, or S − 1 if y is among them); each stands for (C − 1)/n classes,
since given y the others in the sample are a uniform sample of all others. So for any function f of a class

.. math:: \mathbb{E}\Big[\tfrac{C-1}{n} \sum_{c \in S,\, c \ne y} f(c)\Big] = \sum_{c \ne y} f(c)

Contrastive and triplet loss are such sums: their sampled losses and gradients are unbiased. Softmax has the logarithm
of one, and :math:`\tfrac{C-1}{n} e^{s} = e^{s - \log q}` with :math:`q = n/(C-1)`, the "logQ correction" of sampled
softmax (Bengio & Senécal 2008): the sum over the classes is unbiased, its logarithm and gradient only in the limit of a
large sample, with an error of order 1/S, and exactly at S = C.

Only the rows that were sent move, so that W is stepped as a table (`core/embedding_tables.py`): no copy, no gradient of
its size.
"""

import torch
from torch import Tensor

from fedaws.sparse import row_delta


def sample_classes(own: Tensor, count: int, num_classes: int, rng: torch.Generator) -> Tensor:
    """The sample, `count` of all classes, then those of the cohort's own that are not in it.

    >>> sample_classes(torch.tensor([0, 1]), 3, 3, torch.Generator().manual_seed(0)).sort().values.tolist()
    [0, 1, 2]
    """
    drawn = torch.randperm(num_classes, generator=rng)[:count].to(own.device)
    own = own.unique()
    return torch.cat([drawn, own[~torch.isin(own, drawn)]])


def positions(classes: Tensor, y: Tensor) -> Tensor:
    """Where in `classes` each label stands; −1 if it does not.

    >>> positions(torch.tensor([7, 2, 5]), torch.tensor([[5, 7], [2, 3]])).tolist()
    [[2, 0], [1, -1]]
    """
    ordered, order = classes.sort()
    place = torch.searchsorted(ordered, y).clamp_max_(len(ordered) - 1)
    return torch.where(ordered[place] == y, order[place], -1)


def sampled_change(change: Tensor, classes: Tensor, num_classes: int) -> Tensor:
    """The change of the sampled rows [S, d] as one of these rows of W, a sparse tensor [C, d]."""
    ordered, order = classes.sort()
    return row_delta(ordered, change[order], num_classes)
