"""A small run on the digits 0 … 4, 5 … 9 took no part in it; and one on six voices, six others took no part in it."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

import fedaws
from fedaws.data.sources.digits import digits
from fedaws.data.sources.made_voices import voice
from fedaws.evaluate.intervals import Figure, Threshold

Array = NDArray[np.float32]


class Trained(NamedTuple):
    run: fedaws.Run
    folder: Path
    x_test: Array  # of the trained classes
    strangers: Array
    whose: NDArray[np.int64]


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    x, y, x_test, y_test = digits()
    seen, tested = y < 5, y_test < 5
    data = fedaws.from_arrays(x[seen], y[seen], x_test[tested], y_test[tested])
    folder = tmp_path_factory.mktemp("people") / "run"
    run = fedaws.train(data, config=fedaws.Config().override(["train.rounds=30"]), folder=folder)
    return Trained(run, folder, x_test[tested], x[~seen], y[~seen])


@pytest.fixture(scope="session")
def exported(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fedaws.export(trained.run, tmp_path_factory.mktemp("exported") / "phone")


@pytest.fixture(scope="session")
def exported_with_all(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a measured threshold, and with the rows of W."""
    folder = tmp_path_factory.mktemp("exported") / "all"
    measured = Threshold(0.75, Figure(0.01, 0.0, 0.03), Figure(0.2, 0.1, 0.3), people=5)
    return fedaws.export(trained.run, folder, threshold=measured, with_rows=True)


# --- voices ---------------------------------------------------------------------------------------------------------

TRAINED, STRANGERS = range(6), range(6, 12)
SETTINGS = [
    "data.name=sounds",
    "data.seconds=0.5",
    "model.name=conv1d",
    "model.sample_rate=8000",
    "model.channels=[16, 16]",
]
TRAINING = ["model.embedding_dim=16", "train.rounds=40", "server.optimizer=muon", "server.lr=0.02"]
TRAINING += ["clients.lr=1.0", "clients.class_lr=0.1", "clients.examples_per_step=4"]


def record(folder: Path, person: int, utterances: range, kind: str = "wav", rate: int = 8000) -> Path:
    """A folder of somebody's recordings."""
    folder.mkdir(parents=True)
    for i in utterances:
        soundfile.write(folder / f"{i}.{kind}", voice(person, i, rate, 0.5), rate)
    return folder


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """people/ who trained, strangers/ who did not, run/, and phone/, which was exported from it."""
    place = tmp_path_factory.mktemp("voices")
    for p in TRAINED:
        record(place / "people" / f"p{p}", p, range(4))
    for p in STRANGERS:
        record(place / "strangers" / f"p{p}", p, range(8), "flac")
    config = fedaws.Config().override([*SETTINGS, *TRAINING, f"data.root={place / 'people'}"])
    run = fedaws.train(config=config, folder=place / "run")
    fedaws.export(run, place / "phone")
    return place
