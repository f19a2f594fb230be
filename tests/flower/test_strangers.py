"""People without a node, over Flower: they are the server's, and measured there."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedaws
from fedaws import Config
from fedaws.data import load_data
from fedaws.flower.federation import read_federation
from fedaws.flower.setup import create
from flower_trial import make_trial
from helpers import refusal
from inprocess_grid import Node

SETTINGS = ["data.classes=8", "data.strangers=2", "data.test_strangers=2", "data.enroll=3", "train.rounds=4"]


@pytest.fixture
def apart(tiny: Config) -> Config:
    return tiny.override(SETTINGS)


def test_the_server_has_the_strangers_and_no_node_has(apart: Config, tmp_path: Path) -> None:
    place = create(tmp_path / "federation", apart, 4)
    data = load_data(apart)
    read = read_federation(place.federation)
    for part, strangers in data.apart.items():
        stored = np.load(read.apart[part])
        assert np.array_equal(stored["x"], strangers.x.numpy())
        assert np.array_equal(stored["y"], strangers.people.numpy())
    theirs = {row.tobytes() for strangers in data.apart.values() for row in strangers.x.numpy()}
    for node in range(4):
        examples = np.load(place.node(f"node-{node}") / "data.npz")["x"]
        assert not theirs & {row.tobytes() for row in examples}


@pytest.mark.parametrize("claims", [False, True])
def test_over_flower_strangers_are_measured_as_in_a_simulation(apart: Config, tmp_path: Path, claims: bool) -> None:
    settings: dict[str, Any] = {"secret_rows": False} | ({"trust_claims": True, "federation": ""} if claims else {})
    made = make_trial(tmp_path / "trial", apart, 4, **settings)
    if claims:
        made.nodes = {200 + i: Node(config={"partition-id": i}) for i in range(4)}
    made.serve()
    there, here = fedaws.load(made.place.run).metrics[-1], fedaws.train(config=apart).metrics[-1]
    for key in ("strangers_eer", "test_strangers_eer"):
        assert there[key] == pytest.approx(here[key])


def test_strangers_that_nobody_has_given_the_server_are_refused(apart: Config, tmp_path: Path) -> None:
    made = make_trial(tmp_path / "trial", apart, 4)
    text = made.place.federation.read_text()
    made.place.federation.write_text(text.replace('strangers = "strangers.npz"\n', ""))
    assert "has no strangers = FILE.npz with their examples" in refusal(made.serve)


def test_stopping_on_strangers_is_refused_over_flower(apart: Config, tmp_path: Path) -> None:
    cfg = apart.override(["train.stop_on=strangers"])
    assert "train.stop_on is not carried over Flower" in refusal(lambda: create(tmp_path / "federation", cfg, 4))


def test_a_stranger_of_too_few_examples_is_refused_before_the_first_round(
    trial: Callable[..., Any], apart: Config
) -> None:
    made = trial(4, config=apart.override(["data.enroll=10"]))
    assert "and 10 enrol a stranger; lower data.enroll" in refusal(made.serve)
