"""Arrays that took long to make, kept in a file and mapped into memory the next time."""

import json
import os
import secrets
import struct
import time
import warnings
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import save_file

Arrays = dict[str, NDArray[np.generic]]

_FORMAT = "fedaws-arrays-1"
_TYPES = {"I32": "<i4", "I64": "<i8", "F32": "<f4"}
_STALE = 3600.0  # seconds after which a partial file is a dead process's


def cached(path: Path, key: str, build: Callable[[], Arrays]) -> Arrays:
    """The arrays in this file if they were made under the same key and are whole; else made, and kept for next time.

    The file is written aside and put in place in one step, so a build that is interrupted leaves no half of one. Where
    nothing can be written the arrays are made anew each time.
    """
    found = _read(path, key)
    if found is not None:
        return found
    arrays = {name: np.ascontiguousarray(array) for name, array in build().items()}
    try:
        _write(path, key, arrays)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        warnings.warn(f"cannot keep {path}: {reason}; the data will be read anew each time", stacklevel=2)
    return arrays


def _write(path: Path, key: str, arrays: Arrays) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.partial")
    path.parent.mkdir(parents=True, exist_ok=True)
    for old in path.parent.glob(f".{path.name}.*.partial"):
        with suppress(OSError):
            if time.time() - old.stat().st_mtime > _STALE:
                old.unlink()
    sums = {name: _checksum(array) for name, array in arrays.items()}
    try:
        save_file(arrays, partial, {"format": _FORMAT, "key": key, "checksums": json.dumps(sums)})
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def _read(path: Path, key: str) -> Arrays | None:
    """None for whatever is not exactly what was written; it is then written again."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(min(length, 1 << 20)))
        about = header.pop("__metadata__")
        if (about["format"], about["key"]) != (_FORMAT, key):
            return None
        arrays: Arrays = {
            # Copy on write: torch wants memory that may be written to; the file itself stays as it is.
            name: np.memmap(path, _TYPES[a["dtype"]], "c", 8 + length + a["data_offsets"][0], tuple(a["shape"]))
            for name, a in header.items()
        }
        sums = json.loads(about["checksums"])
        sound = sums.keys() == arrays.keys() and all(sums[name] == _checksum(a) for name, a in arrays.items())
        return arrays if sound else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error):
        return None


def _checksum(array: NDArray[np.generic]) -> int:
    """CRC-32, about a second a gigabyte."""
    return zlib.crc32(array.tobytes() if array.ndim != 1 else array.view(np.uint8).data)
