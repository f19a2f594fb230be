"""What is given as examples and labels, checked: NumPy, torch or a dataset in, tensors on the CPU out."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedaws.errors import FedawsError

_LABELS = "integer labels 0 … classes − 1"


def as_features(x: Any, name: str = "x") -> Tensor:
    """Examples [N, …] as float32, or bytes as they are; refused unless they are finite numbers."""
    features = _tensor(x, name, "numbers")
    if features.ndim < 2 or not features.numel():
        raise FedawsError(f"{name} has shape {tuple(features.shape)}; wanted [examples, …] with at least one example")
    if features.is_complex() or features.dtype == torch.bool:
        raise FedawsError(f"{name} is {features.dtype}; wanted real numbers")
    if features.dtype == torch.uint8:
        return features
    features = features.to(torch.float32)
    bad = (~features.flatten(1).isfinite().all(1)).nonzero()
    if len(bad):
        raise FedawsError(
            f"{name} has NaN or infinite values, first in example {int(bad[0])}; drop or mend {len(bad)} rows"
        )
    return features


def as_labels(y: Any, name: str = "y") -> Tensor:
    """One class per example [N] as int64; refused unless they are integers from 0 on."""
    labels = _tensor(y, name, _LABELS)
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise FedawsError(f"{name} is {labels.dtype}; wanted {_LABELS}")
    if labels.ndim != 1:
        raise FedawsError(f"{name} has shape {tuple(labels.shape)}; wanted one label per example, [examples]")
    labels = labels.to(torch.int64)
    if len(labels) and int(labels.min()) < 0:
        raise FedawsError(f"{name} has the negative label {int(labels.min())}; wanted {_LABELS}")
    return labels


def _tensor(values: Any, name: str, wanted: str) -> Tensor:
    """A CPU tensor, from NumPy also where torch itself is choosy: reversed, read-only, of the other byte order."""
    if isinstance(values, Tensor):
        return values.detach().cpu()
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise FedawsError(f"{name} is not an array: {error}; wanted {wanted}") from None
    if array.dtype.kind not in "biufc":
        fix = "; names, y = np.unique(y, return_inverse=True) numbers them" if wanted == _LABELS else ""
        raise FedawsError(f"{name} is an array of {array.dtype.type.__name__}; wanted {wanted}{fix}")
    if array.dtype.itemsize > (16 if array.dtype.kind == "c" else 8):
        raise FedawsError(f"{name} is an array of {array.dtype.name}; wanted numbers of at most 64 bits")
    return torch.from_numpy(np.require(array, array.dtype.newbyteorder("="), ["C", "W"]))


def checked_names(names: Sequence[str] | None, classes: int) -> tuple[str, ...] | None:
    """The classes' names, if they have any: one for each, none twice."""
    if names is None:
        return None
    if len(names) != classes:
        raise FedawsError(f"class_names has {len(names)} names for {classes} classes; give one name per class")
    if len(set(names)) < classes:
        raise FedawsError("class_names has a name twice; give every class a name of its own")
    return tuple(names)


def stacked_pairs(dataset: Any) -> tuple[Tensor, Tensor]:
    """x and y of a dataset of (x, y) pairs, each in one tensor."""
    try:
        pairs = [dataset[i] for i in range(len(dataset))]
        if not pairs:
            raise ValueError("it is empty")
        xs, ys = zip(*((torch.as_tensor(x), torch.as_tensor(y)) for x, y in pairs), strict=True)
        return torch.stack(xs), torch.stack(ys)
    except (TypeError, ValueError, RuntimeError) as error:
        raise FedawsError(
            f"the dataset is not one of (x, y) pairs, all x of the same shape: {str(error).splitlines()[0]}"
        ) from None


def channels_last(x: Tensor) -> Tensor:
    """Images in the memory layout in which pixels are whole and convolutions are fast; the same numbers."""
    return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x
