"""Recordings as a model takes them: mono, of one rate, in pieces of one length. NumPy and soundfile, no torch."""

import math
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedaws.device import store
from fedaws.device.errors import DeviceError

Samples = NDArray[np.float32]

SUFFIXES = {".wav", ".flac", ".ogg"}
_KINDS = (b"RIFF", b"fLaC", b"OggS")  # how such files begin; libsndfile reads more, some of it by others' decoders
_LARGEST = 1 << 28  # bytes of a file
_LONGEST = 600.0  # seconds
_SHORTEST = 0.1  # seconds
_RATES = (1_000, 384_000)  # samples a second
_MOST_CHANNELS = 8
_SILENT = 1e-4  # of the loudest that there can be: three steps of 16 bits


def read_sound(path: str | Path, rate: int, samples: int) -> Samples:
    """The pieces [n, samples] of a recording (wav, flac, ogg) at so many samples a second."""
    place = Path(path)
    return sound_of(store.read(place, _LARGEST)[0], str(place), rate, samples)


def sound_of(content: bytes, name: str, rate: int, samples: int) -> Samples:
    """The pieces [n, samples] of a recording's bytes; `name` names it in errors."""
    recorded, at = _decoded(content, name)
    return pieces(resampled(recorded, at, rate), samples, name)


def resampled(x: Samples, at: int, rate: int) -> Samples:
    """A recording [n] of `at` samples a second with `rate` a second, [⌈n · rate / at⌉]."""
    if at == rate:
        return x
    try:
        from scipy.signal import resample_poly  # noqa: PLC0415 - where recordings have the model's rate, it need not be
    except ImportError as error:
        raise DeviceError(
            f"a recording of {at:,} samples a second needs scipy ({error}) to become one of {rate:,}; "
            f"pip install 'fedaws[audio]', or record at {rate:,}"
        ) from None
    common = math.gcd(at, rate)
    return np.asarray(resample_poly(x, rate // common, at // common), np.float32)


def pieces(x: Samples, samples: int, name: str = "x") -> Samples:
    """A recording [n] cut into pieces of one length, [m, samples]; a shorter one is repeated until it is as long.

    A rest of half a piece or more is kept, in a piece that begins earlier; silent pieces are left out.

    >>> pieces(np.ones(5, np.float32), 2).shape, pieces(np.array([1, 2, 3], np.float32), 5).tolist()
    ((3, 2), [[1.0, 2.0, 3.0, 1.0, 2.0]])
    """
    if len(x) < samples:
        cut = np.resize(x, (1, samples))
    else:
        whole, rest = divmod(len(x), samples)
        cut = x[: whole * samples].reshape(whole, samples)
        if 2 * rest >= samples:
            cut = np.concatenate([cut, x[None, -samples:]])
    heard = cut[np.abs(cut).max(1) > _SILENT]
    if not len(heard):
        raise DeviceError(f"{name} is silent; record it anew or remove it")
    return np.ascontiguousarray(heard, np.float32)


def _decoded(content: bytes, name: str) -> tuple[Samples, int]:
    """The mean of the channels [n], and how many samples a second has."""
    if not content.startswith(_KINDS):
        raise DeviceError(f"{name} is no sound in wav, flac or ogg; convert or remove it")
    try:
        import soundfile  # noqa: PLC0415 - an extra
    except (ImportError, OSError) as error:  # OSError: its library of C is not there
        raise DeviceError(f"reading sound needs soundfile ({error}); pip install 'fedaws[audio]'") from None
    try:
        with soundfile.SoundFile(BytesIO(content)) as file:
            _check(file, name)
            frames, at = file.frames, file.samplerate
            x = file.read(frames, "float32", always_2d=True)
    except DeviceError:
        raise
    except MemoryError:
        raise DeviceError(f"{name} does not fit into memory; cut it into shorter ones") from None
    except Exception as error:  # libsndfile's own, and what damaged bytes lead its Python side to
        why = " ".join(str(error).split())[-120:] or type(error).__name__
        raise DeviceError(f"cannot read the sound {name}: {why}; mend or remove it") from None
    if len(x) < frames:
        raise DeviceError(f"{name} is cut short: {len(x):,} of {frames:,} samples; get it anew or remove it")
    mono: Samples = x.mean(1)
    if not np.isfinite(mono).all():
        raise DeviceError(f"{name} has NaN or infinite samples; mend or remove it")
    return mono, at


def _check(file: Any, name: str) -> None:
    """Refuse what would be vast in memory, or too short to tell anybody by, before anything is decoded."""
    if not _RATES[0] <= file.samplerate <= _RATES[1] or not 1 <= file.channels <= _MOST_CHANNELS:
        raise DeviceError(
            f"{name} has {file.channels} channels of {file.samplerate:,} samples a second; wanted at most "
            f"{_MOST_CHANNELS} of {_RATES[0]:,} to {_RATES[1]:,}"
        )
    seconds = file.frames / file.samplerate
    if not _SHORTEST <= seconds <= _LONGEST:
        fix = "cut it into shorter ones" if seconds > _LONGEST else "record more or remove it"
        raise DeviceError(f"{name} has {seconds:.4g} seconds; wanted {_SHORTEST:g} to {_LONGEST:g}: {fix}")
