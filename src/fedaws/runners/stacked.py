"""Several local steps, many clients at once: the client's steps on stacked parameters."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn

from fedaws.config import Config
from fedaws.core.local import example_losses, local_update, stacked_gradient
from fedaws.core.method import Method
from fedaws.core.schedule import schedule
from fedaws.data.federated import FederatedData
from fedaws.machine.blocks import STACKED, slices
from fedaws.privacy.clipping import are_sound, clip_factors, stacked_norms, where_sound
from fedaws.runners.chains import chain_of, chain_update
from fedaws.runners.common import ClientData
from fedaws.types import Broadcast, RunClients, Update


def stacked(
    cfg: Config, method: Method, data: FederatedData, encoder: nn.Module, clients: ClientData | None = None
) -> RunClients:
    """The serial runner's `local_update` with a gradient for the whole stack, in blocks that stay in cache."""
    clients = clients or ClientData(cfg, method, data)
    gradient = stacked_gradient(example_losses(encoder, cfg, method, data.num_classes))
    chain = chain_of(encoder, cfg, method) if cfg.clients.local_steps > 1 else ()
    update = partial(chain_update, chain) if chain else partial(local_update, gradient)

    def run_clients(sent: Broadcast) -> Iterator[Update]:
        factor = schedule(cfg.train, sent.round_num)
        for block in slices(len(sent.cohort), _block_size(cfg, sent)):
            cohort = sent.cohort[block]
            weights = clients.weights(sent, block)
            theta = {k: v.expand(len(cohort), *v.shape) for k, v in sent.theta.items()}
            examples = clients.examples(clients.draw(cohort, sent.round_num), sent.classes)
            steps = zip(examples.x.unbind(1), examples.y.unbind(1), examples.share.unbind(1), strict=True)
            rows = sent.W[block] if sent.shared is None else sent.shared.expand(len(cohort), *sent.shared.shape)
            deltas, rows, loss = update(cfg, method, theta, rows, steps, factor)
            omega = weights / weights.sum()
            shares, clip, inside = omega, sent.clip or cfg.privacy.clip, None
            if clip is not None:
                norms = stacked_norms(deltas)
                shares, inside = omega * clip_factors(norms, factor * clip), norms <= factor * clip
                sound = are_sound(norms, rows, loss)
                if not bool(sound.all()):
                    deltas = {k: where_sound(sound, d, 0.0) for k, d in deltas.items()}
                    rows, loss = where_sound(sound, rows, sent.W[block]), where_sound(sound, loss, torch.nan)
                    shares = where_sound(sound, shares, 0.0)
            delta = {k: _mean(shares, d) for k, d in deltas.items()}
            own, shared = (rows, None) if sent.shared is None else (sent.W[block], _mean(omega, rows))
            yield Update(cohort, delta, own, weights, loss, shared, inside=inside)

    return run_clients


def _mean(omega: Tensor, changes: Tensor) -> Tensor:
    """Σ ω_i Δ_i of a stack of changes."""
    mean: Tensor = torch.tensordot(omega.to(changes.dtype), changes, dims=1)
    return mean


def _block_size(cfg: Config, sent: Broadcast) -> int:
    if cfg.train.block != "auto":
        return cfg.train.block
    shared = 0 if sent.shared is None else sent.shared.nbytes
    return max(8, 4 * STACKED // max(1, shared + sum(p.nbytes for p in sent.theta.values())))
