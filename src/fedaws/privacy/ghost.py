r"""Ghost clipping: each client's gradient norm from one pass over all clients, without any client's gradient.

A linear layer has inputs a_j and, at its outputs, gradients δ_j of the clients' risks. A client's gradient of its
weights is :math:`\sum_j \delta_j a_j^\top` over its own examples, and

.. math:: \Big\|\sum_j \delta_j a_j^\top\Big\|^2 = \sum_{jk} (a_j \cdot a_k)(\delta_j \cdot \delta_k)

needs two small Gram matrices. A bias has a = 1; an embedding table has its sparse features as a. With the factors
:math:`c_i = \min(1, S/\|g_i\|)` known, the clipped sum is :math:`\sum_j c_{i(j)} \delta_j a_j^\top`: one more product,
the one that an ordinary backward pass has too. Other layers (convolutions, norms) have no such form here.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedaws.core.local import ExampleLosses
from fedaws.models.bag import Bag, entry_weights
from fedaws.models.build import trainable
from fedaws.privacy.clipping import are_sound, clip_factors, where_sound
from fedaws.sparse import Rows, SparseRows, add_up_ordered, in_order
from fedaws.types import Params


class _Entries(NamedTuple):
    """Sparse rows entry by entry, in the order of (feature, client): one sort for the norms and for the gradient."""

    keys: Tensor  # [entries] the feature's number and, in its last bits, the client's
    bits: int
    rows: Tensor  # [entries]
    weights: Tensor  # [entries] each over its row's sum
    longest: int  # entries of a row

    @property
    def features(self) -> Tensor:
        """[entries], ascending."""
        return self.keys >> self.bits


class _Seen(NamedTuple):
    """What went into a layer, and what came out of it."""

    name: str
    inputs: Rows | _Entries
    outputs: Tensor


@torch.no_grad()
def clipped_pass(
    encoder: nn.Module,
    loss_of: ExampleLosses,
    theta: Params,
    rows: Tensor,
    x: Rows,
    y: Tensor,
    share: Tensor,  # [m, b]: examples of one client after another in x
    omega: Tensor,  # [m]
    most: float,
    train_rows: bool,
) -> tuple[Params, Tensor | None, Tensor, Tensor]:
    """Σ ω_i g_i min(1, most/‖g_i‖) of the clients' gradients g_i of θ; each one's own gradient of its rows; risks; and
    of each client whether ‖g_i‖ is at most `most`.
    """
    theta = {k: v.detach() for k, v in theta.items()}  # no gradient of θ: the products below stand for it
    rows = rows.detach().requires_grad_(train_rows)
    with torch.enable_grad(), _watched(encoder) as seen:
        risks = (loss_of(theta, rows, x, y).view_as(share) * share).sum(1)
        leaves = [layer.outputs for layer in seen] + ([rows] if train_rows else [])
        gradients = torch.autograd.grad(risks.sum(), leaves, materialize_grads=True)
    layers = [(_in_order(layer, len(share)), delta) for layer, delta in zip(seen, gradients, strict=False)]
    squares = torch.stack([_squares(layer, delta, len(share), theta) for layer, delta in layers])
    norms, row_gradient = squares.sum(0).sqrt(), gradients[-1] if train_rows else None
    factors, risks = clip_factors(norms, most) * omega.to(squares), risks.detach()
    sound = are_sound(norms, norms[:, None] if row_gradient is None else row_gradient, risks)
    if not bool(sound.all()):
        factors, risks = where_sound(sound, factors, 0.0), where_sound(sound, risks, torch.nan)
        layers = [_without(layer, delta, sound) for layer, delta in layers]
    found = Params()
    for layer, delta in layers:
        per_client = delta.reshape(len(share), -1)
        found |= _gradient(layer, (per_client * factors[:, None]).view(delta.shape), theta)
    return {k: found[k] for k in theta}, row_gradient, risks, norms <= most


def _in_order(layer: _Seen, clients: int) -> _Seen:
    x = layer.inputs
    return layer._replace(inputs=_entries(x, clients)) if isinstance(x, SparseRows) else layer


def _without(layer: _Seen, delta: Tensor, sound: Tensor) -> tuple[_Seen, Tensor]:
    """What went through a layer, with zeros for the clients that are not sound: not even 0 · NaN is left of them."""
    delta = where_sound(sound, delta.reshape(len(sound), -1), 0.0).view(delta.shape)
    x = layer.inputs
    if isinstance(x, _Entries):
        of_client = x.keys & ((1 << x.bits) - 1)
        return layer._replace(inputs=x._replace(weights=torch.where(sound[of_client], x.weights, 0.0))), delta
    assert isinstance(x, Tensor)
    return layer._replace(inputs=where_sound(sound, x.reshape(len(sound), -1), 0.0).view(x.shape)), delta


def can_ghost(encoder: nn.Module, pair: Rows | None = None) -> bool:
    """Whether all of θ is in linear layers and embedding tables, each used once in a pass.

    By the layers' types; with two examples also by trial, which finds weights that are shared or used past their layer.

    >>> can_ghost(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), torch.ones(2, 3))
    True
    >>> can_ghost(nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4)))
    False
    """
    theta = {name: p.detach() for name, p in trainable(encoder).items()}
    parts = {Bag: ("table",), nn.Linear: ("weight", "bias")}  # a layer's others, of weights made of weights, are not
    known = {
        _below(name, part)
        for name, layer in _layers(encoder)
        for kind, names in parts.items()
        if isinstance(layer, kind)
        for part in names
    }
    if not theta or not theta.keys() <= known:
        return False
    if pair is None or len(pair) < 2:
        return True
    try:
        return _agrees(encoder, theta, pair[:2])
    except RuntimeError:  # a layer's output was changed in place
        return False


def _agrees(encoder: nn.Module, theta: Params, pair: Rows) -> bool:
    """Whether both ways cut two clients' gradients of some function of their embeddings alike, at no special θ."""

    def loss_of(theta: Params, rows: Tensor, x: Rows, y: Tensor) -> Tensor:
        embeddings: Tensor = functional_call(encoder, theta, (x,))
        return embeddings.flatten(1).square().cumsum(1).sum(1)

    rng = torch.Generator().manual_seed(0)
    theta = {k: v + 0.1 * torch.randn(v.shape, generator=rng).to(v) for k, v in theta.items()}
    ones = torch.ones(2, 1, device=next(iter(theta.values())).device)
    each = []
    for place in range(2):
        leaves = {k: v.clone().requires_grad_() for k, v in theta.items()}
        with torch.enable_grad(), _watched(encoder) as seen:
            total = loss_of(leaves, ones, pair[place : place + 1], ones).sum()
            found = torch.autograd.grad(total, list(leaves.values()), materialize_grads=True)
        if sorted(layer.name for layer in seen) != sorted({name.rpartition(".")[0] for name in theta}):
            return False
        each.append({name: _dense(g) for name, g in zip(leaves, found, strict=True)})
    norms = [float(torch.stack([g.square().sum() for g in gradient.values()]).sum().sqrt()) for gradient in each]
    limit = 0.5 * min(norms)
    if limit == 0:
        return False
    ours = clipped_pass(encoder, loss_of, theta, ones, pair, ones, ones, ones[:, 0], limit, train_rows=False)[0]
    wanted = {name: sum(g[name] * (limit / norm) for g, norm in zip(each, norms, strict=True)) for name in theta}
    return all(_close(_dense(ours[name]), cast(Tensor, wanted[name])) for name in theta)


