r"""Several local SGD steps of many small perceptrons: batched products by hand, no autograd and no vmap.

For layers :math:`h_{l+1} = \mathrm{relu}(h_l A_l^T + b_l)`, z the last and e = z/‖z‖, a loss φ of the score s = e · w
has

.. math:: \partial_z = \frac{\varphi'(s)}{\|z\|} (w - s\,e), \quad \partial_w = \sum \varphi'(s)\, e, \quad
          A_l \leftarrow A_l - \eta\, \partial_{l+1}^T h_l, \quad \partial_l = (\partial_{l+1} A_l)\,[h_l > 0] .

The step is taken inside the product. In the first one all clients still have the same θ: one product for all of them.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedaws.config import Config
from fedaws.core.local import Batch, loss_of_score, score_gradient
from fedaws.core.losses import OfScore
from fedaws.core.method import Method
from fedaws.runners.common import Examples
from fedaws.types import Params


class Link(NamedTuple):
    """A linear layer by the names of its parameters, and whether a ReLU follows."""

    weight: str
    bias: str | None
    relu: bool


Chain = tuple[Link, ...]


def chain_of(encoder: nn.Module, cfg: Config, method: Method) -> Chain:
    """The layers, if they are linear with ReLUs between, trained by plain SGD on a loss of the score; else none."""
    plain = cfg.clients.optimizer == "sgd" and cfg.clients.momentum == 0
    if not plain or loss_of_score(cfg, method) is None or type(encoder) is not nn.Sequential:
        return ()
    layers = [(name, layer) for name, layer in encoder._modules.items() if layer is not None]  # also one that is reused
    if not all(map(_is_bare, [encoder, *(layer for _, layer in layers)])):
        return ()
    if layers and _flattens(layers[0][1]):
        del layers[0]
    in_turn = [nn.ReLU if place % 2 else nn.Linear for place in range(len(layers))]
    if len(layers) % 2 == 0 or [type(layer) for _, layer in layers] != in_turn:
        return ()
    links = tuple(
        Link(f"{name}.weight", f"{name}.bias" if layer.bias is not None else None, name != layers[-1][0])
        for name, layer in layers
        if isinstance(layer, nn.Linear)
    )
    trained = {name for name, tensor in encoder.named_parameters() if tensor.requires_grad}
    named = {name for link in links for name in link[:2] if name}
    return links if named == trained else ()


def _is_bare(layer: nn.Module) -> bool:
    """Without hooks or parametrisations, of which a product by hand would know nothing."""
    hooks = layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks
    return not any(hooks) and (type(layer) is nn.Sequential or not list(layer.children()))


def _flattens(layer: nn.Module) -> bool:
    """Whether it makes each example one row of numbers."""
    return type(layer) is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1)


def chain_update(
    links: Chain, cfg: Config, method: Method, theta: Params, rows: Tensor, steps: Iterable[Batch], factor: float
) -> tuple[Params, Tensor, Tensor]:
    """`local_update` of a stack of clients that start from one θ, [m, …] views of it."""
    loss, lr, row_lr = method.loss, factor * cfg.clients.lr, factor * cfg.class_lr
    assert isinstance(loss, OfScore)
    shared, current, own = {k: v[0] for k, v in theta.items()}, Params(), rows[:, None]
    total = torch.zeros((), device=rows.device)
    for x, _, share in steps:
        assert isinstance(x, Tensor)
        inputs = list(_forward(links, current or shared, x.flatten(2)))
        losses, by_z, by_w = score_gradient(loss, inputs.pop(), own, share)
        current = _backward(links, current, shared, inputs, by_z, lr)
        if method.trains_own_row:
            own = F.normalize(own.sub(by_w, alpha=row_lr), dim=-1)
        total = total + losses
    return {k: v - shared[k] for k, v in current.items()}, own[:, 0], total / cfg.clients.local_steps


def chain_gradient(
    links: Chain, loss: OfScore, theta: Params, rows: Tensor, examples: Examples, omega: Tensor, _: bool
) -> tuple[Params, Tensor, Tensor]:
    """∇ of Σ ω_i R_i for the one θ and for the rows [m, 1, d], and the risks R_i [m].

    Without autograd: of a small cohort its bookkeeping would be half of the time.
    """
    assert isinstance(examples.rows, Tensor)
    share = examples.share.flatten(1)
    inputs, gradient = list(_forward(links, theta, examples.rows.flatten(1))), Params()
    risks, by_z, by_rows = score_gradient(loss, inputs.pop().view(*share.shape, -1), rows, share)
    by_h = by_z.mul_(omega[:, None, None]).flatten(0, 1)
    for (weight, bias, _), h in zip(reversed(links), reversed(inputs), strict=True):
        gradient[weight] = by_h.T @ h
        if bias is not None:
            gradient[bias] = by_h.sum(0)
        if h is not inputs[0]:
            by_h = (by_h @ theta[weight]).mul_(h > 0)
    return {k: gradient[k] for k in theta}, by_rows * omega[:, None, None], risks


def _forward(links: Chain, params: Params, h: Tensor) -> Iterator[Tensor]:
    """What each layer is given, and what the last gives; [m, b, …], or [m · b, …] with parameters for all."""
    for weight, bias, relu in links:
        yield h
        A, b = params[weight], None if bias is None else params[bias]
        if A.ndim == 2:
            h = F.linear(h, A, b)
        elif b is None:
            h = torch.bmm(h, A.transpose(1, 2))
        else:
            h = torch.baddbmm(b[:, None], h, A.transpose(1, 2))
        h = h.relu_() if relu else h
    yield h


def _backward(links: Chain, current: Params, shared: Params, inputs: list[Tensor], by_h: Tensor, lr: float) -> Params:
    """The stacked parameters after the step: in place, but for the first, which leaves the shared ones as they are."""
    moved = Params()
    for (weight, bias, _), h in zip(reversed(links), reversed(inputs), strict=True):
        A = current.get(weight, shared[weight])
        below = None if h is inputs[0] else (by_h @ A if A.ndim == 2 else torch.bmm(by_h, A))
        transposed = by_h.transpose(1, 2)
        if A.ndim == 2:
            moved[weight] = torch.baddbmm(A.expand(len(h), *A.shape), transposed, h, alpha=-lr)
        else:
            moved[weight] = A.baddbmm_(transposed, h, alpha=-lr)
        if bias is not None:
            moved[bias] = current.get(bias, shared[bias]).sub(by_h.sum(1), alpha=lr)
        if below is not None:
            by_h = below.mul_(h > 0)
    return moved
