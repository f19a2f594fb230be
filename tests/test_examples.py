"""The examples run, at small size."""

import importlib.util
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


def test_an_example_is_short() -> None:
    assert len((EXAMPLES / "spreadout_regularizer.py").read_text(encoding="utf-8").splitlines()) < 100
