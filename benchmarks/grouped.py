"""Small images of many classes that come in groups: omniglot's alphabets, CIFAR-100's superclasses.

Both are read from $FEDAWS_DATA: `omniglot/omniglot28.npz` has x [32460, 28, 28] (bytes), y, drawer [32460] and alphabet
[1623]; `cifar-100-binary` is the publisher's folder. To make the first from the publisher's images_background and
images_evaluation, unpacked into one folder: python benchmarks/grouped.py FOLDER OUT.npz
"""

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from fedaws.data.federated import FederatedData, from_arrays

OF_A_CLASS, HELD_OUT = 200, 40  # CIFAR-100's training images that are used, and of them held out in tuning


@dataclass(frozen=True)
class Parts:
    """Examples for training and for testing, and the group of each class."""

    x: Tensor  # [N, channels, height, width] bytes
    y: Tensor  # [N]
    x_test: Tensor
    y_test: Tensor
    group: Tensor  # [classes]


@cache
def omniglot(tuning: bool) -> Parts:
    """At 14 × 14, by drawer: 0 to 14 train, of which 12 to 14 are held out for tuning, 15 to 19 test."""
    with np.load(_root() / "omniglot" / "omniglot28.npz") as archive:
        x, y, drawer, alphabet = (archive[key] for key in ("x", "y", "drawer", "alphabet"))
    images, labels = halved(torch.from_numpy(x)[:, None]), torch.from_numpy(y.astype(np.int64))
    train = torch.from_numpy(drawer < (12 if tuning else 15))
    test = torch.from_numpy((drawer >= 12) & (drawer < 15) if tuning else drawer >= 15)
    group = torch.from_numpy(np.unique(alphabet, return_inverse=True)[1].astype(np.int64))
    return Parts(images[train], labels[train], images[test], labels[test], group)


@cache
def cifar100(tuning: bool) -> Parts:
    """At 16 × 16, the first 200 training images of each class, of which the last 40 are held out for tuning."""
    (x, y, group), (x_test, y_test, _) = (_records(f"{part}.bin") for part in ("train", "test"))
    place = place_in(y)
    used = place < OF_A_CLASS - (HELD_OUT if tuning else 0)
    if tuning:
        held_out = (place >= OF_A_CLASS - HELD_OUT) & (place < OF_A_CLASS)
        x_test, y_test = x[held_out], y[held_out]
    return Parts(halved(x[used]), y[used], halved(x_test), y_test, group)


def _records(file: str) -> tuple[Tensor, Tensor, Tensor]:
    """Images, classes, and the superclass of each class."""
    rows = torch.from_numpy(np.fromfile(_root() / "cifar-100-binary" / file, np.uint8).reshape(-1, 3074))
    coarse, fine = rows[:, 0].long(), rows[:, 1].long()
    return rows[:, 2:].reshape(-1, 3, 32, 32), fine, torch.zeros(100, dtype=torch.int64).index_put_((fine,), coarse)


def place_in(y: Tensor) -> Tensor:
    """How many of its own class stand before each.

    >>> place_in(torch.tensor([5, 3, 5, 5])).tolist()
    [0, 0, 1, 2]
    """
    order = torch.argsort(y, stable=True)
    counts = torch.bincount(y)
    places = torch.empty_like(y)
    places[order] = torch.arange(len(y)) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    return places


def halved(x: Tensor) -> Tensor:
    """Images [N, channels, h, w] of bytes at half the size, each pixel the mean of four."""
    return F.avg_pool2d(x.to(torch.float32), 2).round_().to(torch.uint8)


def _root() -> Path:
    return Path(os.environ.get("FEDAWS_DATA", "."))


# --- as federations ---------------------------------------------------------------------------------------------------


def everybody(parts: Parts) -> FederatedData:
    """Each class has a client; the server knows of each its group and which one it is."""
    features = class_features(parts.group, torch.ones(len(parts.group), dtype=torch.bool))
    return from_arrays(parts.x, parts.y, parts.x_test, parts.y_test, class_features=features)


