r"""One local step: the whole cohort in one pass.

With one SGD step and no clipping per client the weighted mean of the clients' parameters *is* one step on the pooled,
re-weighted batch:

.. math:: \sum_i \omega_i (\theta - \eta \nabla R_i) = \theta - \eta \nabla \sum_i \omega_i R_i

so a block of clients needs one forward and backward pass. Each client's row w_i takes part in its own risk only, so
∇_{w_i} of the sum is ω_i times the gradient that the client itself would have found.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedaws.config import Config
from fedaws.core.local import ExampleLosses, example_losses
from fedaws.core.methods import method_of
from fedaws.core.schedule import schedule
from fedaws.data.federated import FederatedData
from fedaws.runners.common import ClientData, Examples, blocks
from fedaws.types import Broadcast, Params, RunClients, Update

_EXAMPLES = 16384
"""Examples in a micro-batch: activations stay in cache, and PyTorch's overhead is paid rarely."""


def pooled(cfg: Config, data: FederatedData, encoder: nn.Module) -> RunClients:
    """One pass per block of clients."""
    clients, loss_of = ClientData(cfg, data), example_losses(encoder, cfg)
    train_rows = method_of(cfg).rows == "own"

    def run_clients(sent: Broadcast) -> Iterator[Update]:
        factor = schedule(cfg.train, sent.round_num)
        drawn = clients.draw(sent.cohort, sent.round_num)
        size = max(1, _EXAMPLES // drawn.y.shape[2]) if cfg.train.block == "auto" else cfg.train.block
        for block in blocks(len(sent.cohort), size):
            cohort, rows = sent.cohort[block], sent.W[block]
            weights = clients.weights(cohort)
            examples = Examples(*(part[block] for part in drawn))
            gradient, row_gradient, risks = _pass(
                loss_of, sent.theta, rows, examples, weights / weights.sum(), train_rows
            )
            if row_gradient is not None:
                rows = rows - factor * cfg.class_lr * row_gradient
                rows = F.normalize(rows, dim=1) if cfg.model.normalize else rows
            delta = {k: g.mul_(-factor * cfg.clients.lr) for k, g in gradient.items()}
            yield Update(cohort, delta, rows, weights, risks)

    return run_clients


def _pass(
    loss_of: ExampleLosses, theta: Params, rows: Tensor, examples: Examples, omega: Tensor, train_rows: bool
) -> tuple[Params, Tensor | None, Tensor]:
    """Gradients of Σ ω_i R_i for θ and of each R_i for its row; the risks R_i."""
    x, y, share = examples.x.flatten(0, 2), examples.y.flatten(), examples.share.flatten(1)
    theta = {k: v.detach().requires_grad_() for k, v in theta.items()}
    rows = rows.detach().requires_grad_(train_rows)
    with torch.enable_grad():
        risks = (loss_of(theta, rows[:, None], x, y).view_as(share) * share).sum(1)
        wanted = [*theta.values(), rows] if train_rows else [*theta.values()]
        gradients = torch.autograd.grad((risks * omega).sum(), wanted, materialize_grads=True)
    row_gradient = gradients[-1] / omega[:, None] if train_rows else None
    return dict(zip(theta, gradients, strict=False)), row_gradient, risks.detach()
