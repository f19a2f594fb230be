"""Gaussian classes of any number, dimension and overlap, from a seed."""

import torch
from torch import Tensor

from fedaws.hashing import hash64


def synthetic(
    classes: int, features: int, examples_per_class: int, overlap: float, seed: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(x_train, y_train, x_test, y_test): class centres at random, noise of `overlap` times their typical distance.

    Centres are standard normal, so two are about √(2 · features) apart; the noise has length `overlap` × that. A fifth
    of each class, at least one example, is for the test.
    """
    rng = torch.Generator().manual_seed(hash64(seed, "synthetic"))
    centres = torch.randn(classes, features, generator=rng)
    noise = torch.randn(classes, examples_per_class, features, generator=rng) * (overlap * 2**0.5)
    x = centres[:, None] + noise
    y = torch.arange(classes)[:, None].expand(classes, examples_per_class)
    held_out = max(1, examples_per_class // 5)
    parts = (x[:, held_out:], y[:, held_out:], x[:, :held_out], y[:, :held_out])
    return parts[0].flatten(0, 1), parts[1].flatten(), parts[2].flatten(0, 1), parts[3].flatten()
