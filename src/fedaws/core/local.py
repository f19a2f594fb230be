r"""What a client does in a round: E steps on (θ, w_i), with its own examples and nothing else (Algorithm 1, lines 6–9).

The serial runner calls :func:`local_update` in a loop, the stacked runner on a stack of clients at once, the Flower
client on a device. All three therefore compute the same thing.
"""

from collections.abc import Callable, Iterable, Sized

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedaws.config import Config
from fedaws.core import losses
from fedaws.core.method import Method
from fedaws.core.optimizers import make_optimizer
from fedaws.errors import FedawsError
from fedaws.sparse import Rows
from fedaws.types import Memory, Params

ExampleLosses = Callable[[Params, Tensor, Rows, Tensor], Tensor]
"""(θ, rows, x [B, …], y [B]) → losses. `rows` is what a client has of W: its own row [d] → [B]; m clients' rows
[m, 1 or k, d], whose b examples each follow one another in x, → [m, b]; an oracle's client all of them [C, d] → [B]."""


Batch = tuple[Rows, Tensor, Tensor]
"""x, y and share of one step."""

Gradient = Callable[[Params, Tensor, Rows, Tensor, Tensor], tuple[tuple[Params, Tensor], Tensor]]
"""(θ, rows, x, y, share) → ((∇_θ, ∇_rows), risk), of one client or of a stack of them."""


_SHORTEST = 1e-2
"""Embeddings shorter than this are not stretched to the sphere: at 0, as of a blank picture, the gradient would be the
inverse of it, and one such example would drown all others."""


def embed(encoder: nn.Module, theta: Params, x: Rows, normalize: bool = True) -> Tensor:
    """g_θ(x), on the unit sphere unless `normalize` is off; [B, d]."""
    embeddings: Tensor = functional_call(encoder, theta, (x,))
    return on_sphere(embeddings) if normalize else embeddings


def on_sphere(embeddings: Tensor) -> Tensor:
    """Embeddings [B, d] at unit length, but for those that are nearly nothing."""
    return F.normalize(embeddings, dim=-1, eps=_SHORTEST)


def example_losses(encoder: nn.Module, cfg: Config, method: Method, num_classes: int) -> ExampleLosses:
    """The method's loss of each example, as a function of what a client has."""
    normalize, count = cfg.model.normalize, cfg.clients.sampled_classes
    loss: Callable[..., Tensor] = method.loss
    sample = None if count is None else losses.Sample(min(count, num_classes), num_classes)

    def of_own_rows(theta: Params, w: Tensor, x: Rows, y: Tensor) -> Tensor:
        embeddings = embed(encoder, theta, x, normalize).reshape(*w.shape[:-2], -1, w.shape[-1])
        places = [y.reshape(embeddings.shape[:-1])] if method.classes_per_client > 1 else []
        return _per_example(loss(embeddings, *places, w), embeddings)

    def of_all_rows(theta: Params, W: Tensor, x: Rows, y: Tensor) -> Tensor:
        embeddings = embed(encoder, theta, x, normalize)
        rows = F.normalize(W, dim=-1) if normalize else W
        return _per_example(loss(embeddings, y, rows, sample=sample), embeddings)

    return of_all_rows if method.rows == "all" else of_own_rows


def check_depends(risks: Tensor, leaves: Sized) -> None:
    """Refuse a loss without a gradient before PyTorch does."""
    if leaves and not risks.requires_grad:
        raise FedawsError(
            "the method's loss has no gradient: it does not depend on the embeddings by torch's operations; make it of "
            "tensors alone, without float(), .item() or .detach()"
        )


def _per_example(losses: Tensor, embeddings: Tensor) -> Tensor:
    if not isinstance(losses, Tensor):
        raise FedawsError(f"the method's loss gave a {type(losses).__name__}; wanted a tensor, one number per example")
    if losses.shape != embeddings.shape[:-1]:
        got, wanted = tuple(losses.shape), tuple(embeddings.shape[:-1])
        raise FedawsError(f"the method's loss has shape {got}; wanted one number per example, {wanted}")
    return losses


def loss_of_score(cfg: Config, method: Method) -> losses.OfScore | None:
    """The method's loss where it is one of the score with the client's only row, both on the sphere; else None."""
    own_score = cfg.model.normalize and method.rows != "all" and method.classes_per_client == 1
    return method.loss if own_score and isinstance(method.loss, losses.OfScore) else None


