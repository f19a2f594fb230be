"""Runs for TensorBoard, read back by TensorBoard's own reader."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fedaws import Config, train
from fedaws.report import tensorboard


def events(place: Path) -> EventAccumulator:
    found = EventAccumulator(str(place))
    found.Reload()
    return found


@pytest.fixture
def runs(tiny: Config, tmp_path: Path) -> Path:
    for method in ("fedaws", "fixed"):
        train(config=tiny.override([f"method={method}"]), folder=tmp_path / "runs" / method)
    return tmp_path / "runs"


def test_every_measure_of_every_row_is_there(runs: Path, tmp_path: Path) -> None:
    assert tensorboard.export([runs / "fedaws"], tmp_path / "tb") == []
    found = events(tmp_path / "tb" / "runs" / "fedaws")
    rows = [json.loads(line) for line in (runs / "fedaws" / "metrics.jsonl").read_text().splitlines()]
    assert sorted(found.Tags()["scalars"]) == sorted(name.replace("@", "_at_") for name in rows[0] if name != "round")
    points = [(point.step, point.value) for point in found.Scalars("precision_at_1")]
    assert points == [(row["round"], pytest.approx(row["precision@1"])) for row in rows]
    assert found.Scalars("loss")[-1].wall_time == pytest.approx(rows[-1]["seconds"])


def test_w_is_there_for_the_projector_with_a_label_for_each_class(runs: Path, tmp_path: Path) -> None:
    tensorboard.export([runs / "fedaws"], tmp_path / "tb")
    place = tmp_path / "tb" / "runs" / "fedaws" / "00012" / "W"
    rows = torch.tensor([[float(v) for v in line.split()] for line in (place / "tensors.tsv").read_text().splitlines()])
    assert rows.shape == (4, 5)
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(4))
    assert (place / "metadata.tsv").read_text().split() == ["0", "1", "2", "3"]


def test_of_very_many_classes_some_are_shown_and_the_reader_is_told(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensorboard, "MOST_CLASSES", 3)
    assert tensorboard.export([runs / "fixed"], tmp_path / "tb") == ["runs/fixed: 2 of 4 classes are in the projector"]
    shown = tmp_path / "tb" / "runs" / "fixed" / "00012" / "W" / "metadata.tsv"
    assert shown.read_text().split() == ["0", "2"]


def test_a_second_export_replaces_the_first(runs: Path, tmp_path: Path) -> None:
    for _ in range(2):
        tensorboard.export([runs], tmp_path / "tb")
    for method in ("fedaws", "fixed"):
        place = tmp_path / "tb" / "runs" / method
        assert len(list(place.glob("events.out.tfevents.*"))) == 1
        assert [point.step for point in events(place).Scalars("loss")] == [4, 8, 12]


def test_an_unfinished_run_is_shown_as_far_as_it_has_come(runs: Path, tmp_path: Path) -> None:
    (runs / "fixed" / "model" / "model.safetensors").unlink()
    (notice,) = tensorboard.export([runs / "fixed"], tmp_path / "tb")
    assert "is unfinished: 12 of 12 rounds" in notice
    assert events(tmp_path / "tb" / "runs" / "fixed").Tags()["scalars"]


def test_the_command_says_where_they_are(runs: Path, cli: Callable[..., Any], refused: Callable[..., str]) -> None:
    assert cli("tensorboard", runs / "fedaws").out == f"{runs / 'fedaws' / 'tensorboard'}\n"
    assert "name it: -o DIR" in refused("tensorboard", runs / "fedaws", runs / "fixed")


def test_without_the_extra_its_install_command_is_told(
    runs: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    assert "pip install 'fedaws[tensorboard]'" in refused("tensorboard", runs / "fedaws")
