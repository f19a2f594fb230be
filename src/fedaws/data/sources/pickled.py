"""Read a pickle of arrays, as data sets of old were published, without any way to run what is in it.

A pickle is a program for a stack machine. The one here has the instructions for numbers, strings and containers; it
imports nothing and calls nothing. Arrays are views of the file's own bytes, so no shape can ask for memory.
"""

import math
import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray


class PickleError(ValueError):
    """Why a pickle was not read, as the end of a sentence that begins with its name."""


class _Known(Enum):
    """The names that a pickle of arrays mentions; here only marks on the stack."""

    RECONSTRUCT = "_reconstruct"
    NDARRAY = "ndarray"
    DTYPE = "dtype"
    ENCODE = "encode"  # how Python 3 writes bytes for Python 2


_NAMES = {
    (b"numpy.core.multiarray", b"_reconstruct"): _Known.RECONSTRUCT,
    (b"numpy._core.multiarray", b"_reconstruct"): _Known.RECONSTRUCT,
    (b"numpy", b"ndarray"): _Known.NDARRAY,
    (b"numpy", b"dtype"): _Known.DTYPE,
    (b"_codecs", b"encode"): _Known.ENCODE,
}
_TYPES = {f"{kind}{size}".encode() for kind in "iu" for size in (1, 2, 4, 8)} | {b"f4", b"f8"}
_LONGEST_KEY = 100


@dataclass
class _Type:
    """A dtype; its byte order comes later."""

    code: bytes
    order: bytes = b"="


@dataclass
class _Array:
    """An array; its content comes later."""

    value: NDArray[Any] | None = None


def read_pickle(content: bytes) -> dict[bytes, Any]:
    """The dict in a pickle: its keys as bytes, other strings of either Python as bytes or views, arrays read-only.

    >>> import pickle
    >>> read_pickle(pickle.dumps({"labels": [3, 1]}, protocol=2))
    {b'labels': [3, 1]}
    """
    machine = _Machine(content)
    try:
        result = machine.run()
    except PickleError:
        raise
    except (IndexError, KeyError, TypeError, ValueError):  # an empty stack, a number never stored, a wrong type
        raise PickleError(f"makes no sense at byte {machine.at:,}") from None
    if not isinstance(result, dict):
        raise PickleError("does not hold a dict")
    return result


def text(value: Any) -> bytes:
    """A string of the pickle; `bytes` itself would make n zeros of a number n."""
    if not isinstance(value, bytes | memoryview):
        raise PickleError("has something else where a string belongs")
    return bytes(value)


class _Machine:
    """Where the program is, and what it has made so far."""

    def __init__(self, content: bytes) -> None:
        self.content = memoryview(content)
        self.at = 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.spare = len(content)  # bytes that may still be copied: a small file must not become a large object

    def run(self) -> Any:
        while (code := self.take(1)[0]) != ord("."):
            instruction = _INSTRUCTIONS.get(code)
            if instruction is None:
                name = next((op.name for op in pickletools.opcodes if ord(op.code) == code), code)
                raise PickleError(f"has the instruction {name}, which arrays do not need")
            instruction(self)
        return self.stack.pop()

    def take(self, count: int) -> memoryview:
        """The next bytes of the program."""
        if count < 0 or self.at + count > len(self.content):
            raise PickleError(f"breaks off after {len(self.content):,} bytes")
        self.at += count
        return self.content[self.at - count : self.at]

    def number(self, size: int, signed: bool = False) -> int:
        return int.from_bytes(self.take(size), "little", signed=signed)

    def line(self) -> bytes:
        """Up to the next line's end."""
        taken = bytearray()
        while (byte := self.take(1)[0]) != ord("\n"):
            taken.append(byte)
        return bytes(taken)

    def since_mark(self) -> list[Any]:
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def last(self, count: int) -> tuple[Any, ...]:
        return tuple(reversed([self.stack.pop() for _ in range(count)]))


def _push(make: Callable[[_Machine], Any]) -> Callable[[_Machine], None]:
    return lambda m: m.stack.append(make(m))


def _string(size: int) -> Callable[[_Machine], None]:
    return _push(lambda m: m.take(m.number(size)))


def _long(m: _Machine) -> int:
    size = m.number(1)
    if size > 8:
        raise PickleError(f"has a number of {size} bytes")
    return m.number(size, signed=True)


def _store(m: _Machine, key: int) -> None:
    m.memo[key] = m.stack[-1]


