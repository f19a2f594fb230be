"""What a client does to its examples before it trains on them: crops and flips, a smaller size; fewer features."""

import torch
import torch.nn.functional as F
from torch import Tensor

from fedaws.hashing import hash_tensor
from fedaws.sparse import SparseRows, starts_of

SHIFT = 4
"""A crop is off centre by at most so many pixels; what it lacks at one side is the image mirrored."""


def crop_and_flip(x: Tensor, numbers: Tensor, draws: Tensor) -> Tensor:
    """The images `numbers` [B] of x [N, c, h, w], each cropped and flipped as its random number in `draws` [B] says.

    One lookup of pixels; for images stored with their channels last it reads and writes whole pixels, and its result
    lies in memory as convolutions like it.

    >>> x = torch.arange(9.0).view(1, 1, 3, 3)
    >>> crop_and_flip(x, torch.tensor([0]), torch.tensor([40])).tolist() == x.tolist()  # no shift, no flip
    True
    """
    span = 2 * SHIFT + 1
    height, width = x.shape[2:]
    rows = _mirrored(torch.arange(height) + (draws % span - SHIFT)[:, None], height)
    columns = torch.arange(width).expand(len(draws), width)
    columns = torch.where((draws // span**2 % 2 == 1)[:, None], columns.flip(1), columns)
    columns = _mirrored(columns + (draws // span % span - SHIFT)[:, None], width)
    rows, columns = rows.to(x.device), columns.to(x.device)
    pixels = x.permute(0, 2, 3, 1)[numbers[:, None, None], rows[:, :, None], columns[:, None, :]]
    return pixels.permute(0, 3, 1, 2)


def _mirrored(places: Tensor, size: int) -> Tensor:
    """Places beyond an edge, mirrored at it."""
    last = size - 1
    return (last - (last - places.abs()).abs()).clamp_(0, last)


def resized(x: Tensor, size: int) -> Tensor:
    """Images [B, c, h, w] of numbers, at `size` × `size`."""
    if x.shape[-2:] == (size, size):
        return x
    small = F.interpolate(x, size=(size, size), mode="bilinear", antialias=True, align_corners=False)
    return small.contiguous(memory_format=torch.channels_last)


def leave_out(x: SparseRows, draws: Tensor, part: float) -> SparseRows:
    """The examples with this part of their features left out, as the random number of each in `draws` [B] says.

    Whether a feature stays depends on its example's number and its place in the example alone. One always stays.

    >>> x = SparseRows(torch.arange(8), torch.ones(8), torch.tensor([0, 8]), width=8)
    >>> leave_out(x, torch.tensor([1]), 0.5).indices.tolist()
    [1, 2, 3, 4, 5]
    """
    rows = x.row_of_each
    place = torch.arange(len(rows), device=x.device) - x.starts[rows]
    chance = hash_tensor(0, draws.to(x.device)[rows], place)  # of 40 bits
    highest = chance.new_zeros(len(x)).scatter_reduce_(0, rows, chance, "amax")
    stays = (chance >= part * 2**40) | (chance == highest[rows])
    counts = torch.bincount(rows[stays], minlength=len(x))
    return x.with_entries(lambda entries: entries[stays], starts_of(counts))
