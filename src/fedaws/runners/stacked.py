"""Several local steps, many clients at once: the client's steps on stacked parameters."""

from collections.abc import Iterator

import torch
from torch import nn

from fedaws.config import Config
from fedaws.core.local import example_losses, local_update, stacked_gradient
from fedaws.core.schedule import schedule
from fedaws.data.federated import FederatedData
from fedaws.runners.common import ClientData, blocks
from fedaws.types import Broadcast, Params, RunClients, Update

_CACHE = 16_000_000
"""Bytes of stacked parameters in a block: more falls out of the cache, less pays PyTorch's overhead too often."""


def stacked(cfg: Config, data: FederatedData, encoder: nn.Module) -> RunClients:
    """The serial runner's `local_update` with a gradient for the whole stack, in blocks that stay in cache."""
    clients, gradient = ClientData(cfg, data), stacked_gradient(example_losses(encoder, cfg, data.num_classes))

    def run_clients(sent: Broadcast) -> Iterator[Update]:
        factor = schedule(cfg.train, sent.round_num)
        for block in blocks(len(sent.cohort), _block_size(cfg, sent.theta)):
            cohort = sent.cohort[block]
            weights = clients.weights(cohort)
            theta = {k: v.expand(len(cohort), *v.shape) for k, v in sent.theta.items()}
            examples = clients.examples(clients.draw(cohort, sent.round_num), sent.classes)
            steps = zip(examples.x.unbind(1), examples.y.unbind(1), examples.share.unbind(1), strict=True)
            deltas, rows, loss = local_update(gradient, cfg, theta, sent.W[block], steps, factor)
            omega = weights / weights.sum()
            delta = {k: torch.tensordot(omega.to(d.dtype), d, dims=1) for k, d in deltas.items()}
            yield Update(cohort, delta, rows, weights, loss)

    return run_clients


def _block_size(cfg: Config, theta: Params) -> int:
    if cfg.train.block != "auto":
        return cfg.train.block
    return max(8, _CACHE // max(1, sum(p.nbytes for p in theta.values())))