def _close(a: Tensor, b: Tensor) -> bool:
    return bool((a - b).abs().max() <= 1e-3 * b.abs().max() + 1e-12)


def _dense(tensor: Tensor) -> Tensor:
    return tensor.to_dense() if tensor.is_sparse else tensor


def _layers(encoder: nn.Module) -> Iterator[tuple[str, nn.Linear | Bag]]:
    for name, module in encoder.named_modules():
        if isinstance(module, nn.Linear | Bag) and any(p.requires_grad for p in module.parameters(recurse=False)):
            yield name, module


@contextmanager
def _watched(encoder: nn.Module) -> Iterator[list[_Seen]]:
    """Inside, what goes through the layers is noted; their outputs have gradients whether or not θ has."""
    seen: list[_Seen] = []

    def note(name: str) -> Any:
        def hook(module: nn.Module, inputs: tuple[Rows, ...], outputs: Tensor) -> None:
            if not outputs.requires_grad:
                outputs.requires_grad_()
            seen.append(_Seen(name, inputs[0], outputs))

        return hook

    with ExitStack() as hooks:
        for name, module in _layers(encoder):
            place = module.lookup if isinstance(module, Bag) else module
            hooks.enter_context(place.register_forward_hook(note(name)))
        yield seen


def _below(name: str, part: str) -> str:
    return f"{name}.{part}" if name else part


