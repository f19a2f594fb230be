r"""What a client does in a round: E steps on (θ, w_i), with its own examples and nothing else (Algorithm 1, lines 6–9).

The serial runner calls :func:`local_update` in a loop, the stacked runner maps it over many clients at once, the
Flower client calls it on a device. All three therefore compute the same thing.
"""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value

from fedaws.config import Config
from fedaws.core import losses
from fedaws.core.methods import method_of
from fedaws.core.optimizers import Slots, optimizer_step
from fedaws.types import CLASS_MATRIX, Params

ExampleLosses = Callable[[Params, Tensor, Tensor, Tensor], Tensor]
"""(θ, w, x [B, …], y [B]) → losses: [B] with the client's own row w [d]; [m, b] with the rows [m, 1, d] of m clients,
whose b examples each follow one another in x."""


def embed(encoder: nn.Module, theta: Params, x: Tensor, normalize: bool = True) -> Tensor:
    """g_θ(x), on the unit sphere unless `normalize` is off; [B, d]."""
    embeddings: Tensor = functional_call(encoder, theta, (x,))
    return F.normalize(embeddings, dim=-1) if normalize else embeddings


def example_losses(encoder: nn.Module, cfg: Config) -> ExampleLosses:
    """The configured method's loss of each example, as a function of what a client has."""
    normalize, clients = cfg.model.normalize, cfg.clients
    loss_name = method_of(cfg).loss

    def of_own_row(theta: Params, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        embeddings = embed(encoder, theta, x, normalize)
        return losses.positive_hinge(embeddings.reshape(*w.shape[:-2], -1, w.shape[-1]), w, clients.margin)

    def of_all_rows(theta: Params, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        encoder_theta = {k: v for k, v in theta.items() if k != CLASS_MATRIX}
        embeddings = embed(encoder, encoder_theta, x, normalize)
        W = F.normalize(theta[CLASS_MATRIX], dim=-1) if normalize else theta[CLASS_MATRIX]
        match loss_name:
            case "softmax":
                return losses.softmax_cross_entropy(embeddings, y, W, clients.scale if normalize else 1.0)
            case "triplet":
                return losses.triplet(embeddings, y, W)
            case _:
                return losses.cosine_contrastive(embeddings, y, W, cfg.spread.margin, clients.margin)

    return of_own_row if loss_name == "positive-hinge" else of_all_rows


def local_update(
    loss_of: ExampleLosses, cfg: Config, theta: Params, w: Tensor, x: Tensor, y: Tensor, share: Tensor, factor: float
) -> tuple[Params, Tensor, Tensor]:
    r"""E local steps of one client; returns (θ_i − θ, w_i, mean loss).

    .. math:: (\theta, w_i) \leftarrow (\theta, w_i) - \eta \nabla \hat R_{pos}(S^i), \quad w_i \leftarrow w_i/\|w_i\|

    x is [E, b, …], y and share are [E, b]; `share` is each example's part of its step's mean (1/b, or 0 for padding),
    `factor` the schedule's factor on the learning rate. Every step projects w_i back onto the sphere: the paper is
    silent on this, but without it several steps would lower the loss by stretching w_i.
    """
    train_row = method_of(cfg).rows == "own"

    def risk(theta: Params, w: Tensor, x: Tensor, y: Tensor, share: Tensor) -> Tensor:
        return (loss_of(theta, w, x, y) * share).sum()

    gradient = grad_and_value(risk, argnums=(0, 1) if train_row else (0,))
    delta, slots, row_slots, total = Params(), Slots(), Slots(), share.new_zeros(())
    for step in range(cfg.clients.local_steps):
        # The steps are added up, and θ_i is θ plus their sum: θ_i − θ would cancel where the steps are small.
        current = {k: v + delta[k] for k, v in theta.items()} if delta else theta
        gradients, loss = gradient(current, w, x[step], y[step], share[step])
        delta, slots = _descend(cfg, delta, gradients[0], slots, factor * cfg.clients.lr)
        if train_row:
            moved, row_slots = _descend(cfg, {"w": w}, {"w": gradients[1]}, row_slots, factor * cfg.class_lr)
            w = F.normalize(moved["w"], dim=-1) if cfg.model.normalize else moved["w"]
        total = total + loss
    return delta, w, total / cfg.clients.local_steps


def _descend(cfg: Config, params: Params, gradient: Params, slots: Slots, lr: float) -> tuple[Params, Slots]:
    """One step of the client's optimiser, added to `params` (which are zero at first, if empty)."""
    if cfg.clients.optimizer == "sgd" and cfg.clients.momentum == 0:  # the common case, without a temporary for −∇
        return {k: params[k].sub(g, alpha=lr) if params else g * -lr for k, g in gradient.items()}, slots
    descent = {k: -g for k, g in gradient.items()}
    step, slots = optimizer_step(cfg.clients.optimizer, descent, slots, lr, cfg.clients.momentum)
    return {k: params[k] + s if params else s for k, s in step.items()}, slots
