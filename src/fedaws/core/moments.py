r"""Steps on all pairs of rows at once, by the rows' first and second moment: no search, no λ, no k (docs/moments.md).

In place and in blocks: whatever C is, they need no more memory than a block. They cost O(C·d) and O(C·d²), and move
every row; so where few rows change in a round they are not taken in every one (:func:`due`).
"""

from collections.abc import Iterator
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedaws.core.rows import gram, here, total
from fedaws.machine.blocks import ROWS

_MOVED = 4
_SMALLEST = 1e-6


def due(every: int | Literal["auto"], round_num: int, num_classes: int, cohort: int | Literal["all"]) -> bool:
    """Whether these steps are taken in this round; `auto`: once a quarter of the rows may have changed since the last.

    >>> [t for t in range(100) if due("auto", t, num_classes=670_091, cohort=4_000)]
    [0, 41, 82]
    """
    if every != "auto":
        return round_num % every == 0
    return cohort == "all" or round_num % max(1, num_classes // (_MOVED * cohort)) == 0


def moments_(W: Tensor, center: bool = True, whiten: float = 1.0) -> Tensor:
    r"""Centring, whitening, or one after the other, in place: the step that each row takes by itself, from two sums.

    `whiten` is the share β of the whitening step that is taken; 0: none.

    >>> moments_(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), whiten=0)
    tensor([[ 0.7071, -0.7071],
            [-0.7071,  0.7071]])
    >>> W = torch.tensor([[1.0, 0.0], [0.6, 0.8]])  # σ² = 1.6 and 0.4, times (1 − 1/3)² and (1 − 1/12)²: 0.711, 0.336
    >>> moments_(W, center=False) @ W[0]  # a cosine of 0.6 becomes (0.711 − 0.336) / (0.711 + 0.336)
    tensor([1.0000, 0.3581])
    """
    mean = total(W) / len(W) if center else None
    apart_(here(W), mean, gram(W) / len(W) if whiten else None, whiten)
    return W


def apart_(W: Tensor, mean: Tensor | None, second: Tensor | None, whiten: float = 1.0) -> Tensor:
    r"""What one row does with the rows' mean μ and second moment M; every row here does it by itself. O(d²) a row.

    .. math:: v = \frac{w - \mu}{\|w - \mu\|}, \quad w \leftarrow \frac{v - \beta Kv/3\lambda_1}{\|\cdot\|}, \quad
              K = M - \mu\mu^T

    with λ₁ the largest eigenvalue of K. Without M it is the bounded step of eq. (7) with k = all, whose value is const
    + 2 ‖Σ w‖²; without μ that of the frame potential Σ (w_c · w_y)² = ‖WᵀW‖². Neither rises (docs/bounded-step.md).
    """
    step = None
    if second is not None:
        step = whitening(second if mean is None else second - torch.outer(mean, mean), whiten)
    for rows, buffer in _blocks(W):
        if mean is not None:
            to_sphere_(rows, torch.sub(rows, mean, out=buffer))
        if step is not None:
            to_sphere_(rows, torch.mm(rows, step, out=buffer))
    return W


def whitening(covariance: Tensor, share: float) -> Tensor:
    """I − βK/3λ₁; of a K that rounding or noise has made indefinite the nearest that is not. Where all rows are one
    point λ₁ is rounding alone: then the step is smaller, and centring has to do.
    """
    values, vectors = torch.linalg.eigh(covariance)
    shrunk = 1 - share * values.clamp_min(0) / (3 * values[-1].clamp_min(_SMALLEST))
    step: Tensor = (vectors * shrunk) @ vectors.T
    return step


def to_sphere_(rows: Tensor, moved: Tensor) -> Tensor:
    """Write `moved` into `rows` at unit length; a row that has lost all length (or is not finite) stays as it was."""
    norms = torch.linalg.vector_norm(moved, dim=1, keepdim=True)
    sound = (norms > 1e-6) & norms.isfinite()
    if bool(sound.all()):
        return torch.div(moved, norms, out=rows)
    return rows.copy_(torch.where(sound, moved / norms, F.normalize(rows, dim=1)))


def _blocks(W: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """The rows of W in order, each block with a place for what becomes of it."""
    height = min(len(W), max(1, ROWS // W.shape[1]))
    buffer = W.new_empty(height, W.shape[1])
    return ((rows, buffer[: len(rows)]) for rows in W.split(height))