def _squares(layer: _Seen, delta: Tensor, clients: int, theta: Params) -> Tensor:
    r"""‖g_i‖² of one layer's parameters, as far as they are trained, [m]; never less than it is.

    Sums of products that cancel lose their digits. A sum of n float32 products of two vectors errs by at most
    :math:`n u \|a\| \|b\|`, whatever its order (u = 2⁻²³ covers the products too), so that both Grams and the sum
    over them err by at most

    .. math:: \beta \Big(\sum_j \|a_j\| \|\delta_j\|\Big)^2, \qquad \beta = 2u\,(n_a + n_\delta + r^2)

    for r rows of a client, which is added: a client is cut a little more than it need be, by up to a thousandth.
    """
    delta = delta.reshape(clients, -1, delta.shape[-1])  # [m, r, out]
    of_deltas, count = delta @ delta.mT, delta.shape[1]  # [m, r, r]
    if isinstance(layer.inputs, _Entries):
        return _no_less(_grams(layer.inputs, clients, count), of_deltas, layer.inputs.longest + delta.shape[-1])
    assert isinstance(layer.inputs, Tensor)
    of_inputs, terms = torch.zeros_like(of_deltas), delta.shape[-1]
    if _below(layer.name, "weight") in theta:
        a = layer.inputs.reshape(clients, count, -1)
        of_inputs, terms = a @ a.mT, terms + a.shape[-1]
    if _below(layer.name, "bias") in theta:
        of_inputs, terms = of_inputs.add_(1), terms + 1  # a bias has the input 1
    return _no_less(of_inputs, of_deltas, terms)


def _no_less(of_inputs: Tensor, of_deltas: Tensor, terms: int) -> Tensor:
    """Σ_jk of the product of two Grams [m, r, r], and the most that rounding can have taken from it; [m]."""
    count, exact = of_deltas.shape[1], torch.finfo(of_deltas.dtype)
    beta = 2 * exact.eps * (terms + count * count)
    floor = terms * exact.tiny / beta  # products below the smallest number are lost, each by at most that
    lengths = [(gram.diagonal(dim1=1, dim2=2) + floor).sqrt() for gram in (of_inputs, of_deltas)]
    most = (lengths[0] * lengths[1]).sum(1)
    return (of_inputs * of_deltas).sum((1, 2)).clamp_min(0) + beta * most.square()


def _entries(x: SparseRows, clients: int) -> _Entries:
    rows, bits = x.row_of_each, (clients - 1).bit_length()
    counts = x.starts[:: len(x) // clients].diff()  # of a client
    of_client = torch.arange(clients, device=x.device).repeat_interleave(counts, output_size=len(x.indices))
    keys, order = in_order((x.indices.to(torch.int64) << bits) | of_client)
    return _Entries(keys, bits, rows[order], entry_weights(x)[order], int(x.counts.max()) if len(x) else 0)


def sparse_grams(x: SparseRows, clients: int) -> Tensor:
    """x_j · x_k of every two rows of the same client, each row over its sum, [m, b, b]; m · b rows in all.

    >>> from fedaws.sparse import from_dense
    >>> sparse_grams(from_dense(torch.tensor([[1.0, 1.0], [1.0, 0.0]])), 1).tolist()
    [[[0.5, 0.5], [0.5, 1.0]]]
    """
    return _grams(_entries(x, clients), clients, len(x) // clients)


def _grams(entries: _Entries, clients: int, per_client: int) -> Tensor:
    """Each entry meets those of its client and feature that stand one place after it, two places, and so on."""
    keys, rows, weights = entries.keys, entries.rows, entries.weights
    later = weights.new_zeros(clients * per_client, per_client)
    first, apart = (keys[1:] == keys[:-1]).nonzero()[:, 0], 1
    while len(first):
        other = first + apart
        place = rows[first] * per_client + rows[other] % per_client
        later.view(-1).index_add_(0, place, weights[first] * weights[other])
        apart += 1
        first = first[: int((first < len(keys) - apart).sum())]  # ascending: the last ones have nobody so far behind
        first = first[keys[first] == keys[first + apart]]  # whoever has, has had one at every place before
    later = later.view(clients, per_client, per_client)
    own = weights.new_zeros(clients * per_client).index_add_(0, rows, weights.square())
    return later + later.mT + torch.diag_embed(own.view(clients, per_client))


def _gradient(layer: _Seen, delta: Tensor, theta: Params) -> Params:
    """Σ_j δ_j a_jᵀ, of scaled δ."""
    x = layer.inputs
    if isinstance(x, _Entries):
        name = _below(layer.name, "table")
        return {name: add_up_ordered(x.features, x.rows, delta.contiguous(), x.weights, len(theta[name]))}
    assert isinstance(x, Tensor)
    flat = delta.reshape(-1, delta.shape[-1])
    found, weight, bias = Params(), _below(layer.name, "weight"), _below(layer.name, "bias")
    if weight in theta:
        found[weight] = flat.T @ x.reshape(len(flat), -1)
    if bias in theta:
        found[bias] = flat.sum(0)
    return found