def _set_items(m: _Machine, items: list[Any]) -> None:
    target = m.stack[-1]
    if not isinstance(target, dict):
        raise PickleError("puts keys into something else than a dict")
    for key, value in zip(items[::2], items[1::2], strict=True):
        if len(key) > _LONGEST_KEY:
            raise PickleError(f"has a key of {len(key):,} bytes")
        target[text(key)] = value.value if isinstance(value, _Array) else value


def _append(m: _Machine, items: list[Any]) -> None:
    target = m.stack[-1]
    if not isinstance(target, list):
        raise PickleError("appends to something else than a list")
    target.extend(items)


def _name(module: bytes, name: bytes) -> _Known:
    if (module, name) not in _NAMES:
        asked = ascii((module + b"." + name)[:_LONGEST_KEY].decode("latin1"))
        raise PickleError(f"asks for {asked}, which arrays do not need")
    return _NAMES[module, name]


def _reduce(m: _Machine) -> Any:
    """The three calls there can be; none of them is made."""
    match m.last(2):
        case _Known.RECONSTRUCT, (_Known.NDARRAY, *_):  # the shape in it is of no use: NumPy's own writer has (0,)
            return _Array()
        case _Known.DTYPE, (code, *_) if text(code) in _TYPES:
            return _Type(text(code))
        case _Known.ENCODE, (string, encoding) if encoding == b"latin1":
            m.spare -= len(string)
            if m.spare < 0:
                raise PickleError("makes more bytes than it has")
            return text(string).decode().encode("latin1")
    raise PickleError("makes a call that is not one of a plain array")


def _build(m: _Machine) -> None:
    state, made = m.stack.pop(), m.stack[-1]
    match made, state:
        case _Type(), (_, order, *_) if text(order) in (b"<", b">", b"|", b"="):
            made.order = text(order)
        case _Array(), (_, shape, _Type() as kind, bool(fortran), bytes() | memoryview() as content):
            made.value = _array(shape, kind, fortran, content)
        case _:
            raise PickleError("fills in something else than a plain array")


def _array(shape: Any, kind: _Type, fortran: bool, content: bytes | memoryview) -> NDArray[Any]:
    dtype = np.dtype(kind.code.decode()).newbyteorder(kind.order.decode())  # type: ignore[arg-type]
    if not all(type(length) is int and length >= 0 for length in shape):
        raise PickleError("has an array whose shape is not one")
    if math.prod(shape) * dtype.itemsize != len(content):
        raise PickleError(f"has an array of {len(content):,} bytes that its shape does not fit")
    return np.frombuffer(content, dtype).reshape(shape, order="F" if fortran else "C")


_INSTRUCTIONS: dict[int, Callable[[_Machine], None]] = {
    ord(code): instruction
    for code, instruction in {
        "\x80": lambda m: m.take(1),  # the protocol
        "\x95": lambda m: m.take(8),  # a frame
        "N": _push(lambda _: None),
        "\x88": _push(lambda _: True),
        "\x89": _push(lambda _: False),
        "K": _push(lambda m: m.number(1)),
        "M": _push(lambda m: m.number(2)),
        "J": _push(lambda m: m.number(4, signed=True)),
        "\x8a": _push(_long),
        "U": _string(1),  # strings of Python 2, bytes and text of Python 3, each short and long
        "T": _string(4),
        "C": _string(1),
        "B": _string(4),
        "\x8c": _string(1),
        "X": _string(4),
        "}": _push(lambda _: {}),
        "]": _push(lambda _: []),
        ")": _push(lambda _: ()),
        "(": lambda m: m.marks.append(len(m.stack)),
        "t": _push(lambda m: tuple(m.since_mark())),
        "\x85": _push(lambda m: m.last(1)),
        "\x86": _push(lambda m: m.last(2)),
        "\x87": _push(lambda m: m.last(3)),
        "s": lambda m: _set_items(m, list(m.last(2))),
        "u": lambda m: _set_items(m, m.since_mark()),
        "a": lambda m: _append(m, list(m.last(1))),
        "e": lambda m: _append(m, m.since_mark()),
        "q": lambda m: _store(m, m.number(1)),
        "r": lambda m: _store(m, m.number(4)),
        "\x94": lambda m: _store(m, len(m.memo)),
        "h": _push(lambda m: m.memo[m.number(1)]),
        "j": _push(lambda m: m.memo[m.number(4)]),
        "c": _push(lambda m: _name(m.line(), m.line())),
        "\x93": _push(lambda m: _name(*map(text, m.last(2)))),
        "R": _push(_reduce),
        "b": _build,
    }.items()
}
