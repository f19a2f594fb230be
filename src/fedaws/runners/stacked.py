"""Several local steps, many clients at once: the client's code mapped over stacked parameters."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import nn
from torch.func import vmap

from fedaws.config import Config
from fedaws.core.local import example_losses, local_update
from fedaws.core.schedule import schedule
from fedaws.data.federated import FederatedData
from fedaws.runners.common import ClientData, blocks
from fedaws.types import Broadcast, Params, RunClients, Update

_CACHE = 16_000_000
"""Bytes of stacked parameters in a block: more falls out of the cache, less pays PyTorch's overhead too often."""


def stacked(cfg: Config, data: FederatedData, encoder: nn.Module) -> RunClients:
    """The serial runner's `local_update` under `torch.func.vmap`, in blocks whose parameters stay in cache."""
    clients, loss_of = ClientData(cfg, data), example_losses(encoder, cfg)
    update = vmap(partial(local_update, loss_of, cfg), in_dims=(None, 0, 0, 0, 0, None))

    def run_clients(sent: Broadcast) -> Iterator[Update]:
        factor = schedule(cfg.train, sent.round_num)
        for block in blocks(len(sent.cohort), _block_size(cfg, sent.theta)):
            cohort = sent.cohort[block]
            weights = clients.weights(cohort)
            deltas, rows, loss = update(sent.theta, sent.W[block], *clients.draw(cohort, sent.round_num), factor)
            share = weights / weights.sum()
            delta = {k: torch.tensordot(share, d, dims=1) for k, d in deltas.items()}
            yield Update(cohort, delta, rows, weights, loss)

    return run_clients


def _block_size(cfg: Config, theta: Params) -> int:
    if cfg.train.block != "auto":
        return cfg.train.block
    return max(8, _CACHE // max(1, sum(p.nbytes for p in theta.values())))
