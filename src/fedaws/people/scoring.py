"""Scores of trial lists whose names are files."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedaws.device import Device
from fedaws.device.gallery import directions
from fedaws.errors import FedawsError
from fedaws.evaluate.trials import Scored, Trial
from fedaws.people.gallery import embeddings_of, told
from fedaws.people.inputs import read_examples
from fedaws.training.run import Run


def score_files(model: Run | Device, trials: Sequence[Trial], folder: Path) -> list[Scored]:
    """The cosine of every trial; a name is a file below the folder, or a folder there with files of one person."""
    names = dict.fromkeys(name for trial in trials for name in trial[:2])
    vectors = {name: _direction(model, folder, name) for name in names}
    return [
        Scored(trial.enrolled, trial.tested, float(vectors[trial.enrolled] @ vectors[trial.tested]), trial.target)
        for trial in trials
    ]


def _direction(model: Run | Device, folder: Path, name: str) -> NDArray[np.float64]:
    place = folder / name
    if not place.resolve().is_relative_to(folder.resolve()):
        raise FedawsError(f"{name!r} leads out of {folder}; wanted files below it")
    z = embeddings_of(model, read_examples([place], model))
    with told():
        mean = directions(z, z.shape[1]).mean(0)
        unit: NDArray[np.float64] = directions(mean, z.shape[1])[0]
    return unit
