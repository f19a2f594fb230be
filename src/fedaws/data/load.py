"""From the configuration's `data` table to a federation."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedaws.config import SPARSE, Config, check_data_name
from fedaws.data.arrays import as_features, as_labels
from fedaws.data.federated import FederatedData, from_arrays
from fedaws.data.label_sets import Split, from_sparse, inverse_propensities
from fedaws.data.partition import hold_out
from fedaws.data.sources.audiomnist import audiomnist
from fedaws.data.sources.cifar import cifar
from fedaws.data.sources.digits import digits
from fedaws.data.sources.download import cache_folder
from fedaws.data.sources.images import images
from fedaws.data.sources.npz import read_npz
from fedaws.data.sources.sounds import sounds
from fedaws.data.sources.synthetic import synthetic
from fedaws.data.sources.xc import SETS, label_names, other_data, some_rows, xc
from fedaws.data.sources.xc_synthetic import xc_synthetic
from fedaws.errors import FedawsError

_PARTS = ("x_train", "y_train", "x_test", "y_test")


def load_data(cfg: Config, classes_per_client: int = 1, cooccurrence: bool = False) -> FederatedData:
    """The configured data, dealt out to clients; the configuration overrides the method's `classes_per_client`."""
    data = cfg.data
    if data.name in SPARSE:
        return _load_sparse(cfg, classes_per_client, cooccurrence)
    if data.every_label:
        raise FedawsError(f"data.every_label: {data.name} has one label per example; wanted one of {', '.join(SPARSE)}")
    arrays, names = _load(cfg)
    if names is not None and data.num_classes not in (None, len(names)):
        names = None  # untrained rows have none
    with _named_as_settings():
        return from_arrays(
            *(arrays[:2] if data.validation else arrays),
            num_classes=data.num_classes,
            clients_per_class=data.clients_per_class,
            classes_per_client=data.classes_per_client or classes_per_client,
            validation=data.validation,
            validation_by=data.validation_by,
            class_names=names,
            strangers=data.strangers,
            test_strangers=data.test_strangers,
            strangers_seed=data.strangers_seed,
            seed=cfg.seed,
        )


@contextmanager
def _named_as_settings() -> Iterator[None]:
    """What Python calls an argument of `from_arrays` is a key of the table `data` here."""
    try:
        yield
    except FedawsError as error:
        arguments = (
            r"\b(num_classes|validation(?:_by)?|clients_per_class|classes_per_client|(test_)?strangers(?=[=:;]))\b"
        )
        raise FedawsError(re.sub(arguments, r"data.\1", str(error))) from None


def _load_sparse(cfg: Config, classes_per_client: int, cooccurrence: bool) -> FederatedData:
    data = cfg.data
    if data.num_classes is not None:
        raise FedawsError(
            f"data.num_classes={data.num_classes}: {data.name} says itself how many there are; leave it out"
        )
    if data.validation_by == "class":
        raise FedawsError(
            f"data.validation_by=class: {data.name} has sets of labels, of no one class; set it to example"
        )
    if data.strangers or data.test_strangers:
        raise FedawsError(f"data.strangers: {data.name} has sets of labels, and no classes alone; set it to 0")
    train, test = _splits(cfg)
    names = None
    if data.name != "xc-synthetic":
        names = label_names(data.name, _roots(cfg), cache_folder(), train.labels.width)
    with _named_as_settings():
        return from_sparse(
            *train,
            *(test or ()),
            class_names=names,
            clients_per_class=data.clients_per_class,
            classes_per_client=data.classes_per_client or classes_per_client,
            every_label=data.every_label,
            validation=data.validation,
            held_out_labels=data.held_out_labels,
            propensity=_propensity(cfg),
            cooccurrence=cooccurrence,
            seed=cfg.seed,
        )


def as_found(cfg: Config) -> tuple[Config, str]:
    """The configuration with data of one's own named as such, if these lie where a set is looked for; and what to say.

    They are told by their numbers of rows, features and labels, wherever they lie.
    """
    name = cfg.data.name
    other = other_data(name, _roots(cfg), cache_folder()) if name in SETS else None
    if other is None:
        return cfg, ""
    folder, found = other
    known = SETS[name]
    return cfg.with_(data={"name": "xc", "root": str(folder)}), (
        f"{folder} has {found.rows:,} rows, {found.features:,} features and {found.labels:,} labels; {name} has "
        f"{known.train:,}, {known.features:,} and {known.labels:,}: taken as data of your own (data.name=xc)"
    )


