"""The readable reference: one client after the other. Every other runner is tested against this one."""

from collections.abc import Iterable

from torch import nn

from fedaws.config import Config
from fedaws.core.local import Gradient, example_losses, local_update, own_gradient
from fedaws.core.schedule import schedule
from fedaws.data.federated import FederatedData
from fedaws.machine.threads import Workers, own_copies
from fedaws.runners.common import ClientData
from fedaws.types import Broadcast, RunClients, Update


def serial(cfg: Config, data: FederatedData, encoder: nn.Module) -> RunClients:
    """Each client: its own examples, θ, its own row; E local steps; an Update of one. Convolutions: a client a core."""
    clients = ClientData(cfg, data)
    workers = Workers([own_gradient(example_losses(copy, cfg, data.num_classes)) for copy in own_copies(encoder)])

    def run_clients(sent: Broadcast) -> Iterable[Update]:
        factor = schedule(cfg.train, sent.round_num)
        drawn = clients.draw(sent.cohort, sent.round_num)

        def update_of(gradient: Gradient, j: int) -> Update:
            client, own = sent.cohort[j : j + 1], drawn.part(slice(j, j + 1))
            rows, y, share = clients.examples(own, sent.classes)
            steps = zip(rows.split(y.shape[2]), y[0], share[0], strict=True)
            delta, w, loss = local_update(gradient, cfg, sent.theta, sent.W[j], steps, factor)
            return Update(client, delta, w[None], clients.weights(client), loss[None])

        return workers.map(update_of, range(len(sent.cohort)))

    return run_clients
