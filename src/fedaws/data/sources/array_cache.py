"""Arrays that took long to make, kept in a file for the next time."""

import json
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save

from fedaws.errors import FedawsError
from fedaws.files import parse_json, write_bytes
from fedaws.tensor_files import read_safetensors

Arrays = dict[str, NDArray[np.generic]]

_FORMAT = "fedaws-arrays-1"
_TYPES = (torch.int32, torch.int64, torch.float32)


def cached(path: Path, key: str, build: Callable[[], Arrays]) -> Arrays:
    """The arrays in this file if they were made under the same key and are whole; else made, and kept for next time.

    The file is written aside and put in place in one step, so a build that is interrupted leaves no half of one. Where
    nothing can be written the arrays are made anew each time. They are copied into memory: checking them reads all of
    them anyway, and a mapped file that somebody cuts short would end the process.
    """
    earlier = _read_earlier(path, key)
    if earlier is not None:
        return earlier
    arrays = {name: np.ascontiguousarray(array) for name, array in build().items()}
    about = {"format": _FORMAT, "key": key, "checksums": json.dumps({n: _checksum(a) for n, a in arrays.items()})}
    try:
        write_bytes(path, save(arrays, about))
    except FedawsError as error:
        warnings.warn(f"{error}; the data will be read anew each time", stacklevel=2)
    return arrays


def _read_earlier(path: Path, key: str) -> Arrays | None:
    """None for whatever is not exactly what was written; it is then written again."""
    try:
        about = read_safetensors(path, only=())[1]
        if (about.get("format"), about.get("key")) != (_FORMAT, key):
            return None
        tensors = read_safetensors(path)[0]
        sums = parse_json(about.get("checksums", ""), str(path))
    except FedawsError:
        return None
    if any(tensor.dtype not in _TYPES for tensor in tensors.values()):
        return None
    arrays: Arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    return arrays if sums == {name: _checksum(array) for name, array in arrays.items()} else None


def _checksum(array: NDArray[np.generic]) -> int:
    """CRC-32, about a second per gigabyte."""
    return zlib.crc32(array.tobytes() if array.ndim != 1 else array.view(np.uint8).data)
