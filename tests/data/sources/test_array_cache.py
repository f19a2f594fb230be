"""Arrays kept in a file."""

import os
from pathlib import Path

import numpy as np
import pytest

from fedaws.data.sources.array_cache import Arrays, cached

GOOD: Arrays = {
    "a": np.arange(7, dtype=np.int32),
    "b": np.array([0.5, 1.5], dtype=np.float32),
    "c": np.zeros(0, dtype=np.int64),
}


class Builder:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> Arrays:
        self.calls += 1
        return GOOD


def same(found: Arrays) -> bool:
    return found.keys() == GOOD.keys() and all(
        found[name].dtype == array.dtype and np.array_equal(found[name], array) for name, array in GOOD.items()
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "x.safetensors"


def test_the_second_time_nothing_is_built_and_the_arrays_are_in_memory(path: Path) -> None:
    build = Builder()
    assert same(cached(path, "k", build))
    found = cached(path, "k", build)
    assert same(found)
    assert build.calls == 1
    assert not isinstance(found["a"], np.memmap)


def test_a_file_that_is_cut_short_after_it_was_read_leaves_the_arrays_as_they_are(path: Path) -> None:
    cached(path, "k", Builder())
    found = cached(path, "k", Builder())
    path.write_bytes(b"")  # were it mapped, the next look would end the process
    assert same(found)


def test_writing_into_a_mapped_array_leaves_the_file_as_it_is(path: Path) -> None:
    build = Builder()
    cached(path, "k", build)
    cached(path, "k", build)["a"][0] = 99
    assert same(cached(path, "k", build))
    assert build.calls == 1


def test_another_key_builds_anew(path: Path) -> None:
    build = Builder()
    cached(path, "k", build)
    assert same(cached(path, "other", build))
    assert build.calls == 2


def test_any_damage_builds_anew(path: Path) -> None:
    cached(path, "k", Builder())
    whole = path.read_bytes()
    damaged = [whole[:cut] for cut in range(0, len(whole), 7)]
    damaged += [whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :] for i in range(len(whole) - 36, len(whole))]
    damaged += [whole[:i] + bytes([whole[i] ^ 255]) + whole[i + 1 :] for i in range(0, len(whole) - 36, 5)]
    for content in damaged:
        path.write_bytes(content)
        assert same(cached(path, "k", Builder()))


def test_an_interrupted_build_leaves_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cached(path, "k", Builder())
    assert list(path.parent.iterdir()) == []


def test_where_nothing_can_be_written_the_arrays_are_there_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="cannot write .*; the data will be read anew each time"):
        assert same(cached(tmp_path / "file" / "x.safetensors", "k", Builder()))


def test_a_pipe_in_its_place_is_not_waited_for(path: Path) -> None:
    path.parent.mkdir()
    os.mkfifo(path)
    assert same(cached(path, "k", Builder()))


@pytest.mark.parametrize("dtype", ["float16", "uint8", "bool"])
def test_types_that_are_never_written_build_anew(path: Path, dtype: str) -> None:
    odd = {"a": np.ones(3, dtype=dtype)}
    cached(path, "k", lambda: odd)
    assert same(cached(path, "k", Builder()))
