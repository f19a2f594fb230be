"""Digests of functions: by them a run that goes on tells whether a method or a measure of the user's own is the same.

A function counts by its instructions, not by its name, its lines or its docstring; by its defaults, and what it
captures; by the numbers, texts and functions of its own file that it names. Functions of libraries count by their
names, and what can change (lists, tensors, modules) by its type: it may have changed since by itself.
"""

import dis
import hashlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

PYTHON = "python"
"""The entry of the version: instructions are those of one version."""

_PLAIN = (bool, int, float, complex, str, bytes, torch.dtype, torch.device)
_LIBRARIES = sys.stdlib_module_names | {"fedaws", "numpy", "scipy", "sklearn", "torch"}


def digests(parts: Mapping[str, Any]) -> dict[str, str]:
    """A digest of each part, and the version of Python for which they are."""
    told = {name: hashlib.sha256(_told(part, set()).encode()).hexdigest()[:16] for name, part in parts.items()}
    return told and {PYTHON: ".".join(map(str, sys.version_info[:2])), **told}


def _told(value: Any, met: set[int]) -> str:
    """A text that is the same in every process."""
    if value is None or isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, FunctionType) and id(value) in met:  # it calls itself
        return "again"
    met.add(id(value))
    parts: tuple[Any, ...] = ()
    named = value if isinstance(value, ModuleType) or hasattr(value, "__qualname__") else type(value)
    name = f"{getattr(named, '__module__', '')}.{getattr(named, '__qualname__', named.__name__)}"
    match value:
        case tuple():
            parts = value
        case frozenset():
            parts = tuple(sorted(value, key=repr))
        case CodeType():
            parts = tuple((i.opname, i.argval) for i in _instructions(value, deep=False))
        case FunctionType():
            name, parts = _of_function(value)
        case MethodType():
            parts = value.__func__, value.__self__
        case partial():
            parts = value.func, value.args, tuple(sorted(value.keywords.items()))
        case _ if is_dataclass(value) and named is type(value) and getattr(value, "__dataclass_params__").frozen:  # noqa: B009
            parts = tuple(getattr(value, field.name) for field in fields(value))
    return name + str([_told(part, met) for part in parts])


def _of_function(function: FunctionType) -> tuple[str, tuple[Any, ...]]:
    """Its name, if it is a library's, and what else counts of it."""
    code, here, deep = function.__code__, function.__globals__, list(_instructions(function.__code__))
    changed = {i.argval for i in deep if i.opname in ("STORE_DEREF", "STORE_GLOBAL")}  # as counters are
    cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
    held = {name: cell.cell_contents for name, cell in cells.items() if cell != CellType()}
    parts = function.__defaults__, *sorted((function.__kwdefaults__ or {}).items())
    module = str(here.get("__name__"))
    if module.partition(".")[0] in _LIBRARIES:
        return f"{module}.{code.co_qualname}", (*parts, *held.items())
    used = {i.argval: here[i.argval] for i in deep if i.opname in ("LOAD_GLOBAL", "LOAD_NAME") and i.argval in here}
    return "", (code, *parts, *((name, value) for name, value in sorted((used | held).items()) if name not in changed))


def _instructions(code: CodeType, deep: bool = True) -> Iterator[dis.Instruction]:
    """With what they are about in the place of its number; `deep` with those of the functions that it makes."""
    for instruction in dis.get_instructions(code):
        if instruction.opname not in ("EXTENDED_ARG", "NOP"):
            yield instruction
        if deep and isinstance(instruction.argval, CodeType):
            yield from _instructions(instruction.argval)
