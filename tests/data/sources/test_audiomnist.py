"""AudioMNIST, on a small set of the same make."""

import io
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile

from fedaws import Config
from fedaws.data import load_data
from fedaws.data.sources.audiomnist import PUBLISHED, Published, audiomnist
from fedaws.data.sources.download import Archive
from fedaws.data.sources.made_voices import voice
from helpers import dense, refusal
from webserver import Server, sending

SPEAKERS, REPETITIONS = (1, 2, 60), (0, 7, 40, 49)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Three speakers who say one digit four times, and the file of what is known of them."""
    folder = tmp_path / "published" / "data"
    for s in SPEAKERS:
        (folder / f"{s:02}").mkdir(parents=True)
        for r in REPETITIONS:
            soundfile.write(folder / f"{s:02}" / f"7_{s:02}_{r}.wav", voice(s, r, 12_000, 0.3), 12_000)
    (folder / "audioMNIST_meta.txt").write_text("{}")
    return folder


def packed(data: Path) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        tar.add(data, "AudioMNIST-abc/data")
    return out.getvalue()


def git_tree(data: Path) -> str:
    """What git itself calls the folder."""

    def git(*args: str) -> str:
        return subprocess.run(["git", *args], cwd=data, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    git("add", ".")
    return git("write-tree")


def test_the_last_ten_repetitions_are_tested_on(data: Path, tmp_path: Path) -> None:
    (x, y, x_test, y_test), names = audiomnist([data], tmp_path / "cache", 8000, 0.5)
    assert names == ("01", "02", "60")
    assert (x.shape, x_test.shape) == ((6, 4000), (6, 4000))
    assert y.tolist() == y_test.tolist() == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("below", ["AudioMNIST/data", "AudioMNIST", "data", "."])
def test_it_is_found_where_people_put_it(data: Path, tmp_path: Path, below: str) -> None:
    root = tmp_path / "root"
    (root / below).parent.mkdir(parents=True, exist_ok=True)
    data.rename(root / below)
    assert len(audiomnist([tmp_path / "none", root], tmp_path / "cache", 8000, 0.5)[1]) == 3


def test_the_archive_is_checked_by_gits_own_id_of_its_data(data: Path, tmp_path: Path) -> None:
    content = packed(data)
    published = replace(PUBLISHED, tree=git_tree(data))
    root = tmp_path / "root"
    root.mkdir()
    (root / PUBLISHED.archive.name).write_bytes(content)
    (x, *_), _ = audiomnist([root], tmp_path / "cache", 8000, 0.5, published)
    (of_folder, *_), _ = audiomnist([data], tmp_path / "cache 2", 8000, 0.5)
    np.testing.assert_array_equal(np.sort(x, 0), np.sort(of_folder, 0))
    told = refusal(lambda: audiomnist([root], tmp_path / "cache 3", 8000, 0.5))
    assert "is not what was published" in told
    assert not list((tmp_path / "cache 3").glob("*"))  # nothing of it is kept


def test_it_is_downloaded_once_and_what_was_made_of_it_kept(data: Path, tmp_path: Path, server: Server) -> None:
    content = packed(data)
    published = Published(Archive(server.give("AudioMNIST.tar.gz", sending(content)), None), git_tree(data))
    first = audiomnist([], tmp_path / "cache", 8000, 0.5, published)
    again = audiomnist([], tmp_path / "cache", 8000, 0.5, published)
    assert server.asked == ["/AudioMNIST.tar.gz"]
    np.testing.assert_array_equal(first[0][0], again[0][0])


def test_recordings_that_changed_are_read_anew(data: Path, tmp_path: Path) -> None:
    before = audiomnist([data], tmp_path / "cache", 8000, 0.5)[0][0]
    soundfile.write(data / "01" / "7_01_0.wav", voice(9, 9, 12_000, 0.31), 12_000)
    after = audiomnist([data], tmp_path / "cache", 8000, 0.5)[0][0]
    assert not np.array_equal(before[0], after[0])
    assert np.array_equal(before[1:], after[1:])


@pytest.mark.parametrize("name", ["seven.wav", "7_x_0.wav"])
def test_other_files_among_them_are_told(data: Path, tmp_path: Path, name: str) -> None:
    (data / "01" / "7_01_0.wav").rename(data / "01" / name)
    assert f"{name} in" in refusal(lambda: audiomnist([data], tmp_path / "cache", 8000, 0.5))


@pytest.mark.parametrize("content", [b"", b"no archive", packed])
def test_a_damaged_archive_is_told(data: Path, tmp_path: Path, content: object) -> None:
    root = tmp_path / "root"
    root.mkdir()
    damaged = content if isinstance(content, bytes) else packed(data)[:-2000]
    (root / PUBLISHED.archive.name).write_bytes(damaged)
    assert "get it anew" in refusal(lambda: audiomnist([root], tmp_path / "cache", 8000, 0.5))


def test_it_is_data_by_name(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    settings = ["data.name=audiomnist", f"data.root={data}", "model.name=conv1d", "model.sample_rate=4000"]
    assert dense(load_data(Config().override(settings)).x).shape == (6, 4000)
