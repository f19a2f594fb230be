"""BatchNorm for comparison: what a federation of one-class clients would have to share, or do without.

While training, a layer normalises by the mean and variance of the batch that it gets: with `batch-local` a client's own
batch, of one class; with `batch-pooled` the whole cohort's, which no real federation could do. For test images the mean
and variance are measured on training examples when they are needed: in each client's own batch and then put together,
or over all clients' examples at once.
"""

from collections import defaultdict
from collections.abc import Iterable
from copy import deepcopy

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from fedaws.types import Params


class BatchNorm(nn.Module):
    """Mean 0 and variance 1 per channel, times a gain, plus a bias."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.mean: Tensor
        self.variance: Tensor
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("variance", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        """By the batch's own statistics in training mode, else by the measured ones."""
        if self.training:
            return F.batch_norm(x, None, None, self.weight, self.bias, training=True)
        return F.batch_norm(x, self.mean, self.variance, self.weight, self.bias)


def batch_norms(encoder: nn.Module) -> dict[str, BatchNorm]:
    """The BatchNorm layers by name."""
    return {name: module for name, module in encoder.named_modules() if isinstance(module, BatchNorm)}


def by_batch_statistics(encoder: nn.Module) -> nn.Module:
    """The encoder, or where it has BatchNorm a copy in which these layers look at their batch."""
    if not batch_norms(encoder):
        return encoder
    encoder = deepcopy(encoder).eval()
    for layer in batch_norms(encoder).values():
        layer.train()
    return encoder


@torch.no_grad()
def measured_statistics(encoder: nn.Module, theta: Params, batches: Iterable[Tensor]) -> Params:
    r"""Mean and variance of every BatchNorm layer's input, by the names of the encoder's buffers.

    Each batch is normalised by itself; over several, :math:`\mu = \overline{\mu_i}` and
    :math:`\sigma^2 = \overline{\sigma_i^2} + \overline{(\mu_i - \mu)^2}`.
    """
    encoder = by_batch_statistics(encoder)
    measured: dict[nn.Module, list[tuple[Tensor, Tensor]]] = defaultdict(list)

    def measure(layer: nn.Module, inputs: tuple[Tensor]) -> None:
        measured[layer].append(torch.var_mean(inputs[0], (0, 2, 3), correction=0))

    for layer in batch_norms(encoder).values():
        layer.register_forward_pre_hook(measure)
    for x in batches:
        functional_call(encoder, theta, (x,))
    statistics = Params()
    for name, layer in batch_norms(encoder).items():
        variances, means = (torch.stack(part) for part in zip(*measured[layer], strict=True))
        statistics[f"{name}.mean"] = means.mean(0)
        statistics[f"{name}.variance"] = variances.mean(0) + means.var(0, correction=0)
    return statistics
