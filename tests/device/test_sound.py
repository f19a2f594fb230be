"""Recordings come in as a model takes them, or are refused in one line."""

import io
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from fedaws.data.sources.made_voices import voice
from fedaws.device import DeviceError
from fedaws.device.sound import pieces, read_sound, resampled, sound_of
from fuzz.mutations import mutated


def refused(content: bytes, rate: int = 8000) -> str:
    with pytest.raises(DeviceError) as error:
        sound_of(content, "ada.wav", rate, rate)
    assert str(error.value).isprintable()
    assert "ada.wav" in str(error.value)
    return str(error.value)


def written(x: np.ndarray, rate: int = 8000, kind: str = "WAV", subtype: str | None = None) -> bytes:
    out = io.BytesIO()
    soundfile.write(out, x, rate, format=kind, subtype=subtype)
    return out.getvalue()


def tone(frequency: float, rate: int, seconds: float = 1.0) -> np.ndarray:
    return (0.5 * np.sin(2 * np.pi * frequency * np.arange(round(rate * seconds)) / rate)).astype(np.float32)


@pytest.mark.parametrize("kind", ["WAV", "FLAC"])
def test_what_was_recorded_is_what_is_read(kind: str, tmp_path: Path) -> None:
    x = voice(1, 0)
    (tmp_path / "ada").write_bytes(written(x, kind=kind))
    np.testing.assert_allclose(read_sound(tmp_path / "ada", 8000, 8000), x[None], atol=2**-15)


def test_ogg_is_nearly_what_was_recorded() -> None:
    x = voice(1, 0)
    (y,) = sound_of(written(x, kind="OGG"), "ada.ogg", 8000, 8000)
    assert np.corrcoef(x, y)[0, 1] > 0.95


def test_channels_are_averaged() -> None:
    x = tone(300, 8000)
    both = np.stack([x, np.zeros_like(x)], 1)
    np.testing.assert_allclose(sound_of(written(both, subtype="FLOAT"), "", 8000, 8000)[0], x / 2, atol=1e-7)


@pytest.mark.parametrize("at", [44_100, 48_000, 11_025, 4_000])
def test_a_tone_is_the_same_tone_at_another_rate(at: int) -> None:
    y = resampled(tone(300, at), at, 8000)
    inside = slice(400, -400)  # at its ends a filter sees silence
    np.testing.assert_allclose(y[inside], tone(300, 8000)[: len(y)][inside], atol=2e-3)


def test_what_the_lower_rate_cannot_carry_is_filtered_out_and_does_not_come_back_as_another_tone() -> None:
    assert np.abs(resampled(tone(7000, 48_000), 48_000, 8000)[400:-400]).max() < 0.01


def test_a_long_recording_is_cut_and_a_rest_of_half_a_piece_kept() -> None:
    x = np.arange(1, 14, dtype=np.float32)
    assert pieces(x, 5).tolist() == [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10], [9, 10, 11, 12, 13]]
    assert pieces(x[:12], 5).tolist() == [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]]


def test_a_short_recording_is_repeated() -> None:
    assert pieces(np.array([1, 2], np.float32), 5).tolist() == [[1, 2, 1, 2, 1]]


def test_silent_pieces_are_left_out() -> None:
    x = np.concatenate([np.zeros(5), np.ones(5)]).astype(np.float32)
    assert pieces(x, 5).tolist() == [[1, 1, 1, 1, 1]]


def test_silence_is_refused() -> None:
    assert "is silent" in refused(written(np.zeros(8000)))


def test_lengths_are_limited() -> None:
    assert "has 0.05 seconds; wanted 0.1 to 600" in refused(written(tone(300, 8000, 0.05)))
    assert "cut it into shorter ones" in refused(written(np.zeros(8000 * 601), kind="FLAC"))


def test_rates_and_channels_are_limited() -> None:
    assert "has 1 channels of 500 samples a second" in refused(written(tone(10, 500), 500))
    assert "has 9 channels" in refused(written(np.ones((8000, 9)) / 2))


def test_nan_is_refused() -> None:
    assert "NaN" in refused(written(np.full(8000, np.nan), subtype="FLOAT"))


@pytest.mark.parametrize("content", [b"", b"RIFF", b"fLaC", b"OggS", b"ID3" + bytes(100), b"x" * 1000])
def test_what_is_no_sound_is_refused(content: bytes) -> None:
    refused(content)


@pytest.mark.parametrize("kind", ["AIFF", "MP3", "CAF"])
def test_other_kinds_of_sound_are_refused(kind: str) -> None:
    assert "is no sound in wav, flac or ogg" in refused(written(tone(300, 8000), kind=kind))


def test_a_flac_that_was_cut_is_refused() -> None:
    assert refused(written(voice(1, 0), kind="FLAC")[:4000])


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "OGG"])
def test_damaged_recordings_are_read_or_refused_in_one_line(kind: str) -> None:
    content = written(voice(1, 0, seconds=0.3), kind=kind)
    for case in range(150):
        try:
            x = sound_of(mutated(random.Random(f"{kind} {case}"), content), "ada", 8000, 4000)
        except DeviceError as error:
            told = str(error)
        else:
            told = "read"
            assert np.isfinite(x).all()
            assert x.shape[1] == 4000
        assert told.isprintable()


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="cannot read"):
        read_sound(tmp_path / "none.wav", 8000, 8000)


def test_reading_needs_neither_torch_nor_scipy(tmp_path: Path) -> None:
    (tmp_path / "ada.wav").write_bytes(written(voice(1, 0)))
    code = f"""
import sys
from fedaws.device.sound import read_sound
print(read_sound({str(tmp_path / "ada.wav")!r}, 8000, 4000).shape, sorted({{"torch", "scipy"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "(2, 4000) []\n"
