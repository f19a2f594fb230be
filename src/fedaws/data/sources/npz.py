"""Arrays from an .npz file, their sizes looked at before memory is taken."""

import math
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedaws.errors import FedawsError
from fedaws.files import LARGE, check_unpacked, open_regular, reading

Arrays = dict[str, NDArray[Any]]

_LONGEST_HEADER = 1000  # bytes; NumPy's own for an array of numbers have 118, and long ones are slow to parse
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def read_npz(path: Path, names: Sequence[str], kind: str, fix: str) -> Arrays:
    """The arrays of these names; a file that is not a sound one `of a kind` is refused with the `fix`."""
    with open_regular(path, LARGE) as file, reading(path):
        try:
            return _read_arrays(path, zipfile.ZipFile(file), names)
        except (FedawsError, MemoryError, OSError):
            raise
        except Exception as error:  # zipfile and NumPy meet damaged bytes with any of a dozen exceptions
            why = " ".join(str(error).split())[:200] or type(error).__name__
            raise FedawsError(f"{path} is not a sound {kind} ({why}); {fix}") from None


def _read_arrays(path: Path, archive: zipfile.ZipFile, names: Sequence[str]) -> Arrays:
    missing = [name for name in names if f"{name}.npy" not in archive.NameToInfo]
    if missing:
        raise FedawsError(f"{path} has no {', '.join(missing)}; wanted the arrays {', '.join(names)}")
    unpacked = sum(_checked_size(archive, archive.getinfo(f"{name}.npy")) for name in names)
    check_unpacked(path, path.stat().st_size, unpacked, "save it with numpy.savez, which does not pack it")
    arrays = {}
    for name in names:
        with archive.open(f"{name}.npy") as member:
            arrays[name] = np.lib.format.read_array(member, allow_pickle=False, max_header_size=_LONGEST_HEADER)
    return arrays


def _checked_size(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> int:
    """The bytes of an array by its header, which must be as many as the archive has of it."""
    name = info.filename.removesuffix(".npy")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # of the others one block may fill memory
        raise ValueError(f"{name} is packed in a way that NumPy never does")
    with archive.open(info) as member, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of headers as Python 2 wrote them
        header = _HEADERS.get(np.lib.format.read_magic(member))
        if header is None:
            raise ValueError(f"{name} is of an unknown version")
        shape, _, dtype = header(member, max_header_size=_LONGEST_HEADER)
        start = member.tell()
    if dtype.hasobject:
        raise ValueError(f"{name} holds Python objects; wanted numbers")
    if dtype.itemsize == 0 or not all(0 <= length < 1 << 60 for length in shape):
        raise ValueError(f"{name} has a shape or type that cannot be")
    size = math.prod(shape) * dtype.itemsize
    if start + size != info.file_size:
        raise ValueError(f"{name} has {info.file_size - start:,} bytes, wanted {size:,}")
    return size
