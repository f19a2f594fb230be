r"""Per-client clipping: :math:`\Delta_i \min(1, S / \|\Delta_i\|)`, the norm over all of θ at once, in float64.

A client whose numbers are not finite would spoil the sum for all: its change counts as zero, its row stays as it was
sent, and its loss is told as NaN, which is how whoever adds up knows of it.
"""

import torch
from torch import Tensor

from fedaws.sparse import row_delta
from fedaws.types import Params


def clip_factors(norms: Tensor, most: float) -> Tensor:
    """min(1, S/‖Δ‖) of each norm; a change of zeros stays.

    >>> clip_factors(torch.tensor([0.0, 1.0, 4.0]), 2.0).tolist()
    [1.0, 1.0, 0.5]
    """
    return (most / norms.clamp_min(torch.finfo(norms.dtype).tiny)).clamp_max(1)


def clipped(delta: Params, most: float) -> Params:
    """One client's change, sparse tables included, at most this long; zeros if it is not finite.

    >>> clipped({"a": torch.tensor([3.0]), "b": torch.tensor([4.0])}, 1.0)
    {'a': tensor([0.6000]), 'b': tensor([0.8000])}
    """
    return _cut(delta, most)[0]


def clipped_work(
    delta: Params, row: Tensor, loss: Tensor, most: float, sent: Tensor
) -> tuple[Params, Tensor, Tensor, Tensor]:
    """One client's change, row and loss as they may be added up, and whether nothing was cut; of one that is not sound
    zeros, the row that it was sent, and NaN.
    """
    cut, norm = _cut(delta, most)
    if bool(are_sound(norm[None], row[None], loss[None])):
        return cut, row, loss, norm <= most
    nothing = {name: torch.zeros_like(change) for name, change in delta.items()}
    return nothing, sent, torch.full_like(loss, torch.nan), norm <= most


def _cut(delta: Params, most: float) -> tuple[Params, Tensor]:
    """The change, and how long it was."""
    if any(change.is_sparse and not change.is_coalesced() for change in delta.values()):  # a row may stand there twice
        delta = {name: change.coalesce() if change.is_sparse else change for name, change in delta.items()}
    values = [change.values() if change.is_sparse else change for change in delta.values()]
    norm = torch.stack([_square(value.flatten()[None]) for value in values]).sum().sqrt()
    if not bool(norm.isfinite()):
        return {name: torch.zeros_like(change) for name, change in delta.items()}, norm
    factor = float(clip_factors(norm, most))
    return delta if factor == 1 else {name: _scaled(change, factor) for name, change in delta.items()}, norm


def _scaled(change: Tensor, factor: float) -> Tensor:
    if not change.is_sparse:
        return change * factor
    return row_delta(change._indices()[0], change._values() * factor, len(change))  # each row stands there once


def stacked_norms(deltas: Params) -> Tensor:
    """The norms of m clients' changes, each tensor with the clients on dim 0; [m] float64.

    >>> stacked_norms({"a": torch.tensor([[3.0], [0.0]]), "b": torch.tensor([[4.0], [1.0]])}).tolist()
    [5.0, 1.0]
    """
    return torch.stack([_square(change.flatten(1)) for change in deltas.values()]).sum(0).sqrt()


def _square(changes: Tensor) -> Tensor:
    """‖row‖² of each row: in float64 no square of a float32 is too large, nor too small."""
    norms: Tensor = torch.linalg.vector_norm(changes, dim=1, dtype=torch.float64)
    return norms.square()


def are_sound(norms: Tensor, rows: Tensor, losses: Tensor) -> Tensor:
    """Of each client whether all its numbers are finite, [m].

    >>> are_sound(torch.tensor([1.0, torch.inf]), torch.zeros(2, 3), torch.zeros(2)).tolist()
    [True, False]
    """
    return norms.isfinite() & losses.isfinite() & rows.flatten(1).isfinite().all(1)


def where_sound(sound: Tensor, values: Tensor, else_: Tensor | float) -> Tensor:
    """The values of the sound clients, and in the others' place something else; clients on dim 0."""
    return torch.where(sound.view(-1, *[1] * (values.ndim - 1)), values, else_)
