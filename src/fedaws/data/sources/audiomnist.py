"""AudioMNIST (Becker et al. 2018): sixty people who say each digit fifty times, as published or downloaded.

It has no checksum but git's: what is downloaded is one commit, and the id of its folder of recordings is a hash of all
their bytes and names.
"""

import hashlib
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from fedaws.data.sources.array_cache import Arrays, cached
from fedaws.data.sources.download import Archive, fetch
from fedaws.data.sources.sounds import Labels
from fedaws.device.errors import DeviceError
from fedaws.device.sound import Samples, sound_of
from fedaws.errors import FedawsError
from fedaws.files import LARGE, open_regular, read_bytes, reading

_COMMIT = "630d7dab4c040882834de6fa21baf9a60372accd"
_TESTED = 40  # of fifty repetitions the last ten are tested on
_LARGEST = 1 << 20  # bytes of a file
_MOST_FILES = 100_000


@dataclass(frozen=True)
class Published:
    """Where it is, and git's id of its folder `data`."""

    archive: Archive
    tree: str


PUBLISHED = Published(
    Archive(f"https://github.com/soerenab/AudioMNIST/archive/{_COMMIT}/AudioMNIST-{_COMMIT}.tar.gz", None),
    "372cb9f35290fbd5a5e181528e2bb479c158e2e7",
)


def audiomnist(
    roots: Iterable[Path], cache: Path, rate: int, seconds: float, published: Published = PUBLISHED
) -> tuple[tuple[Samples, Labels, Samples, Labels], tuple[str, ...]]:
    """(x_train, y_train, x_test, y_test) with waveforms [N, rate · seconds], and the speakers' names 01 … 60.

    Looked for below each of `roots` and the cache, as the folder AudioMNIST or as the archive; else it is downloaded
    into the cache (a gigabyte). What was made of it is kept there for the next time.
    """
    samples = round(rate * seconds)
    place = _find([*roots, cache], published) or fetch(published.archive, cache)
    key = f"{published.tree} {rate} {samples} {_stamp(place)}"

    def build() -> Arrays:
        return _examples(_folder(place) if place.is_dir() else _archive(place, published), place, rate, samples)

    arrays = cached(cache / f"audiomnist-{rate}-{samples}.safetensors", key, build)
    x, y = arrays["x"].astype(np.float32, copy=False), arrays["speaker"].astype(np.int64, copy=False)
    tested = arrays["repetition"].astype(np.int64, copy=False) >= _TESTED
    names = tuple(f"{speaker:02}" for speaker in np.unique(y))
    y = np.unique(y, return_inverse=True)[1]
    if tested.all() or not tested.any():
        raise FedawsError(
            f"{place} has not all of AudioMNIST's repetitions 0 … 49; get it anew, or for recordings of your own set "
            "data.name=sounds"
        )
    return (x[~tested], y[~tested], x[tested], y[tested]), names


def _find(roots: list[Path], published: Published) -> Path | None:
    for root in roots:
        for folder in (root / "AudioMNIST" / "data", root / "AudioMNIST", root / "data", root):
            if (folder / "01").is_dir():
                return folder
        if (root / published.archive.name).is_file():
            return root / published.archive.name
    return None


def _stamp(place: Path) -> str:
    """What changes when recordings do: their names, sizes and times."""
    files = sorted(place.glob("*/*.wav")) if place.is_dir() else [place]
    about = [(str(file.relative_to(place.parent)), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(repr(about).encode()).hexdigest()


def _folder(place: Path) -> Iterator[tuple[PurePosixPath, bytes]]:
    for path in sorted(place.glob("*/*.wav")):
        yield PurePosixPath(path.parent.name, path.name), read_bytes(path, _LARGEST)


def _archive(path: Path, published: Published) -> Iterator[tuple[PurePosixPath, bytes]]:
    """The recordings in one pass; whether they are the published ones shows at its end, before anything is kept."""
    ids: dict[PurePosixPath, bytes] = {}
    with open_regular(path, LARGE) as file, reading(path):
        try:
            with tarfile.open(fileobj=file, mode="r:gz") as tar:
                for member in tar:
                    inside = PurePosixPath(*PurePosixPath(member.name).parts[1:])
                    content = tar.extractfile(member) if inside.parts[:1] == ("data",) else None
                    if content is None or member.size > _LARGEST or len(ids) > _MOST_FILES:
                        continue
                    whole = content.read()
                    name = inside.relative_to("data")
                    ids[name] = _git_id("blob", whole)
                    if name.suffix == ".wav":
                        yield name, whole
        except (tarfile.TarError, EOFError, ValueError) as error:
            raise FedawsError(f"{path} is no sound archive ({error}); delete it and get it anew") from None
    if _tree_id(ids).hex() != published.tree:
        raise FedawsError(f"{path} is not what was published (git's id of its data differs); delete it and get it anew")


def _git_id(kind: str, content: bytes) -> bytes:
    """Git's name for an object.

    >>> _git_id("blob", b"hello").hex()  # echo -n hello | git hash-object --stdin
    'b6fc4c620b67d95f953a5c1c1230aaab5db5a1b0'
    """
    return hashlib.sha1(f"{kind} {len(content)}\0".encode() + content, usedforsecurity=False).digest()


def _tree_id(ids: dict[PurePosixPath, bytes]) -> bytes:
    """Git's name for a folder of files, and folders of files."""
    entries = {path.name: (b"100644", blob) for path, blob in ids.items() if len(path.parts) == 1}
    for folder in {path.parts[0] for path in ids if len(path.parts) > 1}:
        below = {path.relative_to(folder): blob for path, blob in ids.items() if path.parts[0] == folder}
        entries[folder] = (b"40000", _tree_id(below))
    order = sorted(entries, key=lambda name: f"{name}/" if entries[name][0] == b"40000" else name)
    return _git_id("tree", b"".join(entries[name][0] + f" {name}\0".encode() + entries[name][1] for name in order))


def _examples(files: Iterable[tuple[PurePosixPath, bytes]], place: Path, rate: int, samples: int) -> Arrays:
    """Every recording's pieces, who speaks, and which time it is: 7_01_42.wav is speaker 1's 7 for the 42nd time."""
    parts, whose = [], []
    for name, content in files:
        numbers = name.stem.split("_")
        if len(numbers) != 3 or not all(number.isdecimal() and len(number) < 4 for number in numbers):
            raise FedawsError(f"{name} in {place} has no name like 7_01_42.wav; get AudioMNIST anew")
        try:
            parts.append(sound_of(content, f"{name} in {place}", rate, samples))
        except DeviceError as error:
            raise FedawsError(str(error)) from None
        whose += [(int(numbers[1]), int(numbers[2]))] * len(parts[-1])
    if not parts:
        raise FedawsError(f"{place} has no recordings 01/0_01_0.wav …; get AudioMNIST anew")
    speakers, repetitions = np.array(whose, np.int64).T
    return {"x": np.concatenate(parts), "speaker": speakers.copy(), "repetition": repetitions.copy()}
