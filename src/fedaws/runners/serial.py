"""The readable reference: one client after the other. Every other runner is tested against this one."""

from collections.abc import Iterator

from torch import nn

from fedaws.config import Config
from fedaws.core.local import example_losses, local_update, own_gradient
from fedaws.core.schedule import schedule
from fedaws.data.federated import FederatedData
from fedaws.runners.common import ClientData
from fedaws.types import Broadcast, RunClients, Update


def serial(cfg: Config, data: FederatedData, encoder: nn.Module) -> RunClients:
    """Each client: its own examples, θ, its own row; E local steps; an Update of one."""
    clients, gradient = ClientData(cfg, data), own_gradient(example_losses(encoder, cfg))

    def run_clients(sent: Broadcast) -> Iterator[Update]:
        factor = schedule(cfg.train, sent.round_num)
        for j in range(len(sent.cohort)):
            client = sent.cohort[j : j + 1]
            x, y, share = clients.draw(client, sent.round_num)
            steps = zip(x[0], y[0], share[0], strict=True)
            delta, w, loss = local_update(gradient, cfg, sent.theta, sent.W[j], steps, factor)
            yield Update(client, delta, w[None], clients.weights(client), loss[None])

    return run_clients
