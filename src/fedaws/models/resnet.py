r"""ResNets for small images (He et al. 2016, section 4.2): 6n + 2 layers, 3 stages of n blocks, 16-32-64 channels.

Their BatchNorm cannot work here: a client's batch is of one class, so its statistics are not those of a test image, and
statistics over several clients' batches would tell each about the others. `norm` says what stands in its place.
"""

import math
from collections.abc import Sequence
from typing import assert_never

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedaws.config import NormName
from fedaws.errors import FedawsError
from fedaws.models.batchnorm import BatchNorm

_MEAN, _DEVIATION = 0.47, 0.25  # of the pixels of natural images, 0 to 1: public, no client's
_RELU_GAIN = math.sqrt(2 / (1 - 1 / math.pi))  # makes the ReLU of a unit Gaussian one of unit variance
_GROUPS = 8


class ResNet(nn.Module):
    """Images [B, c, h, w] with values from 0 to 1 → embeddings [B, d], for any h and w."""

    def __init__(self, depth: int, channels: int, embedding_dim: int, norm: NormName) -> None:
        super().__init__()
        widths = (16, 32, 64)
        self.stem = Stem(channels, widths[0], norm)
        stages = []
        before = widths[0]
        for width in widths:
            for i in range((depth - 2) // 6):
                stages.append(Block(before, width, 2 if i == 0 and width != widths[0] else 1, norm))
                before = width
        self.blocks = nn.Sequential(*stages)
        self.head = nn.Linear(widths[-1], embedding_dim)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = (x - _MEAN) / _DEVIATION
        x = x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)  # channels last; `vmap` takes no memory_format
        x = self.blocks(self.stem(x))
        embeddings: Tensor = self.head(x.mean((2, 3)))
        return embeddings


class Stem(nn.Module):
    """The first 3 × 3 convolution, its filters learned in coordinates in which natural images are white.

    Neighbouring pixels and the three colours of a pixel are nearly equal, so gradients for plain filters are dominated
    by flat patches. The coordinates are those of a model of images, not of anybody's data.
    """

    def __init__(self, channels: int, width: int, norm: NormName) -> None:
        super().__init__()
        self.whitening: Tensor
        self.register_buffer("whitening", whitening(channels), persistent=False)
        self.mix = nn.Parameter(torch.randn(width, 9 * channels) * math.sqrt(2 / (9 * channels)))
        self.bias = nn.Parameter(torch.zeros(width)) if norm in ("weight", "none") else None
        self.norm = _norm(norm, width)
        self._shape = (width, channels, 3, 3)

    def forward(self, x: Tensor) -> Tensor:
        filters = (self.mix @ self.whitening).view(self._shape)
        return F.relu(self.norm(F.conv2d(x, filters, self.bias, padding=1)))


class Block(nn.Module):
    """x → ReLU(x + branch(x)), the branch two convolutions."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: NormName) -> None:
        super().__init__()
        self.first, self.first_norm = _conv(inputs, outputs, stride, norm), _norm(norm, outputs)
        self.second, self.second_norm = _conv(outputs, outputs, 1, norm), _norm(norm, outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if inputs != outputs else nn.Identity()
        # Without norms a branch starts small or at nothing, or the sum over many blocks would grow (De & Smith 2020).
        if isinstance(self.second, StandardizedConv):
            nn.init.constant_(self.second.gain, _RELU_GAIN / 2)
        elif norm == "none":
            nn.init.zeros_(self.second.weight)

    def forward(self, x: Tensor) -> Tensor:
        branch = F.relu(self.first_norm(self.first(x)))
        branch = self.second_norm(self.second(branch))
        return F.relu(branch + self.shortcut(x))


class StandardizedConv(nn.Conv2d):
    """A convolution whose filters have mean 0 and a learned norm (scaled weight standardisation, Brock et al. 2021), so
    that activations keep their scale without a look at other examples.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__(inputs, outputs, 3, stride, 1)
        self.gain = nn.Parameter(torch.ones(outputs, 1, 1, 1))
        self._fan_in = 9 * inputs

    def forward(self, x: Tensor) -> Tensor:
        variance, mean = torch.var_mean(self.weight, dim=(1, 2, 3), keepdim=True, correction=0)
        filters = (self.weight - mean) * (self.gain * torch.rsqrt(variance * self._fan_in + 1e-4))
        return F.conv2d(x, filters, self.bias, self.stride, self.padding)


def whitening(channels: int, near: float = 0.95, alike: float = 0.9, floor: float = 1e-2) -> Tensor:
    r"""The 3 × 3 filters, [9c, 9c], that make patches of model images white.

    In the model two pixels at distance δ correlate as 0.95^δ and two colours as 0.9. With the covariance's
    eigenvectors v_i and eigenvalues e_i the filters are :math:`\sum_i v_i v_i^\top/\sqrt{e_i + 0.01}`: the v_i alone
    would not be the same on every machine, as some of the e_i are equal.
    """
    places = torch.cartesian_prod(torch.arange(3.0), torch.arange(3.0))
    space = near ** torch.cdist(places, places)
    colour = torch.full((channels, channels), alike).fill_diagonal_(1.0)
    values, vectors = torch.linalg.eigh(torch.kron(colour, space).double())
    filters: Tensor = vectors / (values + floor).sqrt() @ vectors.T
    return filters.float()


def _conv(inputs: int, outputs: int, stride: int, norm: NormName) -> nn.Conv2d:
    if norm == "weight":
        conv: nn.Conv2d = StandardizedConv(inputs, outputs, stride)
    else:
        conv = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=norm == "none")
    nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
    if conv.bias is not None:
        nn.init.zeros_(conv.bias)
    return conv


def _norm(norm: NormName, channels: int) -> nn.Module:
    match norm:
        case "group":
            return nn.GroupNorm(_GROUPS, channels)
        case "batch-local" | "batch-pooled":
            return BatchNorm(channels)
        case "weight" | "none":
            return nn.Identity()
        case _:
            assert_never(norm)


def resnet(depth: int, example_shape: Sequence[int], embedding_dim: int, norm: NormName) -> ResNet:
    """The encoder for examples of this shape."""
    if len(example_shape) != 3:
        raise FedawsError(
            f"model.name=resnet{depth} needs images [channels, height, width], got examples of shape "
            f"{tuple(example_shape)}; set model.name=mlp"
        )
    return ResNet(depth, example_shape[0], embedding_dim, norm)