def score_gradient(loss: losses.OfScore, z: Tensor, w: Tensor, share: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""Each client's risk [m], and its gradients by z = g before it is put on the sphere [m, b, d] and by w [m, 1, d].

    .. math:: \partial_z = \frac{\varphi'(s)}{\|z\|} (w - s\,e), \quad \partial_w = \sum \varphi'(s)\, e,
              \quad e = z / \|z\|, \ s = e \cdot w
    """
    length = torch.linalg.vector_norm(z, dim=-1, keepdim=True)
    at_least = length.clamp_min(_SHORTEST)
    e = z / at_least
    s = torch.bmm(e, w.transpose(1, 2))
    slope = loss.slope(s) * share[..., None]  # a slope may be s itself
    along = torch.where(length >= _SHORTEST, s, 0)  # a short z is not put on the sphere
    return (
        (loss.value(s)[..., 0] * share).sum(1),
        torch.addcmul(w, e, along, value=-1).mul_(slope / at_least),
        torch.bmm(slope.transpose(1, 2), e),
    )


def own_gradient(loss_of: ExampleLosses) -> Gradient:
    """∇ of one client's risk, and the risk."""
    return _gradient(lambda theta, w, x, y, share: (loss_of(theta, w, x, y) * share).sum())


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
        leaves = leaves_of(theta)
        w = w.detach().requires_grad_()
        with torch.enable_grad():
            risks = risks_of(leaves, w, x, y, share)
            check_depends(risks, leaves)
            gradients = torch.autograd.grad(risks.sum(), [*leaves.values(), w], materialize_grads=True)
        return (dict(zip(leaves, gradients, strict=False)), gradients[-1]), risks.detach()

    return gradient


def leaves_of(theta: Params) -> Params:
    """The same parameters, from which gradients are taken."""
    return {k: v.detach().requires_grad_() for k, v in theta.items()}


def local_update(
    gradient: Gradient, cfg: Config, method: Method, theta: Params, rows: Tensor, steps: Iterable[Batch], factor: float
) -> tuple[Params, Tensor, Tensor]:
    r"""The local steps of one client, or of a stack of clients; returns (θ_i − θ, its rows, mean loss).

    .. math:: (\theta, w_i) \leftarrow (\theta, w_i) - \eta \nabla \hat R_{pos}(S^i), \quad w_i \leftarrow w_i/\|w_i\|

    `steps` gives each step's x, y and share: the examples' parts of the step's mean (1/b, or 0 for padding). `factor`
    is the schedule's factor on the learning rate. Every step projects w_i back onto the sphere: the paper is silent on
    this, but without it several steps would lower the loss by stretching w_i. An oracle's client gets the change of all
    rows in place of its row.
    """
    count, shared = cfg.clients.local_steps, method.rows == "all"
    lr, row_lr = factor * cfg.clients.lr, factor * (cfg.clients.lr if shared else cfg.class_lr)
    # A single step is itself the delta: θ_i − θ would lose its digits where the step is small. With several steps the
    # difference is taken: adding up the steps beside θ_i would be one more pass over all parameters in every step.
    current, memory, row_memory, total = theta, Memory(), Memory(), torch.zeros((), device=rows.device)
    own = rows
    for x, y, share in steps:
        (theta_gradient, row_gradient), loss = gradient(current, own, x, y, share)
        current, memory = _descend(cfg, current, theta_gradient, memory, lr, only_step=count == 1)
        if shared or method.trains_own_row:
            only_step = shared and count == 1
            moved, row_memory = _descend(cfg, {"w": own}, {"w": row_gradient}, row_memory, row_lr, only_step)
            own = moved["w"] if shared else F.normalize(moved["w"], dim=-1)
        total = total + loss
    delta = current if count == 1 else {k: v - theta[k] for k, v in current.items()}
    return delta, own - rows if shared and count > 1 else own, total / count


def _descend(
    cfg: Config, params: Params, gradient: Params, memory: Memory, lr: float, only_step: bool
) -> tuple[Params, Memory]:
    """One step of the client's optimiser, added to `params`; or the step by itself."""
    if cfg.clients.optimizer == "sgd" and cfg.clients.momentum == 0:  # the common case, without a temporary for −∇
        return {k: g * -lr if only_step else params[k].sub(g, alpha=lr) for k, g in gradient.items()}, memory
    optimizer = make_optimizer(cfg.clients.optimizer, cfg.clients.momentum)
    descent = {k: -g for k, g in gradient.items()}
    step, memory = optimizer.step(params, descent, memory or optimizer.init(descent), lr)
    return {k: s if only_step else params[k] + s for k, s in step.items()}, memory