def class_features(group: Tensor, has_client: Tensor) -> Tensor:
    """[classes, groups + classes]: the group, and beside it, of classes that have a client, the class itself.

    Both are one-hot. The group's has 1/√n for n classes of a group on average: what n classes push moves no faster
    than what one does.

    >>> class_features(torch.tensor([0, 0, 0, 0]), torch.tensor([True, False, True, True]))[:2].tolist()
    [[0.5, 1.0, 0.0, 0.0, 0.0], [0.5, 0.0, 0.0, 0.0, 0.0]]
    """
    groups = F.one_hot(group).float()
    return torch.cat([groups * (groups.shape[1] / len(group)) ** 0.5, torch.diag(has_client.float())], dim=1)


def one_left_out(load: Callable[[bool], Parts], tuning: bool) -> FederatedData:
    """The last class of each group has no client, and is what is tested.

    In tuning the last two have none, and the last but one is tested, on its training examples: nothing of the last.
    """
    parts = load(False)
    behind = places_from_the_end(parts.group)
    has_client = behind > (1 if tuning else 0)
    x, y = (parts.x, parts.y) if tuning else (parts.x_test, parts.y_test)
    train, test = has_client[parts.y], behind[y] == (1 if tuning else 0)
    return from_arrays(
        parts.x[train],
        parts.y[train],
        x[test],
        y[test],
        num_classes=len(parts.group),
        class_features=class_features(parts.group, has_client),
    )


def places_from_the_end(group: Tensor) -> Tensor:
    """How many classes of its group come after each class.

    >>> places_from_the_end(torch.tensor([0, 1, 0, 0])).tolist()
    [2, 0, 1, 0]
    """
    return place_in(group.flip(0)).flip(0)


def group_means(W: Tensor, group: Tensor, has_client: Tensor) -> Tensor:
    """W with the mean row of its group's classes that have a client for each class without one, at unit length."""
    sums = torch.zeros(int(group.max()) + 1, W.shape[1]).index_add_(0, group[has_client], W[has_client])
    return torch.where(has_client[:, None], W, F.normalize(sums, dim=1)[group])


def zero_shot(embeddings: Tensor, W: Tensor, y: Tensor, group: Tensor) -> dict[str, float]:
    """How often a class without a client is found: among those tested, among all classes, and at least its group."""
    tested = y.unique()
    scores = embeddings @ W.T
    best = scores.argmax(1)
    among_tested = tested[scores[:, tested].argmax(1)]
    shares = {"tested": among_tested == y, "all": best == y, "group": group[best] == group[y]}
    return {name: round(float(right.float().mean()), 4) for name, right in shares.items()}


def small_cnn(embedding_dim: int, seed: int) -> nn.Module:
    """Two strided 3 × 3 convolutions, 32 and 64 channels, and a linear layer, for omniglot at 14 × 14."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        first, second = nn.Conv2d(1, 32, 3, 2, 1), nn.Conv2d(32, 64, 3, 2, 1)
        last = nn.Linear(64 * 4 * 4, embedding_dim)
        for layer in (first, second, last):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            layer.bias.detach().zero_()
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Flatten(), last)


# --- omniglot as an .npz ----------------------------------------------------------------------------------------------


def from_folder(folder: Path) -> dict[str, NDArray[np.generic]]:
    """The arrays of images_*/ALPHABET/CHARACTER/NNNN_DD.png, black on white at 105 × 105; DD is the drawer, from 1."""
    characters = sorted(path for path in folder.glob("images_*/*/*") if path.is_dir())
    files = [(y, file) for y, path in enumerate(characters) for file in sorted(path.glob("*.png"))]
    return {
        "x": np.stack([_small(file) for _, file in files]),
        "y": np.array([y for y, _ in files], dtype=np.uint16),
        "drawer": np.array([int(file.stem.split("_")[1]) - 1 for _, file in files], dtype=np.uint8),
        "alphabet": np.array([path.parent.name for path in characters]),
    }


def _small(file: Path) -> NDArray[np.uint8]:
    with Image.open(file) as image:
        return 255 - np.asarray(image.convert("L").resize((28, 28), Image.Resampling.BOX), dtype=np.uint8)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="omniglot28.npz from the publisher's folders")
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("out", type=Path)
    given = arguments.parse_args()
    np.savez_compressed(given.out, allow_pickle=False, **from_folder(given.folder))
