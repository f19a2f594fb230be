"""Tensor files with JSON facts, checked when read. No pickle anywhere."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedaws.errors import FedawsError
from fedaws.files import atomically
from fedaws.tensor_files import Pieces, damaged, read_safetensors, write_safetensors

_FORMAT = "fedaws-1"


def write_tensors(path: Path, tensors: Mapping[str, Tensor | Pieces], facts: dict[str, Any]) -> None:
    """Tensors and JSON facts in one safetensors file."""
    content = {
        name: t if isinstance(t, Pieces) else Pieces(t.dtype, tuple(t.shape), [t]) for name, t in tensors.items()
    }
    with atomically(path) as file:
        write_safetensors(file, content, {"format": _FORMAT, "facts": json.dumps(facts)})


def read_tensors(path: Path, only: Collection[str] | None = None) -> tuple[dict[str, Tensor], str]:
    """The tensors and the JSON facts of a file by `write_tensors`; refuses truncated, foreign and non-finite ones."""
    tensors, metadata = read_safetensors(path, only)
    if metadata.get("format") != _FORMAT:
        raise FedawsError(f"{path} was not written by fedaws (format {metadata.get('format')!r}, wanted {_FORMAT!r})")
    for name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            raise damaged(path, f"NaN or infinite values in {name!r}")
    return tensors, metadata.get("facts", "")
