"""CIFAR-10 and CIFAR-100 as published: binary or Python version, unpacked or still in the archive.

An archive is unpacked, and a pickle read, only if it has the published checksum: then nobody has put anything into it.
"""

import hashlib
import io
import pickle
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedaws.data.sources.download import Archive, fetch
from fedaws.errors import FedawsError
from fedaws.files import open_regular, read_bytes, reading

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]
Names = tuple[str, ...]

_PIXELS = 3 * 32 * 32
_LARGEST = 1 << 28  # bytes of a file; the largest there is has 186 million
_HOME = "https://www.cs.toronto.edu/~kriz/"


@dataclass(frozen=True)
class Version:
    """One of the published forms of a data set: its folder, its archive, and the files in it."""

    folder: str
    archive: Archive
    train: tuple[str, ...]
    test: str
    names: str
    md5: Mapping[str, str] = field(default_factory=dict)  # of the files that are pickles

    @property
    def files(self) -> tuple[str, ...]:
        """All of them."""
        return (*self.train, self.test, self.names)


@dataclass(frozen=True)
class Cifar:
    """What differs between the two sets."""

    classes: int
    label_bytes: int  # in a binary record; the last one is the class
    label_key: bytes  # in a Python batch
    names_key: bytes
    names: Names | None  # where the file with them is missing
    versions: tuple[Version, Version]  # binary, Python


@dataclass(frozen=True)
class _Source:
    """A version of a data set, where it lies, and the content of its files."""

    version: Version
    place: Path
    files: dict[str, bytes]

    def wrong(self, file: str, what: str) -> FedawsError:
        return FedawsError(f"{file} in {self.place} {what}; delete {self.place} and get it anew")


