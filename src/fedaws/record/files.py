"""Tensor files with JSON facts, checked when read. No pickle anywhere."""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from fedaws.errors import FedawsError
from fedaws.files import write_bytes
from fedaws.tensor_files import damaged, read_safetensors

_FORMAT = "fedaws-1"


def write_tensors(path: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Tensors and JSON facts in one safetensors file."""
    content = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    write_bytes(path, save(content, {"format": _FORMAT, "facts": json.dumps(facts)}))


def read_tensors(path: Path, only: Collection[str] | None = None) -> tuple[dict[str, Tensor], str]:
    """The tensors and the JSON facts of a file by `write_tensors`; refuses truncated, foreign and non-finite ones."""
    tensors, metadata = read_safetensors(path, only)
    if metadata.get("format") != _FORMAT:
        raise FedawsError(f"{path} was not written by fedaws (format {metadata.get('format')!r}, wanted {_FORMAT!r})")
    for name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            raise damaged(path, f"NaN or infinite values in {name!r}")
    return tensors, metadata.get("facts", "")
