"""The readable reference: one client after the other. Every other runner is tested against this one."""

from collections.abc import Iterable

from torch import nn

from fedaws.config import Config
from fedaws.core.local import Gradient, example_losses, local_update, own_gradient
from fedaws.core.method import Method
from fedaws.core.schedule import schedule
from fedaws.data.federated import FederatedData
from fedaws.machine.threads import Workers, own_copies
from fedaws.privacy.clipping import clipped_work
from fedaws.runners.common import ClientData
from fedaws.types import Broadcast, RunClients, Update


def serial(
    cfg: Config, method: Method, data: FederatedData, encoder: nn.Module, clients: ClientData | None = None
) -> RunClients:
    """Each client: its examples, θ and its row; E local steps; an Update of one. Convolutions: one client per core."""
    clients = clients or ClientData(cfg, method, data)
    losses = (example_losses(copy, cfg, method, data.num_classes) for copy in own_copies(encoder))
    workers = Workers([own_gradient(loss_of) for loss_of in losses])

    def run_clients(sent: Broadcast) -> Iterable[Update]:
        factor = schedule(cfg.train, sent.round_num)
        drawn = clients.draw(sent.cohort, sent.round_num)

        def update_of(gradient: Gradient, j: int) -> Update:
            one = slice(j, j + 1)
            x, y, share = clients.examples(drawn.part(one), sent.classes)
            steps = zip(x.split(y.shape[2]), y[0], share[0], strict=True)
            rows = sent.W[j] if sent.shared is None else sent.shared
            delta, rows, loss = local_update(gradient, cfg, method, sent.theta, rows, steps, factor)
            clip, inside = sent.clip or cfg.privacy.clip, None
            if clip is not None:
                delta, rows, loss, inside = clipped_work(delta, rows, loss, factor * clip, sent.W[j])
                inside = inside[None]
            own, shared = (rows[None], None) if sent.shared is None else (sent.W[one], rows)
            return Update(sent.cohort[one], delta, own, clients.weights(sent, one), loss[None], shared, inside=inside)

        return workers.map(update_of, range(len(sent.cohort)))

    return run_clients
