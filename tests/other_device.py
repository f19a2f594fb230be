"""A device that this machine does not have: tensors with real numbers that say they are elsewhere.

As with a GPU, an operation on tensors here and there is an error; only single numbers, and numbers of rows, may be
here. What is computed can be compared with the CPU's, number by number.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

DEVICE = torch.device("meta")
_aten = torch.ops.aten
_BETWEEN = {_aten._to_copy.default, _aten.copy_.default, _aten._has_compatible_shallow_copy_type.default}
_BY_NUMBER = {_aten.index.Tensor, _aten.index_put_.default, _aten.index_put.default, _aten._index_put_impl_.default}


class Elsewhere(Tensor):
    """A tensor on the other device."""

    numbers: Tensor

    @staticmethod
    def __new__(cls, numbers: Tensor) -> "Elsewhere":
        wrapper: Any = Tensor._make_wrapper_subclass
        laid_out: dict[str, Any] = {"layout": numbers.layout}
        if numbers.layout == torch.strided:
            laid_out |= {"strides": numbers.stride(), "storage_offset": numbers.storage_offset()}
        made: Elsewhere = wrapper(cls, numbers.shape, dtype=numbers.dtype, device=DEVICE, **laid_out)
        made.numbers = numbers
        return made

    def __init__(self, numbers: Tensor) -> None:
        super().__init__()

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _run(func, args, kwargs or {})

    def tolist(self) -> Any:
        """As of any tensor: PyTorch refuses it to types of others."""
        return self.numbers.tolist()

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]


class _Operations(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _Literals(TorchFunctionMode):
    """`torch.tensor([…], device=…)`, which on this device would have no numbers and be no operation."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = dict(kwargs or {})
        if func is torch.tensor and torch.device(options.get("device") or "cpu") == DEVICE:
            return Elsewhere(func(*args, **options | {"device": "cpu"}))
        return func(*args, **options)


@contextmanager
def other_device() -> Iterator[None]:
    """Inside, there is such a device."""
    with _Literals(), _Operations():  # type: ignore[no-untyped-call]
        yield


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    tensors = [t for t in tree_flatten((args, kwargs))[0] if isinstance(t, Tensor)]
    there = [t for t in tensors if isinstance(t, Elsewhere)]
    here = [t for t in tensors if not isinstance(t, Elsewhere) and t.dim()]
    if there and here and func not in _BETWEEN | _BY_NUMBER:
        raise AssertionError(f"{func} of tensors here {[tuple(t.shape) for t in here]} and elsewhere")
    wanted = kwargs.get("device")
    if wanted is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    result = func(*tree_map(_numbers, args), **tree_map(_numbers, kwargs))
    if wanted is not None:
        moves = torch.device(wanted).type == DEVICE.type
    else:
        moves = isinstance(args[0], Elsewhere) if func in _BETWEEN else bool(there)
    if not moves:
        return result
    same = {id(t.numbers): t for t in there}
    return tree_map(lambda t: same[id(t)] if id(t) in same else Elsewhere(t) if isinstance(t, Tensor) else t, result)


def _numbers(value: Any) -> Any:
    return value.numbers if isinstance(value, Elsewhere) else value


def move(module: nn.Module) -> nn.Module:
    """The same module with its parameters and buffers there."""
    for part in module.modules():
        for name, tensor in part._parameters.items():
            if tensor is not None:
                part._parameters[name] = nn.Parameter(Elsewhere(tensor.detach().clone()), tensor.requires_grad)
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = Elsewhere(buffer.clone())
    return module


def back(tensor: Tensor) -> Tensor:
    """The numbers of a tensor that is there."""
    assert isinstance(tensor, Elsewhere), "this tensor should be elsewhere"
    return tensor.numbers
