"""Thresholds from the strangers of the run itself."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedaws
from fedaws.evaluate.comparisons import comparisons
from fedaws.evaluate.error_rates import rates_at, threshold_at_far
from fedaws.people.strangers import run_comparisons, run_threshold
from helpers import refusal
from people.conftest import Trained

SETTINGS = ["data.name=synthetic", "data.classes=16", "data.overlap=0.7", "data.strangers=5", "data.test_strangers=6"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("strangers") / "run"
    fedaws.train(config=fedaws.Config().override([*SETTINGS, "train.rounds=10"]), folder=place)
    return place


def test_a_threshold_is_found_by_some_strangers_and_its_rates_are_those_of_others(folder: Path) -> None:
    run = fedaws.load(folder)
    found, tested = (
        comparisons(run.embed(part.x).numpy(), part.people.numpy(), enroll=5)
        for part in (run.strangers["strangers"], run.strangers["test_strangers"])
    )
    measured = run_threshold(run, far=0.1, draws=20)
    assert measured.threshold == threshold_at_far(found.targets, found.nontargets, 0.1)
    assert (measured.far.value, measured.frr.value) == rates_at(tested.targets, tested.nontargets, measured.threshold)
    assert measured.people == 6


def test_a_gallery_takes_the_strangers_of_its_run(folder: Path, tmp_path: Path) -> None:
    run = fedaws.load(folder)
    gallery = fedaws.Gallery(tmp_path / "people.safetensors", run)
    assert gallery.threshold_for(far=0.1, draws=20) == run_threshold(run, far=0.1, draws=20)


def test_half_of_what_a_threshold_needs_is_refused(folder: Path, tmp_path: Path) -> None:
    gallery = fedaws.Gallery(tmp_path / "people.safetensors", fedaws.load(folder))
    assert "x and people come together" in refusal(lambda: gallery.threshold_for([[1.0]], far=0.1))


def test_a_run_evaluates_its_strangers_too(folder: Path) -> None:
    run = fedaws.load(folder)
    assert run.evaluate()["test_strangers_eer"] == pytest.approx(run.metrics[-1]["test_strangers_eer"])


def test_trials_without_a_list_are_of_the_runs_test_strangers(cli: Callable[..., Any], folder: Path) -> None:
    told = json.loads(cli("trials", folder, "--far", 0.1, "--draws", 20, "--json").out)
    run = fedaws.load(folder)
    assert told["people"] == "test_strangers"
    assert told["eer"]["value"] == pytest.approx(run.metrics[-1]["test_strangers_eer"])
    assert told["threshold"]["threshold"] == run_threshold(run, far=0.1, draws=20).threshold
    assert "of the run's test strangers" in cli("trials", folder, "--draws", 20).out


def test_trials_ask_about_several_at_once_and_the_threshold_says_so(cli: Callable[..., Any], folder: Path) -> None:
    told = json.loads(cli("trials", folder, "--far", 0.1, "--ask", 3, "--draws", 20, "--json").out)
    run = fedaws.load(folder)
    found = run_comparisons(run, ask=3)["test_strangers"]
    assert (told["ask"], told["targets"], told["threshold"]["ask"]) == (3, len(found.targets), 3)
    assert told["threshold"]["threshold"] == run_threshold(run, far=0.1, ask=3, draws=20).threshold
    assert "3 examples at once" in cli("trials", folder, "--ask", 3, "--draws", 20).out


def test_too_few_comparisons_are_told_of_the_group_that_has_them(refused: Callable[..., str], folder: Path) -> None:
    assert refused("trials", folder, "--far", 1e-5).startswith("error: test_strangers: far=1e-05 cannot be measured on")
    assert refused("export", folder, "--far", 1e-5, "--out", "p").startswith("error: strangers: far=1e-05 cannot be")


@pytest.mark.parametrize("wrong", [("--far", 7), ("--frr", 0), ("--far", 0.1, "--frr", 0.1), ("--p-target", 2)])
def test_refused_trials_leave_nothing_in_the_folder(
    refused: Callable[..., str], cli: Callable[..., Any], folder: Path, wrong: tuple[object, ...]
) -> None:
    kept = folder / "people.json"
    kept.unlink(missing_ok=True)
    refused("trials", folder, *wrong, "--draws", 5)
    assert not kept.exists()
    assert cli("trials", folder, "--draws", 5).code == 0
    assert kept.exists()


def test_an_exported_model_has_a_threshold_by_the_runs_strangers(cli: Callable[..., Any], folder: Path) -> None:
    pytest.importorskip("onnxscript")
    assert cli("export", folder, "--far", 0.1, "--out", "phone").code == 0
    told = json.loads(Path("phone/model.json").read_text())["threshold"]
    assert told["threshold"] == pytest.approx(run_threshold(fedaws.load(folder), far=0.1).threshold)


def test_a_run_without_strangers_says_so(refused: Callable[..., str], tiny_toml: Path, cli: Callable[..., Any]) -> None:
    assert cli("train", tiny_toml, "--out", "plain").code == 0
    told = refused("export", "plain", "--far", 0.1, "--out", "phone")
    assert "the run has no strangers of its own; train with data.strangers" in told


def test_an_exported_model_has_no_strangers(refused: Callable[..., str], exported: Path) -> None:
    assert "is an exported model, which has no strangers" in refused("trials", exported)


def test_data_of_ones_own_are_not_in_the_folder(refused: Callable[..., str], trained: Trained) -> None:
    assert "data of your own" in refused("trials", trained.folder)


def test_people_by_the_names_of_who_trained_are_warned_of(cli: Callable[..., Any], tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(6), 12)
    x = (np.eye(6, dtype=np.float32)[y] + 0.1 * rng.normal(size=(72, 6))).astype(np.float32)
    data = fedaws.from_arrays(x, y, class_names=list("abcdef"))
    fedaws.train(data, config=fedaws.Config().override(["train.rounds=2"]), folder=tmp_path / "run")
    np.savez(tmp_path / "others.npz", x=x, y=np.array(list("abuvwx"))[y])
    told = cli("trials", tmp_path / "run", tmp_path / "others.npz", "--draws", 5)
    assert "2 of 6 people have the names of people who trained (a, b); leave them out" in told.err
