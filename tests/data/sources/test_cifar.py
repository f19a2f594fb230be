"""CIFAR in its four published forms, on tiny sets of the same make."""

import gzip
import hashlib
import io
import os
import pickle
import struct
import tarfile
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests
from numpy.typing import NDArray

from fedaws import Config
from fedaws.data import FederatedData, load_data
from fedaws.data.sources.cifar import SETS, Version, _Unpickler, cifar
from fedaws.data.sources.download import Archive
from helpers import dense, refusal
from webserver import Server, sending

Set = tuple[NDArray[np.uint8], list[int]]  # images [N, 3, 32, 32] and classes
Files = dict[str, bytes]

VERSIONS = [(name, version) for name, which in SETS.items() for version in which.versions]
BINARY, PYTHON = SETS["cifar10"].versions
every_version = pytest.mark.parametrize(("name", "version"), VERSIONS, ids=[v.folder for _, v in VERSIONS])


def example_set(name: str, file: str) -> Set:
    """As many images as classes, different in every file."""
    classes = SETS[name].classes
    rng = np.random.default_rng(list(file.removesuffix(".bin").encode()))
    return rng.integers(0, 256, (classes, 3, 32, 32), dtype=np.uint8), rng.permutation(classes).tolist()


def as_binary(name: str, images: NDArray[np.uint8], labels: list[int]) -> bytes:
    """A record is <label><pixels>, in CIFAR-100 <coarse label><fine label><pixels>."""
    coarse = b"\x07" if name == "cifar100" else b""
    return b"".join(coarse + bytes([label]) + image.tobytes() for image, label in zip(images, labels, strict=True))


def as_pickle(name: str, images: NDArray[np.uint8], labels: list[int]) -> bytes:
    """The instructions that Python 2 wrote for a batch: strings are bytes, and the array's content is one of them."""
    key = b"labels" if name == "cifar10" else b"fine_labels"
    content = images.tobytes()
    return (
        b"\x80\x02}q\x01(U\x0bbatch_labelq\x02U\x15training batch 1 of 5q\x03"
        + b"U" + bytes([len(key)]) + key + b"q\x04]q\x05("
        + b"".join(b"K" + bytes([label]) for label in labels)
        + b"eU\x04dataq\x06cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85U\x01b\x87Rq\x09"
        + b"(K\x01K" + bytes([len(images)]) + b"M" + struct.pack("<H", 3072) + b"\x86"
        + b"cnumpy\ndtype\nq\x0aU\x02u1K\x00K\x01\x87Rq\x0b(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        + b"\x89T" + struct.pack("<I", len(content)) + content + b"tbu."
    )  # fmt: skip


def names_as_pickle(name: str, names: list[str]) -> bytes:
    key = b"label_names" if name == "cifar10" else b"fine_label_names"
    texts = b"".join(b"U" + bytes([len(each)]) + each.encode() for each in names)
    return b"\x80\x02}U" + bytes([len(key)]) + key + b"](" + texts + b"es."


def files_of(name: str, version: Version) -> Files:
    binary = version.test.endswith(".bin")
    files = {}
    for file in (*version.train, version.test):
        files[file] = (as_binary if binary else as_pickle)(name, *example_set(name, file))
    names = [f"class{i}" for i in range(SETS[name].classes)]
    files[version.names] = "\n".join([*names, "", ""]).encode() if binary else names_as_pickle(name, names)
    return files


def unpacked(root: Path, version: Version, files: Files) -> Path:
    folder = root / version.folder
    folder.mkdir(parents=True)
    for file, content in files.items():
        (folder / file).write_bytes(content)
    return folder


