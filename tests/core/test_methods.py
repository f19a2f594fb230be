"""Which methods there are, and what is said of others."""

from collections.abc import Callable
from pathlib import Path

import pytest

import fedaws
from fedaws import Config
from fedaws.core.methods import method_names, method_of, role_of
from fedaws.experiments.compare import compare
from helpers import refusal


def test_those_of_the_papers_tables_come_first() -> None:
    assert method_names()[:4] == ("fedaws", "positive-only", "fixed", "softmax")
    assert {"contrastive", "fedavg", "triplet"} <= set(method_names()[4:])


@pytest.mark.parametrize("name", method_names())
def test_a_method_is_called_as_its_file(name: str) -> None:
    assert method_of(Config(method=name)).name == name
    assert role_of(name) == method_of(Config(method=name)).role != ""


def test_of_a_method_that_is_not_ours_nothing_is_said() -> None:
    assert role_of("mine") == ""


def test_an_unknown_method_is_refused_with_the_nearest_one(tiny: Config, tmp_path: Path) -> None:
    told = refusal(lambda: fedaws.train(config=tiny.override(["method=fedavs"]), folder=tmp_path / "run"))
    assert told.startswith("no method 'fedavs'; did you mean 'fedaws'?")
    assert not (tmp_path / "run").exists()


def test_an_unknown_method_unlike_any_is_told_all_of_them(tiny: Config) -> None:
    told = refusal(lambda: fedaws.train(config=tiny.override(["method=zzz"])))
    assert all(name in told for name in method_names())


def test_the_command_line_refuses_an_unknown_method(
    refused: Callable[..., str], tiny_toml: Path, tmp_path: Path
) -> None:
    assert "did you mean 'softmax'?" in refused("train", tiny_toml, "-s", "method=sofmax", "--out", tmp_path / "run")
    assert "sofmax" in refused("compare", tiny_toml, "--methods", "fedaws,sofmax", "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_compare_refuses_an_unknown_method_before_the_first_run(tiny: Config, tmp_path: Path) -> None:
    told = refusal(lambda: compare(["fedaws", "sofmax"], config=tiny, folder=tmp_path / "all"))
    assert "did you mean 'softmax'?" in told
    assert not (tmp_path / "all").exists()


@pytest.mark.parametrize("name", ["fedaws", "fixed", "softmax"])
def test_options_of_a_method_that_has_none_are_refused(tiny: Config, tmp_path: Path, name: str) -> None:
    cfg = tiny.override([f"method={name}", "options.temperature=2"])
    told = refusal(lambda: fedaws.train(config=cfg, folder=tmp_path / "run"))
    assert told == f"method={name} has no options, got temperature; leave them out"
    assert not (tmp_path / "run").exists()
