"""A folder of recordings per person: voices of one's own."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedaws.data.sources.folders import Files, class_files
from fedaws.device.errors import DeviceError
from fedaws.device.sound import SUFFIXES, Samples, read_sound
from fedaws.errors import FedawsError

Labels = NDArray[np.int64]


def sounds(
    folder: Path, rate: int, seconds: float
) -> tuple[tuple[Samples, Labels, Samples | None, Labels | None], tuple[str, ...]]:
    """(x_train, y_train, x_test, y_test) with waveforms [N, rate · seconds], and the people's names.

    People are the folders in `train`, or in `folder` itself where there are neither `train` nor `test`. A recording
    (wav, flac, ogg; of any rate, its channels' mean) is cut into pieces of one length, a shorter one repeated.
    """
    files, tested, names = class_files(folder, SUFFIXES, "sound")
    samples = round(rate * seconds)
    x, y = _read_all(files, rate, samples)
    x_test, y_test = _read_all(tested, rate, samples) if tested else (None, None)
    return (x, y, x_test, y_test), names


def _read_all(files: Files, rate: int, samples: int) -> tuple[Samples, Labels]:
    try:
        parts = [read_sound(path, rate, samples) for path, _ in files]
        labels = np.repeat([label for _, label in files], [len(part) for part in parts])
        return np.concatenate(parts), labels.astype(np.int64)
    except DeviceError as error:
        raise FedawsError(str(error)) from None
    except MemoryError:
        raise FedawsError(f"{len(files):,} sounds do not fit into memory; lower model.sample_rate") from None
