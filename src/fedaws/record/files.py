"""Atomic writes, and tensor files that are checked when read. No pickle anywhere."""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedaws.errors import FedawsError

_FORMAT = "fedaws-1"


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file so that it is either there whole or not at all, also after a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
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


def write_tensors(path: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Tensors and JSON facts in one safetensors file."""
    content = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    write_bytes(path, save(content, {"format": _FORMAT, "facts": json.dumps(facts)}))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and facts of a file that `write_tensors` wrote; refuses truncated, foreign and non-finite ones."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except FileNotFoundError:
        raise FedawsError(f"{path} does not exist") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise FedawsError(f"{path} is damaged ({error}); delete it to fall back on an earlier one") from None
    if metadata.get("format") != _FORMAT:
        raise FedawsError(f"{path} was not written by fedaws (format {metadata.get('format')!r}, wanted {_FORMAT!r})")
    for name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            raise FedawsError(
                f"{path} has NaN or infinite values in {name!r}; delete it to fall back on an earlier one"
            )
    try:
        facts = json.loads(metadata["facts"])
    except (KeyError, json.JSONDecodeError):
        raise FedawsError(
            f"{path} is damaged (its facts are not JSON); delete it to fall back on an earlier one"
        ) from None
    return tensors, facts
