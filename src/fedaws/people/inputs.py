"""Examples from files: arrays in .npz, pictures, and recordings."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedaws.data.sources.images import SUFFIXES as PICTURES
from fedaws.data.sources.images import read_image
from fedaws.data.sources.npz import read_npz
from fedaws.device import Device
from fedaws.device.sound import SUFFIXES as RECORDINGS
from fedaws.device.sound import read_sound
from fedaws.errors import FedawsError
from fedaws.evaluate.model import REMOVED
from fedaws.people.digest import sample_rate
from fedaws.people.gallery import told
from fedaws.training.run import Run, load

_MOST_FILES = 100_000  # in a folder


def load_model(folder: Path) -> Run | Device:
    """The model of a run folder, or of an exported one."""
    if (folder / "model.json").exists():
        with told():
            return Device.load(folder)
    return load(folder)


@dataclass(frozen=True)
class Kind:
    """What one example of a model is."""

    shape: tuple[int, ...]
    dtype: str
    sample_rate: int | None  # of waveforms, where it is one

    def __str__(self) -> str:
        """As errors say it."""
        of = f" at {self.sample_rate:,} samples a second" if self.sample_rate else ""
        return f"{self.dtype} of shape {self.shape}{of}"


def example_kind(model: Run | Device) -> Kind:
    """The shape and type of one example."""
    if isinstance(model, Device):
        return Kind(model.about.shape, model.about.dtype, model.about.sample_rate)
    return Kind(model.facts.example_shape, model.facts.example_dtype, sample_rate(model))


def read_examples(places: Sequence[Path], model: Run | Device) -> NDArray[Any]:
    """All examples [n, …] of files, and of the files in folders, as a model takes them.

    An .npz has them in the array `x`: [n, …], or one alone. A picture is one example, scaled and cut to the size, and
    grey if the training examples were; a recording is as many as it has pieces of their length.
    """
    if not places:
        raise FedawsError("no files were given; wanted .npz files, pictures or sounds")
    kind = example_kind(model)
    parts = [_read(path, kind) for place in places for path in _files(place)]
    if len({part.dtype.kind for part in parts}) > 1:
        raise FedawsError("some of the files have bytes and some numbers; give those that are as the training examples")
    return np.concatenate(parts)


def read_people(path: Path, model: Run | Device) -> tuple[NDArray[Any], NDArray[Any]]:
    """Examples [n, …] and whose each is [n]: x and y of an .npz, or what is in a folder with a folder for everybody."""
    if path.is_dir():
        return _read_folders(path, model)
    arrays = read_npz(path, ["x", "y"], ".npz of examples", "save it with numpy.savez(file, x=x, y=y)")
    x, y = arrays["x"], arrays["y"]
    if y.ndim != 1 or x.ndim < 2 or len(x) != len(y):
        raise FedawsError(f"{path}: x has shape {x.shape}, y {y.shape}; wanted [examples, …] and [examples]")
    return x, y


def _read_folders(folder: Path, model: Run | Device) -> tuple[NDArray[Any], NDArray[Any]]:
    folders = sorted(each for each in folder.iterdir() if each.is_dir() and not each.name.startswith("."))
    if not folders:
        raise FedawsError(f"{folder} has no folders; wanted one for each person, with files of theirs")
    parts = [read_examples([each], model) for each in folders]
    return np.concatenate(parts), np.repeat([each.name for each in folders], [len(part) for part in parts])


def tested_people(run: Run, enroll: int, ask: int) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """Embeddings of a run's own test examples, and the names of whose they are: of people who trained.

    Those of whom there are too few to enrol and ask by so many are left out, and so is who has left.
    """
    data = run.configured_data()
    if not isinstance(data.y_test, Tensor) or not isinstance(data.x_test, Tensor):
        raise FedawsError(f"{run.folder} has examples with sets of labels, which are of no single person; give a list")
    names = np.array([str(name) for name in run.class_names or range(len(run.W))])
    y = data.y_test.numpy()
    enough = np.bincount(y, minlength=len(names)) >= enroll + ask
    if run.model.bias is not None:
        enough &= (run.model.bias > REMOVED).cpu().numpy()
    kept = enough[y]
    if not kept.any():
        raise FedawsError(
            f"nobody has {enroll + ask} test examples in {run.folder}, to enrol by {enroll} and ask by {ask}; lower "
            "--enroll or --ask, or give a list"
        )
    return run.embed(data.x_test[torch.from_numpy(kept)]).cpu().numpy(), names[y[kept]]


def _files(place: Path) -> list[Path]:
    if not place.is_dir():
        return [place]
    found = sorted(path for path in place.iterdir() if path.suffix.lower() in {".npz", *PICTURES, *RECORDINGS})
    if not found or len(found) > _MOST_FILES:
        raise FedawsError(f"{place} has {len(found):,} .npz files, pictures or sounds; wanted 1 to {_MOST_FILES:,}")
    return found


def _read(path: Path, kind: Kind) -> NDArray[Any]:
    shape, suffix = kind.shape, path.suffix.lower()
    if suffix == ".npz":
        x = read_npz(path, ["x"], ".npz of examples", "save it with numpy.savez(file, x=x)")["x"]
        x = x[None] if x.shape == shape else x
        if x.shape[1:] != shape or not len(x):
            raise FedawsError(f"{path}: x has shape {x.shape}, wanted [examples{''.join(f', {n}' for n in shape)}]")
        return x
    if suffix in RECORDINGS:
        if kind.sample_rate is None:
            raise FedawsError(f"{path} is a sound, the model takes {kind}; give .npz files with such an array x")
        with told():
            return read_sound(path, kind.sample_rate, *shape)
    if suffix not in PICTURES:
        known = " ".join(sorted(PICTURES | RECORDINGS))
        raise FedawsError(f"{path} is neither an .npz nor a picture or sound ({known})")
    if kind.dtype != "uint8" or len(shape) != 3 or shape[0] not in (1, 3) or shape[1] != shape[2]:
        raise FedawsError(f"{path} is a picture, the model takes {kind}; give .npz files with such an array x")
    image = read_image(path, shape[1])
    return (image if shape[0] == 3 else _grey(image))[None]


def _grey(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """How bright [1, H, W] the colours [3, H, W] are (ITU-R 601); what is grey already stays as it is."""
    weights = np.array([299, 587, 114])[:, None, None]
    grey: NDArray[np.uint8] = ((weights * image).sum(0, keepdims=True) // 1000).astype(np.uint8)
    return grey
