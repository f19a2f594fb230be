r"""Spreading by what is known of labels that stand together: correlated classes need not be far apart.

From the numbers n_cy of training examples that have both labels comes a correlation
:math:`a_{cy} = \tfrac12 (n_{cy}/n_c + n_{cy}/n_y)` (Guo et al. 2019). The server must be told these numbers, which no
client has; whoever uses this says so.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from fedaws.core.method import Spread, When
from fedaws.core.moments import to_sphere_
from fedaws.core.spreadout import row_blocks, smoothness, spectral_square
from fedaws.types import Memory

Slopes = Callable[[Tensor, Tensor], Tensor]
"""(scores [m, C], correlations [m, C]) → φ' [m, C]; may be negative, where a pair is pulled together."""


def correlations(cooccurrence: Tensor) -> Tensor:
    r"""a_cy as a sparse tensor [C, C] without its diagonal.

    >>> counts = torch.tensor([[4.0, 2.0], [2.0, 2.0]]).to_sparse()  # of 4 and 2 examples 2 have both
    >>> correlations(counts).to_dense()[0, 1]  # ½ (2/4 + 2/2)
    tensor(0.7500)
    """
    counts = cooccurrence.coalesce()
    (c, y), together = counts.indices(), counts.values().to(torch.float32)
    own = together.new_zeros(counts.shape[0]).index_add_(0, c[c == y], together[c == y])
    apart = (c != y) & (own[c] > 0) & (own[y] > 0)
    c, y, together = c[apart], y[apart], together[apart]
    shares = 0.5 * (together / own[c] + together / own[y])
    return torch.sparse_coo_tensor(torch.stack([c, y]), shares, counts.shape, check_invariants=False).coalesce()


def correlated_spread(slopes_of: Slopes, curvature: float, cooccurrence: Tensor | None, weight: float) -> Spread:
    r"""Steps on :math:`\sum_{c \ne y} \varphi_{cy}(w_c \cdot w_y)` over all ordered pairs, bounded as in
    docs/bounded-step.md with :math:`\rho_c = \sum_y |\varphi'_{cy}|`; in row blocks. Without
    the numbers it moves nothing.
    """
    if cooccurrence is None:
        return Spread(lambda W, classes, when, rng, memory: memory)
    known = correlations(cooccurrence)

    def step(W: Tensor, _: Tensor, when: When, __: torch.Generator, memory: Memory) -> Memory:
        gradient, rho = torch.empty_like(W), W.new_empty(len(W))
        for rows in row_blocks(len(W), len(W)):
            own = torch.arange(rows.start, rows.stop, device=W.device)
            slopes = slopes_of(W[rows] @ W.T, known.index_select(0, own).to_dense())
            slopes[torch.arange(len(own), device=W.device), own] = 0
            rho[rows] = slopes.abs().sum(1)
            gradient[rows] = 2 * (slopes @ W)
        bound = when.factor / (2 * smoothness(float(rho.max()), spectral_square(W), curvature))
        to_sphere_(W, W.sub(gradient, alpha=min(weight * when.lr, bound)))
        return memory

    return Spread(step)
