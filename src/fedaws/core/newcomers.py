r"""A row for a class that joins late: as far from the others as there is room."""

import torch
import torch.nn.functional as F
from torch import Tensor

_STARTS, _STEPS = 64, 300


def fresh_row(W: Tensor, rng: torch.Generator) -> Tensor:
    r"""A unit vector with a small largest cosine to the rows of W, [d].

    .. math:: \min_{\|w\| = 1} \max_c \; w^\top w_c

    The paper is silent on late classes. A random row may lie beside somebody's, and both would have to move; this one
    lands in a gap. The best of some random starts descends on a soft maximum that hardens from step to step.

    >>> fresh_row(torch.eye(2), torch.Generator().manual_seed(0))  # opposite to both
    tensor([-0.7071, -0.7071])
    """
    rows = F.normalize(W, dim=1)
    starts = F.normalize(torch.randn(_STARTS, W.shape[1], generator=rng), dim=1).to(W.device)
    w = starts[(starts @ rows.T).amax(1).argmin()] if len(W) else starts[0]
    for step in range(_STEPS if len(W) else 0):
        progress = step / _STEPS
        nearest = torch.softmax((5 + 195 * progress) * (rows @ w), dim=0) @ rows
        w = F.normalize(w - 0.5 * (1 - progress) * nearest, dim=0)
    return w
