"""A folder of recordings per person."""

from pathlib import Path

import numpy as np
import pytest
import soundfile

from fedaws import Config
from fedaws.data import load_data
from fedaws.data.sources.made_voices import voice
from fedaws.data.sources.sounds import sounds
from helpers import dense, refusal


def record(path: Path, x: np.ndarray, rate: int = 8000) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, x, rate)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two people, out of order; Bo has one long recording and one for the test."""
    record(tmp_path / "train" / "bo" / "a.flac", voice(2, 0, seconds=2))
    record(tmp_path / "train" / "ada" / "b.wav", voice(1, 0))
    record(tmp_path / "train" / "ada" / "c.ogg", voice(1, 1))
    record(tmp_path / "test" / "bo" / "t.WAV", voice(2, 1, 16_000), 16_000)
    return tmp_path


def test_people_are_folders_and_long_recordings_several_examples(folder: Path) -> None:
    (x, y, x_test, y_test), names = sounds(folder, 8000, 1.0)
    assert names == ("ada", "bo")
    assert (x.shape, y.tolist()) == ((4, 8000), [0, 0, 1, 1])
    assert x_test is not None
    assert y_test is not None
    assert (x_test.shape, y_test.tolist()) == ((1, 8000), [1])
    np.testing.assert_allclose(x[2:].reshape(-1), voice(2, 0, seconds=2), atol=2**-15)


def test_the_configuration_names_folder_rate_and_length(folder: Path) -> None:
    settings = ["data.name=sounds", f"data.root={folder}", "model.name=conv1d", "model.sample_rate=4000"]
    data = load_data(Config().override([*settings, "data.seconds=0.5"]))
    assert dense(data.x).shape == (8, 2000)
    assert data.class_names == ("ada", "bo")
    assert "set data.root" in refusal(lambda: load_data(Config().override(["data.name=sounds"])))


def test_a_damaged_recording_is_named(folder: Path) -> None:
    bad = folder / "train" / "bo" / "a.flac"
    bad.write_bytes(bad.read_bytes()[:50])
    assert str(bad) in refusal(lambda: sounds(folder, 8000, 1.0))


def test_a_person_without_recordings_is_told(folder: Path) -> None:
    (folder / "train" / "cy").mkdir()
    (folder / "train" / "cy" / "notes.txt").touch()
    assert "has no sounds (.flac .ogg .wav)" in refusal(lambda: sounds(folder, 8000, 1.0))
