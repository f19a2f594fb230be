r"""One local step: the whole cohort in one pass.

With one SGD step the weighted mean of the clients' parameters *is* one step on the pooled,
re-weighted batch:

.. math:: \sum_i \omega_i (\theta - \eta \nabla R_i) = \theta - \eta \nabla \sum_i \omega_i R_i

so a block of clients needs one forward and backward pass. Each client's row w_i takes part in its own risk only, so
∇_{w_i} of the sum is ω_i times the gradient that the client itself would have found. Where each client's change is to
be clipped, `privacy/ghost.py` finds the norms in the same pass.
"""

import math
from collections.abc import Callable, Iterable
from functools import cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from fedaws.config import Config
from fedaws.core.local import ExampleLosses, check_depends, example_losses, leaves_of, loss_of_score, score_gradient
from fedaws.core.losses import OfScore, softmax_cross_entropy
from fedaws.core.method import Method
from fedaws.core.schedule import schedule
from fedaws.data.federated import FederatedData
from fedaws.machine.blocks import POOLED, slices
from fedaws.machine.threads import Workers, own_copies
from fedaws.models import batch_norms
from fedaws.privacy.clipping import where_sound
from fedaws.privacy.ghost import clipped_pass
from fedaws.runners.chains import chain_gradient, chain_of
from fedaws.runners.common import ClientData, Examples, even_blocks
from fedaws.sparse import Rows
from fedaws.types import Broadcast, Params, RunClients, Update


def pooled(
    cfg: Config, method: Method, data: FederatedData, encoder: nn.Module, clients: ClientData | None = None
) -> RunClients:
    """One pass per block of clients; of convolutions the blocks are shared out among the cores, not the layers."""
    clients = clients or ClientData(cfg, method, data)
    together = bool(batch_norms(encoder))  # statistics of the cohort's batch: it cannot be divided
    copies = [encoder] if together else own_copies(encoder)
    workers = Workers([_gradient_of(copy, cfg, method, data.num_classes) for copy in copies])
    clip = cfg.privacy.clip or math.inf
    of_loss = _kept_by_loss(cfg, method, data.num_classes)

    @cache
    def bytes_per_client(size: int | None) -> int:
        examples = clients.examples(clients.draw(data.available[:1], 0)._replace(size=size))
        pair = examples.rows.index_select(0, examples.y.new_zeros(2))
        return examples.y.numel() * (bytes_per_example(encoder, pair) + 3 * 4 * of_loss)

    def run_clients(sent: Broadcast) -> Iterable[Update]:
        factor = schedule(cfg.train, sent.round_num)
        drawn = clients.draw(sent.cohort, sent.round_num)

        def update_of(gradient_of: Gradient, block: slice) -> Update:
            examples = clients.examples(drawn.part(block), sent.classes)
            weights = clients.weights(sent, block)
            omega = weights / weights.sum()
            own = sent.W[block]
            own_rows = own[:, None] if own.ndim == 2 else own  # [m, k, d]
            rows = own_rows if sent.shared is None else sent.shared
            trained = method.trains_own_row or sent.shared is not None
            given = sent.theta, rows, examples, omega, trained
            gradient, row_gradient, risks, inside = gradient_of(*given, (sent.clip or clip) / cfg.clients.lr)
            if method.trains_own_row and row_gradient is not None:
                own_gradient = row_gradient / omega[:, None, None] if inside is None else row_gradient
                moved = F.normalize(own - factor * cfg.class_lr * own_gradient.view_as(own), dim=-1)
                own = moved if inside is None else where_sound(risks.isfinite(), moved, own)
            for g in gradient.values():  # a sparse tensor's own `mul_` forgets that each row stands there once
                (g._values() if g.is_sparse else g).mul_(-factor * cfg.clients.lr)
            shared = None
            if sent.shared is not None and row_gradient is not None:
                shared = row_gradient.mul_(-factor * cfg.clients.lr)
            return Update(sent.cohort[block], gradient, own, weights, risks, shared, inside=inside)

        count = len(sent.cohort)
        if together:
            parts = slices(count, count)
        elif cfg.train.block == "auto":
            parts = even_blocks(count, _block_count(count, bytes_per_client(drawn.size), len(workers)))
        else:
            parts = slices(count, cfg.train.block)
        return workers.map(update_of, parts)

    return run_clients


def _kept_by_loss(cfg: Config, method: Method, num_classes: int) -> int:
    """Numbers per example that a loss keeps, three times each: all cosines; of the softmax, which works in blocks of
    its own, g(x).
    """
    if method.rows != "all":
        return 0
    if getattr(method.loss, "func", method.loss) is softmax_cross_entropy:
        return cfg.model.embedding_dim
    return min(cfg.clients.sampled_classes or num_classes, num_classes)