SETS = {
    "cifar10": Cifar(
        classes=10,
        label_bytes=1,
        label_key=b"labels",
        names_key=b"label_names",
        names=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        versions=(
            Version(
                folder="cifar-10-batches-bin",
                archive=Archive(_HOME + "cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),
                train=tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
                test="test_batch.bin",
                names="batches.meta.txt",
            ),
            Version(
                folder="cifar-10-batches-py",
                archive=Archive(_HOME + "cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a"),
                train=tuple(f"data_batch_{i}" for i in range(1, 6)),
                test="test_batch",
                names="batches.meta",
                md5={
                    "data_batch_1": "c99cafc152244af753f735de768cd75f",
                    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
                    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
                    "data_batch_4": "634d18415352ddfa80567beed471001a",
                    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
                    "test_batch": "40351d587109b95175f43aff81a1287e",
                    "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
                },
            ),
        ),
    ),
    "cifar100": Cifar(
        classes=100,
        label_bytes=2,
        label_key=b"fine_labels",
        names_key=b"fine_label_names",
        names=None,
        versions=(
            Version(
                folder="cifar-100-binary",
                archive=Archive(_HOME + "cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),
                train=("train.bin",),
                test="test.bin",
                names="fine_label_names.txt",
            ),
            Version(
                folder="cifar-100-python",
                archive=Archive(_HOME + "cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85"),
                train=("train",),
                test="test",
                names="meta",
                md5={
                    "train": "16019d7e3df5f24257cddd939b257f8d",
                    "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
                    "meta": "7973b15100ade9c7d40fb424638fde48",
                },
            ),
        ),
    ),
}


def cifar(name: str, roots: Iterable[Path], cache: Path) -> tuple[tuple[Images, Labels, Images, Labels], Names | None]:
    """(x_train, y_train, x_test, y_test) with images [N, 3, 32, 32] as bytes, and the classes' names.

    Looked for below each of `roots` and the cache, as a folder or as the official archive; else the binary version is
    downloaded into the cache.
    """
    which = SETS[name]
    source = _find(which, [*roots, cache]) or _download(which, cache)
    names = _names(which, source)
    train = _examples(which, source, source.version.train)
    return (*train, *_examples(which, source, (source.version.test,))), names


def _find(which: Cifar, roots: list[Path]) -> _Source | None:
    for root in roots:
        try:
            for version in which.versions:
                for folder in (root / version.folder, root):
                    if folder.name == version.folder and folder.is_dir():
                        files = [file for file in version.files if (folder / file).exists()]
                        return _Source(version, folder, {file: read_bytes(folder / file, _LARGEST) for file in files})
                archive = root / version.archive.name
                if archive.is_file():
                    return _Source(version, archive, _unpack(archive, version))
        except OSError as error:
            raise FedawsError(
                f"cannot look into {root}: {error.strerror or error}; make it readable or set data.root"
            ) from None
    return None


def _download(which: Cifar, cache: Path) -> _Source:
    version = which.versions[0]
    archive = fetch(version.archive, cache)
    return _Source(version, archive, _unpack(archive, version))


def _unpack(path: Path, version: Version) -> dict[str, bytes]:
    """The files of an archive, in one pass: every look back would unpack from the beginning."""
    names = {f"{version.folder}/{file}": file for file in version.files}
    contents = {}
    with open_regular(path, _LARGEST) as file, reading(path):
        if not _is_published(file, version.archive.md5):
            raise FedawsError(f"{path} is not the published file (its checksum differs); delete it and get it anew")
        file.seek(0)
        with tarfile.open(fileobj=file, mode="r:gz") as tar:
            for member in tar:
                content = tar.extractfile(member) if member.name in names else None
                if content is not None:
                    contents[names[member.name]] = content.read()
    return contents


def _is_published(file: io.BufferedReader | io.BytesIO, md5: str | None) -> bool:
    return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest() == md5


class _Unpickler(pickle.Unpickler):
    """With the three names that the published files need, and no other."""

    def find_class(self, module: str, name: str) -> Any:
        known = {("numpy.core.multiarray", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype")}
        if (module, name) not in known:
            raise pickle.UnpicklingError(f"asks for {module}.{name}")
        return super().find_class(module, name)


def _unpickled(source: _Source, file: str, content: bytes) -> dict[bytes, Any]:
    if not _is_published(io.BytesIO(content), source.version.md5[file]):
        raise source.wrong(file, "is not the published file (its checksum differs)")
    batch: dict[bytes, Any] = _Unpickler(io.BytesIO(content), encoding="bytes").load()
    return batch


def _names(which: Cifar, source: _Source) -> Names | None:
    file = source.version.names
    content = source.files.get(file)
    if content is None:
        return which.names
    lines = content.split() if file.endswith(".txt") else _unpickled(source, file, content)[which.names_key]
    names = tuple(line.decode("latin1") for line in lines)
    return names if len(names) == which.classes else which.names


def _examples(which: Cifar, source: _Source, files: Iterable[str]) -> tuple[Images, Labels]:
    """Several files as one; what a file gives are views of it, so this is the only copy."""
    parts = [_batch(which, source, file) for file in files]
    return np.concatenate([x for x, _ in parts]).reshape(-1, 3, 32, 32), np.concatenate([y for _, y in parts])


def _batch(which: Cifar, source: _Source, file: str) -> tuple[Images, Labels]:
    """One file's images [N, 3072] and classes, checked."""
    content = source.files.get(file)
    if content is None:
        raise FedawsError(f"{source.place} has no {file}; delete it and get it anew")
    x, y = (_from_binary if file.endswith(".bin") else _from_pickle)(which, source, file, content)
    wrong = ((y < 0) | (y >= which.classes)).nonzero()[0]
    if len(wrong):
        label = int(y[wrong[0]])
        raise source.wrong(file, f"has label {label} at image {wrong[0]}, wanted 0 to {which.classes - 1}")
    return x, y


def _from_binary(which: Cifar, source: _Source, file: str, content: bytes) -> tuple[Images, Labels]:
    record = which.label_bytes + _PIXELS
    if not content or len(content) % record:
        raise source.wrong(file, f"has {len(content):,} bytes, wanted {record:,} for each image and its label")
    rows = np.frombuffer(content, dtype=np.uint8).reshape(-1, record)
    return rows[:, which.label_bytes :], rows[:, which.label_bytes - 1].astype(np.int64)


def _from_pickle(which: Cifar, source: _Source, file: str, content: bytes) -> tuple[Images, Labels]:
    batch = _unpickled(source, file, content)
    return batch[b"data"], np.array(batch[which.label_key], dtype=np.int64)
