r"""Optimisers as functions on named tensors, for the server's averaged delta and for a client's local steps.

`direction` is −gradient, or the clients' mean change: the caller adds the step to the parameters. The memory is made by
`init` and handed from step to step. The constants are those of Kingma & Ba 2015.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedaws.config import ServerOptimizerName
from fedaws.errors import FedawsError
from fedaws.types import Memory, Params

Init = Callable[[Params], Memory]
Step = Callable[[Params, Params, Memory, float], tuple[Params, Memory]]

_BETA1, _BETA2, _EPS = 0.9, 0.999, 1e-8


@dataclass(frozen=True)
class Optimizer:
    """`init(params)` gives the memory, `step(params, direction, memory, lr)` the step to add and the new memory."""

    init: Init
    step: Step


def make_optimizer(name: ServerOptimizerName, momentum: float = 0.0) -> Optimizer:
    """The optimiser of this name."""
    match name:
        case "sgd":
            return sgd(momentum)
        case "adagrad":
            return adagrad()
        case "adam":
            return adam()
        case "muon":
            return muon(momentum)


def sgd(momentum: float = 0.0) -> Optimizer:
    r""":math:`m \leftarrow \mu m + \Delta`, step :math:`\eta m`; with :math:`\mu = 0, \eta = 1` plain averaging.

    >>> sgd().step({}, {"a": torch.tensor([2.0])}, {}, 0.5)
    ({'a': tensor([1.])}, {})
    """

    def step(_: Params, direction: Params, memory: Memory, lr: float) -> tuple[Params, Memory]:
        if momentum:
            memory = _decayed(memory, "momentum", direction, momentum, 1.0)
            direction = {k: memory[f"momentum/{k}"] for k in direction}
        return {k: lr * d for k, d in direction.items()}, memory

    return Optimizer(_zeros("momentum") if momentum else _zeros(), step)


def adagrad() -> Optimizer:
    r""":math:`s \leftarrow s + \Delta^2`, step :math:`\eta \Delta/\sqrt s`."""

    def step(_: Params, direction: Params, memory: Memory, lr: float) -> tuple[Params, Memory]:
        memory = _decayed(memory, "squares", _squared(direction), 1.0, 1.0)
        return {k: lr * d / (memory[f"squares/{k}"].sqrt() + _EPS) for k, d in direction.items()}, memory

    return Optimizer(_zeros("squares"), step)


def adam() -> Optimizer:
    r"""Adam; its two bias corrections are kept as decaying powers, so that no step count is needed."""

    def init(params: Params) -> Memory:
        ones = {} if not params else {f"{name}_power": next(iter(params.values())).new_ones(()) for name in ("m", "v")}
        return _zeros("m", "v")(params) | ones

    def step(_: Params, direction: Params, memory: Memory, lr: float) -> tuple[Params, Memory]:
        powers = {"m_power": memory["m_power"] * _BETA1, "v_power": memory["v_power"] * _BETA2}
        memory = _decayed(memory, "m", direction, _BETA1, 1 - _BETA1) | powers
        memory = _decayed(memory, "v", _squared(direction), _BETA2, 1 - _BETA2)
        corrected = {k: (memory[f"v/{k}"] / (1 - powers["v_power"])).sqrt() + _EPS for k in direction}
        return {k: lr * memory[f"m/{k}"] / (1 - powers["m_power"]) / corrected[k] for k in direction}, memory

    return Optimizer(init, step)


def muon(momentum: float = 0.0) -> Optimizer:
    r""":math:`\eta` times roughly the orthogonal matrix nearest to :math:`\Delta + \mu m`, however long that is.

    Biases and gains move by :math:`0.3 \eta` at root mean square (Jordan et al. 2024, see :func:`orthogonal`).
    """

    def step(_: Params, direction: Params, memory: Memory, lr: float) -> tuple[Params, Memory]:
        memory = _decayed(memory, "momentum", direction, momentum, 1.0)
        ahead = {k: d + momentum * memory[f"momentum/{k}"] for k, d in direction.items()}
        return {k: lr * (orthogonal(a) if is_matrix(a) else _even(a)) for k, a in ahead.items()}, memory

    return Optimizer(_zeros("momentum"), step)


def from_torch(factory: Callable[[Iterable[Tensor]], torch.optim.Optimizer]) -> Optimizer:
    r"""Any of PyTorch's optimisers on the server's side.

    The parameters are θ and their gradient is −Δ. `lr` (the schedule's factor, times `server.lr`) multiplies the
    learning rates that the factory gives.

    >>> averaging = from_torch(lambda params: torch.optim.SGD(params, lr=1.0))
    >>> averaging.step({"a": torch.zeros(1)}, {"a": torch.tensor([2.0])}, averaging.init({"a": torch.zeros(1)}), 0.5)[0]
    {'a': tensor([1.])}
    """

    if not callable(factory):
        raise FedawsError(
            f"from_torch got a {type(factory).__name__}; wanted a function that makes the optimiser, as in "
            "from_torch(lambda parameters: torch.optim.Adam(parameters, lr=0.01))"
        )

    def run(params: Params, direction: Params, memory: Memory, lr: float) -> tuple[Params, Memory]:
        leaves = {name: params[name].detach().clone().requires_grad_() for name in direction}
        optimizer = factory(list(leaves.values()))
        for name, leaf in leaves.items():
            leaf.grad = -direction[name]
            own = {key.partition("/")[0]: t.clone() for key, t in memory.items() if key.partition("/")[2] == name}
            if own and bool(memory["begun"]):
                optimizer.state[leaf] = own
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * lr
        try:
            with torch.enable_grad():
                optimizer.step()
        except TypeError:
            raise FedawsError(
                f"torch.optim.{type(optimizer).__name__} cannot step by a gradient alone (it wants a closure); "
                "take another torch.optim class"
            ) from None
        memory = {"begun": torch.ones(())}
        for name, leaf in leaves.items():
            memory |= {f"{key}/{name}": _saved(key, value) for key, value in optimizer.state[leaf].items()}
        return {name: leaf.detach() - params[name] for name, leaf in leaves.items()}, memory

    def init(params: Params) -> Memory:
        """The names and shapes that the memory will have; PyTorch makes it at the first step."""
        _, memory = run(params, {k: torch.zeros_like(v) for k, v in params.items()}, {}, 1.0)
        return {key: torch.zeros_like(value) for key, value in memory.items()}

    return Optimizer(init, run)


def _saved(key: str, value: Any) -> Tensor:
    if not isinstance(value, Tensor):
        raise FedawsError(
            f"the optimiser keeps {key!r} as {type(value).__name__}, which cannot be saved; wanted tensors only: "
            "take another torch.optim class"
        )
    return value.detach().clone()


def is_matrix(tensor: Tensor) -> bool:
    """Whether a parameter maps vectors to vectors; convolutions do, once flattened, but gains and biases do not."""
    return tensor.ndim > 1 and min(tensor.flatten(1).shape) > 1


def orthogonal(tensor: Tensor) -> Tensor:
    r"""The nearest orthogonal matrix to a matrix or a bank of filters, roughly: singular values mostly 0.7 to 1.2.

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


def _zeros(*names: str) -> Init:
    return lambda params: {f"{name}/{k}": torch.zeros_like(v) for name in names for k, v in params.items()}


def _squared(params: Params) -> Params:
    return {k: v.square() for k, v in params.items()}


def _decayed(memory: Memory, name: str, new: Params, decay: float, share: float) -> Memory:
    """The memory with decay · old + share · new under this name."""
    return memory | {f"{name}/{k}": decay * memory[f"{name}/{k}"] + share * v for k, v in new.items()}
