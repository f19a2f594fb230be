"""The examples run, at small size."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

EXAMPLES = Path(__file__).parents[1] / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_spreadout_as_a_regularizer(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["example", "--classes", "40", "--steps", "30"])
    with torch.random.fork_rng():
        load("spreadout_regularizer").main()
    title, head, *rows = capsys.readouterr().out.splitlines()
    assert (title, head.split()) == ("40 classes, 30 steps", ["how", "precision@1", "largest", "class", "cosine"])
    precision = {row.split()[0]: float(row.split()[1]) for row in rows}
    cosine = {row.split()[0]: float(row.split()[3]) for row in rows}
    assert list(precision) == ["positives", "negatives", "spreadout"]
    assert min(precision.values()) > 50  # chance is 2.5
    assert cosine["spreadout"] < cosine["positives"]


def run(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    monkeypatch.setattr(sys, "argv", ["example", *arguments])
    with torch.random.fork_rng():
        load(name).main()
    return capsys.readouterr().out.splitlines()


def test_ten_lines_to_start_with(capsys: pytest.CaptureFixture[str]) -> None:
    load("start")
    collapsed, spread, taken = capsys.readouterr().out.splitlines()
    precisions = [float(re.search(r"([\d.]+)% right", line)[1]) for line in (collapsed, spread)]  # type: ignore[index]
    assert precisions[0] < 80 < precisions[1]
    assert taken.startswith("taken for [")
    code = (EXAMPLES / "start.py").read_text(encoding="utf-8").split('"""')[2]
    assert sum(bool(line.strip()) for line in code.splitlines()) <= 12  # with the imports


def test_own_dataset_and_encoder(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lines = run("own_dataset_and_encoder", monkeypatch, capsys, "--speakers", "5", "--rounds", "40")
    assert float(lines[0].split()[2].rstrip("%")) > 60  # chance is 20
    assert [line.split(":")[0] for line in lines[1:]] == ["speaker 0", "speaker 1", "speaker 2"]


def test_a_sweep_over_lambda_and_k(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    small = ("--weights", "0.1", "10", "--neighbors", "1", "3", "--rounds", "10", "--seeds", "1")
    head, *rows = run("sweep", monkeypatch, capsys, *small)
    assert head.split() == ["λ", "\\", "k", "1", "3"]
    assert [row.split()[0] for row in rows] == ["0.1", "10"]
    assert all(float(value) > 30 for row in rows for value in row.split()[1:])  # chance is 10


def test_a_method_of_ones_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    lines = run("own_method", monkeypatch, capsys, "--out", str(tmp_path), "--rounds", "40", "--seeds", "2")
    assert lines[:2] == ["stopped after round 20; going on", "the same bits: True"]
    precision = {line.split(":")[0]: float(line.split()[2]) for line in lines[2:5]}
    assert list(precision) == ["pull-and-push", "fedaws", "fixed"]
    assert min(precision.values()) > 30  # chance is 10
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "pull-and-push" in page
    assert "worst class" in page


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_is_short(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) < 100
