"""A run's state as the tensors of one file, or of a file for each rank; and back, checked."""

from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from fedaws.core.spreadout import NEIGHBORS
from fedaws.errors import FedawsError
from fedaws.record.facts import Facts
from fedaws.record.files import read_tensors
from fedaws.tensor_files import damaged, tensor_sizes
from fedaws.types import ServerState

RANKS = "ranks"
"""The folder of what the ranks but the first have written."""
_NEIGHBORS = f"spread/{NEIGHBORS}"  # ids of classes, which are looked up unchecked
_MEMORIES = ("optimizer", "row_optimizer", "tables", "spread", "weighting", "clip", "average", "best")
"""The mappings of a state that are saved, each under its name."""


def pack(state: ServerState) -> dict[str, Tensor]:
    """The tensors of a state, each under its owner's name."""
    packed = {"W": state.W} | ({} if state.bias is None else {"bias": state.bias})
    parts = {part: getattr(state, part) for part in ("theta", *_MEMORIES)}
    return packed | {f"{part}/{k}": v for part, mapping in parts.items() for k, v in mapping.items()}


def unpack(tensors: dict[str, Tensor], facts: Facts, start: ServerState, path: Path, classes: int) -> ServerState:
    """The state in a checkpoint, refused unless it has the run's own names, shapes and types."""
    own = pack(start)
    if any(number >= classes for number in facts.forgotten):
        raise damaged(path, f"it has forgotten class {max(facts.forgotten)} of {classes}")
    if "bias" in tensors:  # of the last step, which no start has
        own["bias"] = start.W.new_empty(len(start.W))
    for name in sorted(own.keys() | tensors.keys()):
        got = _kind(tensors.get(name))
        want = _kind(own.get(name))
        if got != want:
            raise FedawsError(
                f"{path} is of another run: {name!r} is {got}, wanted {want}; resume the run it belongs to"
            )
        if name == _NEIGHBORS and not _are_classes(tensors[name], classes):
            raise damaged(path, f"{name!r} has ids beyond {classes} classes")
    tensors = {name: tensor.to(start.W.device) for name, tensor in tensors.items()}
    parts: dict[str, Any] = {part: below(part, tensors) for part in ("theta", *_MEMORIES)}
    bias = tensors.get("bias")
    return replace(start, round_num=facts.round, W=tensors["W"], bias=bias, loss=facts.loss, **parts)


def _are_classes(ids: Tensor, count: int) -> bool:
    return not ids.numel() or (int(ids.min()) >= -1 and int(ids.max()) < count)


def _kind(tensor: Tensor | None) -> str:
    return "missing" if tensor is None else f"{tensor.dtype} {tuple(tensor.shape)}"


def below(part: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of one owner, under their own names."""
    prefix = f"{part}/"
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def read_state(
    path: Path, rank: int = 0, world: int = 1, without: Collection[str] = ()
) -> tuple[dict[str, Tensor], Facts]:
    """The tensors of a checkpoint or model and what it says of them; of tensors whose rows are shared out among `world`
    processes those of `rank`, however many processes have written them.
    """
    tensors, text = read_tensors(path, tensor_sizes(path).keys() - without if without else None)
    try:
        facts = Facts.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        raise damaged(path, f"its facts are wrong ({'.'.join(map(str, first['loc']))}: {first['msg']})") from None
    for name, count in facts.shared.items():
        if name in without:
            continue
        if name not in tensors or not tensors[name].ndim:
            raise damaged(path, f"it has no rows of {name!r}")
        files = [path, *(rows_file(path, writer, facts.ranks) for writer in range(1, facts.ranks))]
        there = sum(tensor_sizes(file).get(name, 0) for file in files)  # looked at before memory is taken for all
        own = None
        if tensors[name].numel() * count == there * len(tensors[name]):
            own = _pick((read_tensors(file, [name])[0].get(name) for file in files), count, facts.ranks, rank, world)
        if own is None:
            raise damaged(path, f"the rows of {name!r} that {facts.ranks} ranks have written do not fit together")
        tensors[name] = own
    return tensors, facts


def rows_file(path: Path, rank: int, world: int) -> Path:
    """Where a rank other than the first keeps its rows of a checkpoint."""
    return path.parent / RANKS / f"{path.stem}-{rank}-of-{world}.safetensors"


def _pick(parts: Iterable[Tensor | None], count: int, writers: int, rank: int, world: int) -> Tensor | None:
    """Of `count` rows that so many processes have written those of one rank; None where they do not fit together."""
    own: Tensor | None = None
    for writer, part in enumerate(parts):
        if part is None or part.ndim < 1 or len(part) != len(range(writer, count, writers)):
            return None
        own = part.new_empty(len(range(rank, count, world)), *part.shape[1:]) if own is None else own
        if part.shape[1:] != own.shape[1:] or part.dtype != own.dtype:
            return None
        ids = torch.arange(writer, count, writers)
        mine = ids % world == rank
        own[ids[mine] // world] = part[mine]
    return own
