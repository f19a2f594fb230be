r"""What a client does in a round: E steps on (θ, w_i), with its own examples and nothing else (Algorithm 1, lines 6–9).

The serial runner calls :func:`local_update` in a loop, the stacked runner on a stack of clients at once, the Flower
client on a device. All three therefore compute the same thing.
"""

from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedaws.config import Config
from fedaws.core import losses
from fedaws.core.methods import method_of
from fedaws.core.optimizers import Slots, optimizer_step
from fedaws.sparse import Rows
from fedaws.types import CLASS_MATRIX, Params

ExampleLosses = Callable[[Params, Tensor, Rows, Tensor], Tensor]
"""(θ, w, x [B, …], y [B]) → losses: [B] with the client's own row w [d]; [m, b] with the rows [m, 1, d] of m clients,
whose b examples each follow one another in x."""


Batch = tuple[Rows, Tensor, Tensor]
"""x, y and share of one step."""

Gradient = Callable[[Params, Tensor, Rows, Tensor, Tensor], tuple[tuple[Params, Tensor], Tensor]]
"""(θ, w, x, y, share) → ((∇_θ, ∇_w), risk), of one client or of a stack of them."""


def embed(encoder: nn.Module, theta: Params, x: Rows, normalize: bool = True) -> Tensor:
    """g_θ(x), on the unit sphere unless `normalize` is off; [B, d]."""
    embeddings: Tensor = functional_call(encoder, theta, (x,))
    return F.normalize(embeddings, dim=-1) if normalize else embeddings


def example_losses(encoder: nn.Module, cfg: Config, num_classes: int) -> ExampleLosses:
    """The configured method's loss of each example, as a function of what a client has."""
    normalize, clients = cfg.model.normalize, cfg.clients
    loss_name, count = method_of(cfg).loss, cfg.clients.sampled_classes
    sample = None if count is None else losses.Sample(min(count, num_classes), num_classes)

    def of_own_row(theta: Params, w: Tensor, x: Rows, y: Tensor) -> Tensor:
        embeddings = embed(encoder, theta, x, normalize)
        return losses.positive_hinge(embeddings.reshape(*w.shape[:-2], -1, w.shape[-1]), w, clients.margin)

    def of_all_rows(theta: Params, w: Tensor, x: Rows, y: Tensor) -> Tensor:
        encoder_theta = {k: v for k, v in theta.items() if k != CLASS_MATRIX}
        embeddings = embed(encoder, encoder_theta, x, normalize)
        W = F.normalize(theta[CLASS_MATRIX], dim=-1) if normalize else theta[CLASS_MATRIX]
        match loss_name:
            case "softmax":
                return losses.softmax_cross_entropy(embeddings, y, W, clients.scale if normalize else 1.0, sample)
            case "triplet":
                return losses.triplet(embeddings, y, W, sample=sample)
            case _:
                return losses.cosine_contrastive(embeddings, y, W, cfg.spread.margin, clients.margin, sample)

    return of_own_row if loss_name == "positive-hinge" else of_all_rows


def own_gradient(loss_of: ExampleLosses) -> Gradient:
    """∇ of one client's risk, and the risk."""

    def risk(theta: Params, w: Tensor, x: Rows, y: Tensor, share: Tensor) -> Tensor:
        return (loss_of(theta, w, x, y) * share).sum()

    return _gradient(risk)


def stacked_gradient(loss_of: ExampleLosses) -> Gradient:
    """∇ of m clients' risks at once, and the risks [m]; every argument has the clients on dim 0.

    A client's parameters take part in its own risk only, so the gradient of the risks' sum holds each client's own.
    """
    of_many = vmap(loss_of)

    def risks(theta: Params, w: Tensor, x: Rows, y: Tensor, share: Tensor) -> Tensor:
        if len(w) > 1:
            return (of_many(theta, w, x, y) * share).sum(1)
        # A stack of one needs no vmap, under which GroupNorm refuses images with their channels last.
        losses = loss_of({k: v[0] for k, v in theta.items()}, w[0], x[0], y[0])  # type: ignore[index]
        return (losses[None] * share).sum(1)

    return _gradient(risks)


def _gradient(risks_of: Callable[[Params, Tensor, Rows, Tensor, Tensor], Tensor]) -> Gradient:
    def gradient(theta: Params, w: Tensor, x: Rows, y: Tensor, share: Tensor) -> tuple[tuple[Params, Tensor], Tensor]:
        leaves = {k: v.detach().requires_grad_() for k, v in theta.items()}
        w = w.detach().requires_grad_()
        with torch.enable_grad():
            risks = risks_of(leaves, w, x, y, share)
            found = torch.autograd.grad(risks.sum(), [*leaves.values(), w], materialize_grads=True)
        return (dict(zip(leaves, found, strict=False)), found[-1]), risks.detach()

    return gradient


def local_update(
    gradient: Gradient, cfg: Config, theta: Params, w: Tensor, steps: Iterable[Batch], factor: float
) -> tuple[Params, Tensor, Tensor]:
    r"""The local steps of one client, or of a stack of clients; returns (θ_i − θ, w_i, mean loss).

    .. math:: (\theta, w_i) \leftarrow (\theta, w_i) - \eta \nabla \hat R_{pos}(S^i), \quad w_i \leftarrow w_i/\|w_i\|

    `steps` gives each step's x, y and share: the examples' parts of the step's mean (1/b, or 0 for padding). `factor`
    is the schedule's factor on the learning rate. Every step projects w_i back onto the sphere: the paper is silent on
    this, but without it several steps would lower the loss by stretching w_i.
    """
    train_row, count = method_of(cfg).rows == "own", cfg.clients.local_steps
    # A single step is itself the delta: θ_i − θ would lose its digits where the step is small. With several steps the
    # difference is taken: adding up the steps beside θ_i would be one more pass over all parameters in every step.
    current, slots, row_slots, total = theta, Slots(), Slots(), torch.zeros((), device=w.device)
    for x, y, share in steps:
        (theta_gradient, row_gradient), loss = gradient(current, w, x, y, share)
        current, slots = _descend(cfg, {} if count == 1 else current, theta_gradient, slots, factor * cfg.clients.lr)
        if train_row:
            moved, row_slots = _descend(cfg, {"w": w}, {"w": row_gradient}, row_slots, factor * cfg.class_lr)
            w = F.normalize(moved["w"], dim=-1) if cfg.model.normalize else moved["w"]
        total = total + loss
    delta = current if count == 1 else {k: v - theta[k] for k, v in current.items()}
    return delta, w, total / count


def _descend(cfg: Config, params: Params, gradient: Params, slots: Slots, lr: float) -> tuple[Params, Slots]:
    """One step of the client's optimiser, added to `params`; without any, the step by itself."""
    if cfg.clients.optimizer == "sgd" and cfg.clients.momentum == 0:  # the common case, without a temporary for −∇
        return {k: params[k].sub(g, alpha=lr) if params else g * -lr for k, g in gradient.items()}, slots
    descent = {k: -g for k, g in gradient.items()}
    step, slots = optimizer_step(cfg.clients.optimizer, descent, slots, lr, cfg.clients.momentum)
    return {k: params[k] + s if params else s for k, s in step.items()}, slots
