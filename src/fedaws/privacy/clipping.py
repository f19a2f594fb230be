r"""Per-client clipping: :math:`\Delta_i \min(1, S / \|\Delta_i\|)`, the norm over all of θ at once."""

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
    """One client's change, sparse tables included, at most this long.

    >>> clipped({"a": torch.tensor([3.0]), "b": torch.tensor([4.0])}, 1.0)
    {'a': tensor([0.6000]), 'b': tensor([0.8000])}
    """
    if any(change.is_sparse and not change.is_coalesced() for change in delta.values()):  # a row may stand there twice
        delta = {name: change.coalesce() if change.is_sparse else change for name, change in delta.items()}
    values = [change.values() if change.is_sparse else change for change in delta.values()]
    norm = torch.stack([torch.linalg.vector_norm(value) for value in values]).square().sum().sqrt()
    factor = float(clip_factors(norm, most))
    return delta if factor == 1 else {name: _scaled(change, factor) for name, change in delta.items()}


def _scaled(change: Tensor, factor: float) -> Tensor:
    if not change.is_sparse:
        return change * factor
    return row_delta(change._indices()[0], change._values() * factor, len(change))  # each row stands there once


def stacked_norms(deltas: Params) -> Tensor:
    """The norms of m clients' changes, each tensor with the clients on dim 0; [m].

    >>> stacked_norms({"a": torch.tensor([[3.0], [0.0]]), "b": torch.tensor([[4.0], [1.0]])}).tolist()
    [5.0, 1.0]
    """
    norms = torch.stack([torch.linalg.vector_norm(change.flatten(1), dim=1) for change in deltas.values()])
    return norms.square().sum(0).sqrt()
