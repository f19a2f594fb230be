"""Examples from files: arrays in .npz, and pictures."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedaws.data.sources.images import SUFFIXES, read_image
from fedaws.data.sources.npz import read_npz
from fedaws.device import Device
from fedaws.errors import FedawsError
from fedaws.people.gallery import told
from fedaws.training.run import Run, load

_MOST_FILES = 100_000  # in a folder


def load_model(folder: Path) -> Run | Device:
    """The model of a run folder, or of an exported one."""
    if (folder / "model.json").exists():
        with told():
            return Device.load(folder)
    return load(folder)


def example_kind(model: Run | Device) -> tuple[tuple[int, ...], str]:
    """The shape and type of one example."""
    if isinstance(model, Device):
        return model.about.shape, model.about.dtype
    return model.facts.example_shape, model.facts.example_dtype


def read_examples(places: Sequence[Path], model: Run | Device) -> NDArray[Any]:
    """All examples [n, …] of files, and of the files in folders, as a model takes them.

    An .npz has them in the array `x`: [n, …], or one alone. A picture is one example, scaled and cut to the size.
    """
    if not places:
        raise FedawsError("no files were given; wanted .npz files or pictures")
    shape, dtype = example_kind(model)
    parts = [_read(path, shape, dtype) for place in places for path in _files(place)]
    if len({part.dtype.kind for part in parts}) > 1:
        raise FedawsError("some of the files have bytes and some numbers; give those that are as the training examples")
    return np.concatenate(parts)


def read_people(path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    """The arrays x [n, …] and y [n] of an .npz: examples, and whose each is."""
    arrays = read_npz(path, ["x", "y"], ".npz of examples", "save it with numpy.savez(file, x=x, y=y)")
    x, y = arrays["x"], arrays["y"]
    if y.ndim != 1 or x.ndim < 2 or len(x) != len(y):
        raise FedawsError(f"{path}: x has shape {x.shape}, y {y.shape}; wanted [examples, …] and [examples]")
    return x, y


def tested_people(folder: Path, enroll: int) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """Embeddings of a run's own test examples, and the names of whose they are: of people who trained.

    Those of whom there are too few to enrol by so many and test are left out, and so is who has left.
    """
    run = load(folder)
    data = run.configured_data()
    if not isinstance(data.y_test, Tensor) or not isinstance(data.x_test, Tensor):
        raise FedawsError(f"{folder} has examples with sets of labels, which are of no single person; give a list")
    names = np.array([str(name) for name in run.class_names or range(len(run.W))])
    y = data.y_test.numpy()
    enough = np.bincount(y, minlength=len(names)) > enroll
    enough[list(run.facts.forgotten)] = False
    kept = enough[y]
    if not kept.any():
        raise FedawsError(f"nobody has more than {enroll} test examples in {folder}; lower --enroll or give a list")
    return run.embed(data.x_test[torch.from_numpy(kept)]).cpu().numpy(), names[y[kept]]


def _files(place: Path) -> list[Path]:
    if not place.is_dir():
        return [place]
    found = sorted(path for path in place.iterdir() if path.suffix.lower() in {".npz", *SUFFIXES})
    if not found or len(found) > _MOST_FILES:
        raise FedawsError(f"{place} has {len(found):,} .npz files or pictures; wanted 1 to {_MOST_FILES:,}")
    return found


def _read(path: Path, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    if path.suffix.lower() == ".npz":
        x = read_npz(path, ["x"], ".npz of examples", "save it with numpy.savez(file, x=x)")["x"]
        x = x[None] if x.shape == shape else x
        if x.shape[1:] != shape or not len(x):
            raise FedawsError(f"{path}: x has shape {x.shape}, wanted [examples{''.join(f', {n}' for n in shape)}]")
        return x
    if path.suffix.lower() not in SUFFIXES:
        raise FedawsError(f"{path} is neither an .npz nor a picture ({' '.join(sorted(SUFFIXES))})")
    if dtype != "uint8" or len(shape) != 3 or shape[0] != 3 or shape[1] != shape[2]:
        raise FedawsError(
            f"{path} is a picture, the model takes {dtype} of shape {shape}; give .npz files with such an array x"
        )
    return read_image(path, shape[1])[None]
