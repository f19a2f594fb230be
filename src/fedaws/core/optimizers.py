r"""Optimisers as functions on named tensors, for the server's averaged delta and for a client's local steps.

`direction` is an ascent on −gradient: the caller adds `lr * step`. Slots are the optimiser's memory, empty at first.
The constants are those of Kingma & Ba (Adam) and Reddi et al. 2021 (adaptive federated optimisation).
"""

import torch
from torch import Tensor

from fedaws.config import ServerOptimizerName
from fedaws.types import Params

Slots = dict[str, Params]

_BETA1, _BETA2, _EPS = 0.9, 0.999, 1e-8


def optimizer_step(
    name: ServerOptimizerName, direction: Params, slots: Slots, lr: float | Tensor, momentum: float = 0.0
) -> tuple[Params, Slots]:
    r"""The step to add to the parameters, and the new memory.

    sgd: :math:`m \leftarrow \mu m + \Delta`, step :math:`\eta m`; with :math:`\mu = 0, \eta = 1` plain averaging.
    muon: :math:`\eta` times the orthogonal matrix nearest to :math:`\Delta + \mu m`, whatever the clients' step was;
    biases and gains move by :math:`0.3 \eta` at root mean square.

    >>> optimizer_step("sgd", {"a": torch.tensor([2.0])}, {}, lr=0.5)
    ({'a': tensor([1.])}, {})
    """
    if not direction:
        return {}, slots
    match name:
        case "sgd":
            if momentum == 0:
                return {k: lr * d for k, d in direction.items()}, slots
            m = _decayed(slots.get("momentum"), direction, momentum, 1.0)
            return {k: lr * v for k, v in m.items()}, {"momentum": m}
        case "adagrad":
            total = _decayed(slots.get("squares"), _squared(direction), 1.0, 1.0)
            step = {k: lr * d / (total[k].sqrt() + _EPS) for k, d in direction.items()}
            return step, {"squares": total}
        case "adam":
            m = _decayed(slots.get("mean"), direction, _BETA1, 1 - _BETA1)
            v = _decayed(slots.get("squares"), _squared(direction), _BETA2, 1 - _BETA2)
            # The two bias corrections, kept as decaying powers so that no step count is needed.
            powers = slots.get("powers") or {
                k: next(iter(direction.values())).new_ones(()) for k in ("mean", "squares")
            }
            powers = {"mean": powers["mean"] * _BETA1, "squares": powers["squares"] * _BETA2}
            corrected = {k: (v[k] / (1 - powers["squares"])).sqrt() + _EPS for k in direction}
            step = {k: lr * m[k] / (1 - powers["mean"]) / corrected[k] for k in direction}
            return step, {"mean": m, "squares": v, "powers": powers}
        case "muon":
            m = _decayed(slots.get("momentum"), direction, momentum, 1.0)
            ahead = {k: d + momentum * m[k] for k, d in direction.items()}
            return {k: lr * (orthogonal(a) if is_matrix(a) else _even(a)) for k, a in ahead.items()}, {"momentum": m}


def is_matrix(tensor: Tensor) -> bool:
    """Whether a parameter maps vectors to vectors; convolutions do, once flattened, but gains and biases do not."""
    return tensor.ndim > 1 and min(tensor.flatten(1).shape) > 1


def orthogonal(tensor: Tensor) -> Tensor:
    r"""The nearest orthogonal matrix to a matrix or a bank of filters, roughly: every singular value about 1.

    Five Newton–Schulz steps with Jordan's coefficients (Muon, 2024), times :math:`\sqrt{rows/columns}` for tall ones.
    """
    x = tensor.flatten(1)
    rows, columns = x.shape
    x = x.T if rows > columns else x
    x = x / (torch.linalg.matrix_norm(x) + _EPS)
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    x = x.T if rows > columns else x
    return torch.mul(x, max(1.0, rows / columns) ** 0.5).view_as(tensor)


def _even(tensor: Tensor) -> Tensor:
    """A vector at root mean square 0.3: biases and gains do with smaller steps than matrices (tried on CIFAR-10)."""
    return tensor * (0.3 / (tensor.square().mean().sqrt() + _EPS))


def _squared(params: Params) -> Params:
    return {k: v.square() for k, v in params.items()}


def _decayed(old: Params | None, new: Params, decay: float, share: float) -> Params:
    """Decay · old + share · new, from zero at first."""
    if old is None:
        return {k: share * v for k, v in new.items()}
    return {k: decay * old[k] + share * v for k, v in new.items()}