def load_label_sets(cfg: Config) -> tuple[Split, Split, Tensor]:
    """The configured sparse data with all labels of every example, before they are dealt out, for what is not
    federated: training part, test part (or the rows held out), and 1/p of each label.
    """
    if cfg.data.name not in SPARSE:
        raise FedawsError(f"data.name={cfg.data.name} has no sets of labels; wanted one of {', '.join(SPARSE)}")
    train, test = _splits(cfg)
    if test is None:
        with _named_as_settings():
            stays, held_out = hold_out(len(train.x), cfg.data.validation, cfg.seed)
        train, test = (Split(*(part.index_select(0, rows) for part in train)) for rows in (stays, held_out))
    counts = torch.bincount(train.labels.indices, minlength=train.labels.width)
    return train, test, inverse_propensities(counts, len(train.x), *_propensity(cfg))


def _splits(cfg: Config) -> tuple[Split, Split | None]:
    """The training part and, unless training rows are held out in its place, the test part."""
    data = cfg.data
    test: Split | None
    if data.name == "xc-synthetic":
        train, test = xc_synthetic(data.like, data.scale, cfg.seed, cache_folder())
    else:
        train, test = xc(data.name, _roots(cfg), cache_folder(), tested=not data.validation)
    if data.validation or test is None:
        return train, None
    return train, some_rows(test, None if data.test_examples == "all" else data.test_examples)


def _propensity(cfg: Config) -> tuple[float, float]:
    """A and B of the data's labels."""
    shape = SETS.get(cfg.data.like if cfg.data.name == "xc-synthetic" else cfg.data.name)
    return shape.propensity if shape else (0.55, 1.5)


def _roots(cfg: Config) -> list[Path]:
    """Where data are looked for, before the cache."""
    return [path for path in (_path(cfg.data.root), _path(os.environ.get("FEDAWS_DATA"))) if path]


def _load(cfg: Config) -> tuple[tuple[Any, ...], tuple[str, ...] | None]:
    """x and y for training, x and y for testing, and the classes' names where they have any."""
    data = cfg.data
    root, common = _path(data.root), _path(os.environ.get("FEDAWS_DATA"))
    arrays: tuple[Any, ...]
    names: tuple[str, ...] | None = None
    match data.name:
        case "digits":
            arrays = digits()
        case "synthetic":
            arrays = synthetic(data.classes, data.features, data.examples_per_class, data.overlap, cfg.seed)
        case "cifar10" | "cifar100":
            arrays, names = cifar(data.name, _roots(cfg), cache_folder())
        case "audiomnist":
            arrays, names = audiomnist(_roots(cfg), cache_folder(), cfg.model.sample_rate, data.seconds)
        case "images":
            arrays, names = images(_needed(root, "images needs the folder of images"), data.image_size)
        case "sounds":
            folder = _needed(root, "sounds needs the folder of recordings")
            arrays, names = sounds(folder, cfg.model.sample_rate, data.seconds)
        case path:
            check_data_name(path)
            place = _first_there(Path(os.path.expanduser(path)), [root] if root else [Path(), common])
            arrays = _read_npz(place, _PARTS[:2] if data.validation else _PARTS)
    return arrays, names


def _needed(root: Path | None, what: str) -> Path:
    if root is None:
        raise FedawsError(f"data.name={what}; set data.root")
    return root


def _first_there(path: Path, folders: list[Path | None]) -> Path:
    """The path in the first of the folders that has it; if none does, where it was looked for first."""
    places = [folder / path for folder in folders if folder is not None]
    return next((place for place in places if place.exists()), places[0])


def _path(text: str | None) -> Path | None:
    return Path(os.path.expanduser(text)) if text else None


def _read_npz(path: Path, parts: tuple[str, ...] = _PARTS) -> tuple[Any, ...]:
    fix = "save its arrays, all of numbers, anew with numpy.savez"
    arrays = read_npz(path, parts, ".npz file", fix)
    return tuple(
        (as_features if name.startswith("x") else as_labels)(array, f"{path}: {name}") for name, array in arrays.items()
    )
