"""Atomic writes, and tensor files that are checked when read. No pickle anywhere."""

import json
import math
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # Windows has none; there nothing stops two processes from writing into one folder
    fcntl = None  # type: ignore[assignment]

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedaws.errors import FedawsError

_FORMAT = "fedaws-1"


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file so that it is either there whole or not at all, also after a power cut."""
    # Always the same name: what a kill leaves behind is overwritten by the resumed run.
    partial = path.with_name(f".{path.name}.partial")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with partial.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        finally:
            with suppress(OSError):
                partial.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """`write_bytes` for text."""
    write_bytes(path, text.encode())


def append_line(path: Path, line: str) -> None:
    """Add a line to a file; a crash can cut short this line only, never an earlier one."""
    with writing(path), path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Tell of a full disk or a forbidden folder in one line."""
    try:
        yield
    except OSError as error:
        raise FedawsError(
            f"cannot write {path}: {error.strerror or error}; make room or choose another folder"
        ) from None


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Hold a folder for this process; the hold ends with the process, however it ends."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY) if fcntl else None
    try:
        if handle is not None:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise FedawsError(
                    f"another process is training in {folder}; wait for it or choose another --out"
                ) from None
        yield
    finally:
        if handle is not None:
            os.close(handle)


def write_tensors(path: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Tensors and JSON facts in one safetensors file."""
    content = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    write_bytes(path, save(content, {"format": _FORMAT, "facts": json.dumps(facts)}))


def read_tensors(path: Path, only: Collection[str] | None = None) -> tuple[dict[str, Tensor], str]:
    """The tensors and the JSON facts of a file by `write_tensors`; refuses truncated, foreign and non-finite ones."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            names = [name for name in file.keys() if only is None or name in only]  # noqa: SIM118 - not a dict
            # Copied: the file's memory is not aligned as torch's own is, and the same sum would round otherwise.
            tensors = {name: file.get_tensor(name).clone() for name in names}
    except FileNotFoundError:
        raise FedawsError(f"{path} does not exist") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise damaged(path, str(error)) from None
    if metadata.get("format") != _FORMAT:
        raise FedawsError(f"{path} was not written by fedaws (format {metadata.get('format')!r}, wanted {_FORMAT!r})")
    for name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            raise damaged(path, f"NaN or infinite values in {name!r}")
    return tensors, metadata.get("facts", "")


def tensor_sizes(path: Path) -> dict[str, int]:
    """How many numbers each tensor of a file has, without reading them."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: math.prod(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 - no dict
    except (SafetensorError, OSError, ValueError) as error:
        raise damaged(path, str(error)) from None


def damaged(path: Path, reason: str) -> FedawsError:
    """What to say of a file that cannot be used."""
    return FedawsError(f"{path} is damaged: {reason}; delete it to fall back on an earlier one")