def _block_count(count: int, bytes_per_client: int, workers: int) -> int:
    """As few blocks as the cache allows, and as many for one worker as for the other."""
    fitting = max(1, 4 * POOLED // bytes_per_client)
    return min(count, workers * math.ceil(count / (fitting * workers)))


def bytes_per_example(encoder: nn.Module, pair: Rows) -> int:
    """What a forward pass keeps for the backward one, for each example: two examples keep so much more than one."""
    one, two = (_kept_bytes(encoder, pair[:count]) for count in (1, 2))
    return max(1, two - one)


def _kept_bytes(encoder: nn.Module, x: Rows) -> int:
    sizes: dict[int, int] = {}  # by address

    def keep(tensor: Tensor) -> Tensor:
        sizes[tensor.data_ptr()] = tensor.nbytes
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = encoder(x)
    del out  # until here the graph held every tensor, so that no two had the same address
    return sum(sizes.values())


Gradients = tuple[Params, Tensor | None, Tensor]
Gradient = Callable[
    [Params, Tensor, Examples, Tensor, bool, float], tuple[Params, Tensor | None, Tensor, Tensor | None]
]
"""(θ, rows, examples, ω, whether the rows are trained, limit) → ∇ of Σ ω_i R_i for θ and the rows, and the risks R_i;
where clients are cut to the limit, also who was within it."""


def _gradient_of(encoder: nn.Module, cfg: Config, method: Method, num_classes: int) -> Gradient:
    loss_of, loss = example_losses(encoder, cfg, method, num_classes), loss_of_score(cfg, method)
    if cfg.privacy.clip is not None:
        return partial(_clipped, encoder, loss_of)
    if loss is None:
        return _whole(partial(_by_autograd, loss_of))
    chain = chain_of(encoder, cfg, method)
    return _whole(partial(chain_gradient, chain, loss) if chain else partial(_by_score, encoder, loss))


def _whole(gradient_of: Callable[[Params, Tensor, Examples, Tensor, bool], Gradients]) -> Gradient:
    """Where nobody's gradient is cut."""
    return lambda theta, rows, examples, omega, train, _: (*gradient_of(theta, rows, examples, omega, train), None)


def _clipped(
    encoder: nn.Module,
    loss_of: ExampleLosses,
    theta: Params,
    rows: Tensor,
    examples: Examples,
    omega: Tensor,
    train_rows: bool,
    most: float,
) -> tuple[Params, Tensor | None, Tensor, Tensor]:
    """Each client's ∇_θ cut to the length `most`, ∇ of the rows without ω.

    The schedule's factor is in the change and in its limit, so that the gradient's limit has none.
    """
    batch = examples.rows, examples.y.flatten(), examples.share.flatten(1)
    return clipped_pass(encoder, loss_of, theta, rows, *batch, omega, most, train_rows)


def _by_autograd(
    loss_of: ExampleLosses, theta: Params, rows: Tensor, examples: Examples, omega: Tensor, train_rows: bool
) -> Gradients:
    x, y, share = examples.rows, examples.y.flatten(), examples.share.flatten(1)
    theta = leaves_of(theta)
    rows = rows.detach().requires_grad_(train_rows)
    with torch.enable_grad():
        risks = (loss_of(theta, rows, x, y).view_as(share) * share).sum(1)
        leaves = [*theta.values(), rows] if train_rows else [*theta.values()]
        check_depends(risks, leaves)
        gradients = torch.autograd.grad((risks * omega).sum(), leaves, materialize_grads=True)
    return dict(zip(theta, gradients, strict=False)), gradients[-1] if train_rows else None, risks.detach()


def _by_score(
    encoder: nn.Module, loss: OfScore, theta: Params, rows: Tensor, examples: Examples, omega: Tensor, train_rows: bool
) -> Gradients:
    """The same where the loss is one of the score: autograd for the encoder alone."""
    share, theta = examples.share.flatten(1), leaves_of(theta)
    with torch.enable_grad():
        z: Tensor = functional_call(encoder, theta, (examples.rows,))
    apart = z.detach().view(*share.shape, -1)
    risks, by_z, by_rows = score_gradient(loss, apart, rows, share)
    by_z = by_z.mul_(omega[:, None, None]).reshape_as(z)  # of an encoder that ends with a transposed product
    leaves = list(theta.values())  # none, if all layers are frozen
    gradients = torch.autograd.grad(z, leaves, by_z, materialize_grads=True) if leaves else ()
    return dict(zip(theta, gradients, strict=True)), by_rows * omega[:, None, None] if train_rows else None, risks
