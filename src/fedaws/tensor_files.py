"""Safetensors files, read into memory of our own.

A mapped file that somebody cuts short takes the process with it (SIGBUS), and what the header promises is looked at
before memory is taken. Only types that are written here are read.
"""

import hashlib
import json
import math
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Annotated, Any, BinaryIO, NamedTuple

import torch
from pydantic import BaseModel, Field, TypeAdapter, ValidationError
from torch import Tensor

from fedaws.errors import FedawsError
from fedaws.files import LARGE, check_unpacked, open_regular, parse_json, reading

_LONGEST_HEADER = 100_000_000  # bytes, as the library itself has it
_TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in _TYPES.items()}
_Size = Annotated[int, Field(ge=0, le=LARGE, strict=True)]


class _About(BaseModel):
    """What the header says of a tensor."""

    dtype: str
    shape: Annotated[list[_Size], Field(max_length=16)]
    data_offsets: tuple[_Size, _Size]

    @property
    def numbers(self) -> int:
        return math.prod(self.shape)


_METADATA = TypeAdapter(dict[str, str])
_TENSORS = TypeAdapter(dict[str, _About])


def read_safetensors(path: Path, only: Collection[str] | None = None) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a file, or `only` those of some names, and its metadata."""
    with open_regular(path, LARGE) as file, reading(path):
        tensors, metadata, start = _header(file, path)
        chosen = {name: about for name, about in tensors.items() if only is None or name in only}
        size = sum(about.data_offsets[1] - about.data_offsets[0] for about in chosen.values())
        check_unpacked(path, size, size, "")
        return {name: _tensor(file, path, about, start) for name, about in chosen.items()}, metadata


class Pieces(NamedTuple):
    """A tensor that comes in blocks of its rows, in order: nobody needs have it whole."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    blocks: Iterable[Tensor]


def write_safetensors(file: BinaryIO, tensors: Mapping[str, Pieces], metadata: dict[str, str]) -> None:
    """Write a file of this format, block by block; the widest types first, so that every tensor is aligned."""
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0]))
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, (dtype, shape, _) in ordered:
        begin = end
        end += math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for _, pieces in ordered:
        for block in pieces.blocks:
            file.write(block.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)


def tensor_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor of a file, without reading them."""
    with open_regular(path, LARGE) as file, reading(path):
        return {name: tuple(about.shape) for name, about in _header(file, path)[0].items()}


def tensor_sizes(path: Path) -> dict[str, int]:
    """How many numbers each tensor of a file has, without reading them."""
    return {name: math.prod(shape) for name, shape in tensor_shapes(path).items()}


def read_tiles(path: Path, name: str, rows: int) -> Iterator[tuple[int, Tensor]]:
    """A tensor of a file, so many of its rows at a time: the number of the first, and the rows."""
    with open_regular(path, LARGE) as file, reading(path):
        tensors, _, start = _header(file, path)
        if name not in tensors:
            raise damaged(path, f"no {name!r} in it")
        whole = tensors[name]
        begin = whole.data_offsets[0]
        count, *rest = whole.shape
        bytes_of_row = math.prod(rest) * _TYPES[whole.dtype].itemsize
        for first in range(0, count, rows):
            last = min(first + rows, count)
            place = (begin + first * bytes_of_row, begin + last * bytes_of_row)
            part = _About(dtype=whole.dtype, shape=[last - first, *rest], data_offsets=place)
            yield first, _tensor(file, path, part, start)


def digest(weights: Mapping[str, Tensor]) -> str:
    """What tells these weights from others, for the record."""
    total = hashlib.sha256()
    for name in sorted(weights):
        total.update(name.encode())
        tensor = weights[name].detach().cpu().contiguous()
        total.update(tensor.flatten().view(torch.uint8).numpy().tobytes())  # as bytes: NumPy has no bfloat16
    return total.hexdigest()[:16]


def damaged(path: Path, reason: str) -> FedawsError:
    """What to say of a file that cannot be used."""
    return FedawsError(f"{path} is damaged: {reason}; delete it to fall back on an earlier one")


def _header(file: BufferedReader, path: Path) -> tuple[dict[str, _About], dict[str, str], int]:
    """The tensors that a file holds, its metadata, and where its data begin."""
    whole = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    start = 8 + length
    if whole < 8 or length > _LONGEST_HEADER or start > whole:
        raise damaged(path, f"{whole:,} bytes cannot hold its header")
    try:
        header = parse_json(file.read(length), str(path))
        metadata = _METADATA.validate_python(header.pop("__metadata__", {}) if isinstance(header, dict) else {})
        tensors = _TENSORS.validate_python(header)
    except (FedawsError, ValidationError):
        raise damaged(path, "its header makes no sense") from None
    end = 0
    for name, about in sorted(tensors.items(), key=lambda item: item[1].data_offsets):
        dtype = _TYPES.get(about.dtype)
        if dtype is None:
            raise damaged(path, f"{name!r} is of the type {about.dtype!r}; wanted one of {', '.join(_TYPES)}")
        begin = end
        end = begin + about.numbers * dtype.itemsize
        if about.data_offsets != (begin, end) or math.prod(size or 1 for size in about.shape) > LARGE:
            raise damaged(path, f"{name!r} has a shape or a place that does not fit")
    if start + end != whole:
        raise damaged(path, f"it has {whole:,} bytes, wanted {start + end:,}")
    return tensors, metadata, start


def _tensor(file: BufferedReader, path: Path, about: _About, start: int) -> Tensor:
    tensor = torch.empty(about.shape, dtype=_TYPES[about.dtype])
    if not tensor.numel():
        return tensor
    bytes_of_it = tensor.view(-1).view(torch.uint8)
    file.seek(start + about.data_offsets[0])
    if file.readinto(bytes_of_it.numpy().data) != len(bytes_of_it):
        raise damaged(path, "it was cut short while it was read")
    if tensor.dtype == torch.bool and int(bytes_of_it.max()) > 1:
        raise damaged(path, "a truth value that is neither 0 nor 1")
    return tensor
