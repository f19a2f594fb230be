"""Weights that training starts from instead of random ones: of another run, of a file, or given."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union
from weakref import WeakSet

import torch
from torch import Tensor, nn

from fedaws.config import Config
from fedaws.errors import FedawsError
from fedaws.models import trainable
from fedaws.record.folder import RunFolder
from fedaws.tensor_files import read_safetensors
from fedaws.types import Params

if TYPE_CHECKING:
    from fedaws.training.run import Run

Start = Union[str, Path, Mapping[str, Tensor], "Run"]
"""A run, a run's folder, a .safetensors file, or tensors by name."""


def weights_of(start: Any) -> Params:
    """The tensors by name, wherever they are."""
    if isinstance(start, Mapping):
        for name, tensor in start.items():
            if not isinstance(tensor, Tensor):
                raise FedawsError(f"start has {name} as a {type(tensor).__name__}; wanted a tensor")
        return dict(start)
    if hasattr(start, "theta"):
        theta: Params = start.theta
        return theta
    if not isinstance(start, str | Path):
        raise FedawsError(f"start is a {type(start).__name__}; wanted a Run, a run folder, a file or tensors by name")
    path = Path(start).expanduser()
    if path.is_dir():
        return RunFolder(path).load_model().theta
    if not path.exists():
        raise FedawsError(f"start: {path} does not exist; wanted a run folder or a .safetensors file")
    try:
        return read_safetensors(path)[0]
    except FedawsError as error:
        raise FedawsError(f"start: no sound .safetensors file: {str(error).partition(';')[0]}; get it anew") from None


TRAINED: WeakSet[nn.Module] = WeakSet()
"""Encoders that have the weights of a run in this process."""


def check_start(cfg: Config, begun: bool) -> None:
    """Weights that have seen the same people have spent on them what no ledger here tells of."""
    if begun and cfg.privacy.noisy and not cfg.privacy.public_start:
        raise FedawsError(
            "start: what weights cost the people that they were trained on is not counted here, so ε would be too "
            "small; begin at random, or set privacy.public_start=true if they have seen none of these people"
        )


@torch.no_grad()
def begin_with(encoder: nn.Module, weights: Params, warn: Callable[[str], None]) -> None:
    """Give the encoder's trainable parameters these weights; each must be there, whatever else is in them."""
    parameters = trainable(encoder)
    missing = [name for name in parameters if name not in weights]
    if missing:
        raise FedawsError(
            f"start has no {', '.join(missing[:3])}; wanted all of the encoder's {len(parameters)} parameters"
        )
    for name, parameter in parameters.items():  # all of them before the first is written
        if weights[name].shape != parameter.shape:
            got, want = tuple(weights[name].shape), tuple(parameter.shape)
            raise FedawsError(f"start has {name} of shape {got}, the encoder {want}; take the encoder it belongs to")
        if not bool(torch.isfinite(weights[name]).all()):
            raise FedawsError(f"start has NaN or infinite values in {name}; take another file")
    for name, parameter in parameters.items():
        parameter.copy_(weights[name])
    if len(weights) > len(parameters):
        warn(f"start has {len(weights) - len(parameters)} tensors that the encoder has no place for; they are left out")