def packed(root: Path, version: Version, files: Files, prefix: str = "") -> Path:
    root.mkdir(parents=True, exist_ok=True)
    with tarfile.open(root / version.archive.name, "w:gz") as tar:
        for file, content in files.items():
            member = tarfile.TarInfo(f"{prefix}{version.folder}/{file}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return root / version.archive.name


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No data but the test's own, no network but this machine."""
    monkeypatch.delenv("FEDAWS_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    get = requests.get

    def here(url: str, **options: Any) -> Any:
        assert url.startswith("http://127.0.0.1"), url
        return get(url, **options)

    monkeypatch.setattr(requests, "get", here)


@pytest.fixture
def believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests' own files pass for the published ones."""
    monkeypatch.setattr("fedaws.data.sources.cifar._is_published", lambda file, md5: True)


def load(name: str, *settings: str) -> FederatedData:
    return load_data(Config().override([f"data.name={name}", *settings]))


def told(root: Path, name: str = "cifar10") -> str:
    return refusal(lambda: cifar(name, [root], root))


# --- what it reads --------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("believed")
@every_version
@pytest.mark.parametrize("lay", [unpacked, packed], ids=["folder", "archive"])
def test_every_published_form_gives_its_images(
    tmp_path: Path, name: str, version: Version, lay: Callable[..., Path]
) -> None:
    lay(tmp_path, version, files_of(name, version))
    (x, y, x_test, y_test), names = cifar(name, [tmp_path], tmp_path)
    images, labels = zip(*(example_set(name, file) for file in version.train), strict=True)
    np.testing.assert_array_equal(x, np.concatenate(images))
    assert y.tolist() == [label for part in labels for label in part]
    np.testing.assert_array_equal(x_test, example_set(name, version.test)[0])
    assert y_test.tolist() == example_set(name, version.test)[1]
    assert names == tuple(f"class{i}" for i in range(SETS[name].classes))


@pytest.mark.usefixtures("believed")
@every_version
def test_arrays_are_contiguous_bytes_of_their_own(tmp_path: Path, name: str, version: Version) -> None:
    unpacked(tmp_path, version, files_of(name, version))
    for x in cifar(name, [tmp_path], tmp_path)[0][::2]:
        assert x.dtype == np.uint8
        assert x.flags.c_contiguous
        assert x.flags.writeable  # not a view of the file


@pytest.mark.usefixtures("believed")
def test_both_versions_are_the_same_data(tmp_path: Path) -> None:
    for version in (BINARY, PYTHON):
        unpacked(tmp_path / version.folder, version, files_of("cifar10", version))
    one, other = (load("cifar10", f"data.root={tmp_path / v.folder}") for v in (BINARY, PYTHON))
    assert one.x.equal(dense(other.x))
    assert one.y_test.equal(dense(other.y_test))


@pytest.mark.usefixtures("believed")
@every_version
def test_without_the_file_of_names_cifar10_has_the_known_ones(tmp_path: Path, name: str, version: Version) -> None:
    files = files_of(name, version)
    del files[version.names]
    unpacked(tmp_path, version, files)
    names = cifar(name, [tmp_path], tmp_path)[1]
    assert (names or [None])[0] == {"cifar10": "airplane", "cifar100": None}[name]


def test_the_images_of_a_class_lie_with_its_client(tmp_path: Path) -> None:
    unpacked(tmp_path, BINARY, files_of("cifar10", BINARY))
    data = load("cifar10", f"data.root={tmp_path}")
    assert data.num_examples.tolist() == [5] * 10
    assert data.x.shape == (50, 3, 32, 32)
    assert data.class_names == tuple(f"class{i}" for i in range(10))


# --- where it looks -------------------------------------------------------------------------------------------------


@pytest.fixture
def three_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """data.root, $FEDAWS_DATA and the cache, each with a set whose first class is named after it."""
    places = [tmp_path / "root", tmp_path / "env", tmp_path / "xdg" / "fedaws"]
    monkeypatch.setenv("FEDAWS_DATA", str(places[1]))
    for place in places:
        names = "\n".join([place.name, *"bcdefghij"]).encode()
        unpacked(place, BINARY, files_of("cifar10", BINARY) | {BINARY.names: names})
    return places


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_the_root_comes_first_then_fedaws_data_then_the_cache(three_places: list[Path], missing: int) -> None:
    for place in three_places[:missing]:
        (place / BINARY.folder).rename(place / "renamed")
    names = load("cifar10", f"data.root={three_places[0]}").class_names
    assert names is not None
    assert names[0] == three_places[missing].name


def test_a_root_that_is_not_there_is_passed_over(three_places: list[Path]) -> None:
    names = load("cifar10", "data.root=/nowhere").class_names
    assert names is not None
    assert names[0] == "env"


def test_the_root_may_be_the_unpacked_folder_itself(tmp_path: Path) -> None:
    folder = unpacked(tmp_path, BINARY, files_of("cifar10", BINARY))
    assert len(load("cifar10", f"data.root={folder}").x) == 50


def test_a_root_that_may_not_be_looked_into_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbid(path: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_dir", forbid)  # chmod does not stop root
    assert f"cannot look into {tmp_path}: Permission denied" in told(tmp_path)


# --- the download ---------------------------------------------------------------------------------------------------


@pytest.fixture
def published(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> Archive:
    """CIFAR-10 on a server of this machine."""
    content = packed(tmp_path / "web", BINARY, files_of("cifar10", BINARY)).read_bytes()
    url = server.give(BINARY.archive.name, sending(content))
    archive = Archive(url, hashlib.md5(content).hexdigest())
    which = replace(SETS["cifar10"], versions=(replace(BINARY, archive=archive), PYTHON))
    monkeypatch.setitem(SETS, "cifar10", which)
    return archive


def test_what_is_nowhere_is_downloaded_once(published: Archive, server: Server, tmp_path: Path) -> None:
    first, second = load("cifar10"), load("cifar10")
    assert len(first.x) == 50
    assert first.x.equal(dense(second.x))
    assert server.asked == ["/" + published.name]
    assert [path.name for path in (tmp_path / "xdg" / "fedaws").iterdir()] == [published.name]


def test_a_download_with_a_wrong_checksum_leaves_no_cache(published: Archive, server: Server, tmp_path: Path) -> None:
    server.give(published.name, sending(b"something else"))
    assert f"has not the checksum {published.md5}" in refusal(lambda: load("cifar10"))
    assert not list((tmp_path / "xdg" / "fedaws").iterdir())


def test_the_command_line_tells_of_a_failed_download_in_one_line(
    published: Archive, server: Server, refused: Callable[..., str]
) -> None:
    server.give(published.name, sending(b"half", promised=8))
    line = refused("train", "digits", "-s", "data.name=cifar10")
    assert f"cannot download {published.url}" in line


def test_the_checksums_are_the_published_ones() -> None:
    # https://www.cs.toronto.edu/~kriz/cifar.html, the column md5sum
    assert {version.archive.name: version.archive.md5 for _, version in VERSIONS} == {
        "cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a",
        "cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530",
        "cifar-100-python.tar.gz": "eb9058c3a382ffc7106e4002c42a8d85",
        "cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8",
    }


# --- what it refuses ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("believed")
@every_version
def test_a_wrong_label_is_refused(tmp_path: Path, name: str, version: Version) -> None:
    files, file = files_of(name, version), version.train[-1]
    images, labels = example_set(name, file)
    labels[2] = SETS[name].classes
    files[file] = (as_binary if file.endswith(".bin") else as_pickle)(name, images, labels)
    folder = unpacked(tmp_path, version, files)
    message = told(tmp_path, name)
    last = SETS[name].classes - 1
    assert f"{file} in {folder} has label {last + 1} at image 2, wanted 0 to {last}; delete {folder}" in message


@pytest.mark.usefixtures("believed")
@every_version
@pytest.mark.parametrize("lay", [unpacked, packed], ids=["folder", "archive"])
def test_a_missing_file_is_named(tmp_path: Path, name: str, version: Version, lay: Callable[..., Path]) -> None:
    files = files_of(name, version)
    del files[version.test]
    place = lay(tmp_path, version, files)
    assert f"{place} has no {version.test}; delete it and get it anew" in told(tmp_path, name)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("length", [0, 100, 5000])
def test_a_file_cut_short_is_refused(tmp_path: Path, name: str, length: int) -> None:
    version = SETS[name].versions[0]
    files = files_of(name, version)
    files[version.test] = files[version.test][:length]
    folder = unpacked(tmp_path, version, files)
    assert f"{version.test} in {folder} " in told(tmp_path, name)


PIXELS = np.zeros((10, 3, 32, 32), np.uint8)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("content", [b"", b"not gzip", gzip.compress(b"no tar")], ids=["empty", "no gzip", "no tar"])
def test_an_archive_that_is_not_the_published_one_is_not_unpacked(tmp_path: Path, name: str, content: bytes) -> None:
    for version in SETS[name].versions:
        archive = tmp_path / f"root-{version.folder}" / version.archive.name
        archive.parent.mkdir()
        archive.write_bytes(content)
        assert f"{archive} is not the published file" in told(archive.parent, name)


def test_a_header_that_fills_the_memory_is_not_read(tmp_path: Path) -> None:
    member = tarfile.TarInfo("x")
    member.type, member.size = tarfile.XHDTYPE, 1 << 31
    archive = tmp_path / BINARY.archive.name
    with gzip.open(archive, "wb", compresslevel=1) as file:
        file.write(member.tobuf())
        for _ in range(100):
            file.write(bytes(1 << 20))
    tracemalloc.start()
    assert "is not the published file" in told(tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 21


class Call:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


@pytest.mark.parametrize("file", [PYTHON.train[0], PYTHON.test, PYTHON.names])
def test_a_pickle_that_is_not_the_published_one_is_not_read(tmp_path: Path, file: str) -> None:
    sentinel = tmp_path / "ran"
    evil = pickle.dumps({"data": PIXELS, "labels": Call(f"touch {sentinel}")}, 2)
    files = files_of("cifar10", PYTHON) | {file: evil}
    known = {name: hashlib.md5(content).hexdigest() for name, content in files.items() if name != file}
    version = replace(PYTHON, md5={**PYTHON.md5, **known})
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SETS, "cifar10", replace(SETS["cifar10"], versions=(BINARY, version)))
        place = unpacked(tmp_path, PYTHON, files)
        assert f"{file} in {place} is not the published file" in told(tmp_path)
    assert not sentinel.exists()
    pickle.loads(evil)
    assert sentinel.exists()  # so it would have run


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("function", [os.system, eval, np.save])
def test_even_a_believed_pickle_calls_nothing_but_an_arrays_makers(protocol: int, function: Any) -> None:
    class Caller:
        def __reduce__(self) -> Any:
            return function, ("1",)

    content = pickle.dumps(Caller(), protocol)
    with pytest.raises(pickle.UnpicklingError, match="asks for"):
        _Unpickler(io.BytesIO(content), encoding="bytes").load()


def test_a_folder_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    files = files_of("cifar10", BINARY)
    del files[BINARY.test]
    (unpacked(tmp_path, BINARY, files) / BINARY.test).mkdir()
    assert "test_batch.bin is not a plain file" in told(tmp_path)


# --- the real one ---------------------------------------------------------------------------------------------------

REAL = Path(os.environ.get("FEDAWS_DATA") or "/nowhere")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "first"), [("cifar10", "airplane"), ("cifar100", "apple")])
def test_the_real_set_has_fifty_thousand_images_for_training_and_ten_for_the_test(name: str, first: str) -> None:
    if not any((REAL / v.folder).is_dir() or (REAL / v.archive.name).is_file() for v in SETS[name].versions):
        pytest.skip(f"no {name} in $FEDAWS_DATA")
    data = load(name, f"data.root={REAL}")
    classes = SETS[name].classes
    assert data.x.shape == (50_000, 3, 32, 32)
    assert data.num_examples.tolist() == [50_000 // classes] * classes
    assert data.y_test.bincount().tolist() == [10_000 // classes] * classes
    assert data.class_names is not None
    assert data.class_names[0] == first
    # The means that everyone normalises by, 0.491, 0.482, 0.447 and 0.507, 0.487, 0.441.
    known = {"cifar10": [0.491, 0.482, 0.447], "cifar100": [0.507, 0.487, 0.441]}[name]
    assert (data.x.double().mean((0, 2, 3)) / 255).tolist() == pytest.approx(known, abs=1e-3)
