"""A setting that only shows to be wrong with data and encoder at hand leaves nothing behind."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import fedaws
from fedaws import Config
from helpers import refusal

WRONG = ("train.runner=pooled", "clients.local_steps=5")


def test_a_refused_setting_leaves_nothing_behind(tiny: Config, tmp_path: Path) -> None:
    place = tmp_path / "runs" / "run"
    told = refusal(lambda: fedaws.train(config=tiny.override(WRONG), folder=place))
    assert "set train.runner=stacked" in told
    assert list(tmp_path.iterdir()) == []
    run = fedaws.train(config=tiny.override(["train.runner=stacked", "clients.local_steps=5"]), folder=place)
    assert run.metrics[-1]["round"] == 12


def test_the_corrected_command_runs_in_the_same_folder(
    cli: Callable[..., Any], refused: Callable[..., str], tiny_toml: Path, tmp_path: Path
) -> None:
    place = tmp_path / "runs" / "run"
    command = ("train", tiny_toml, "--out", place, "--json", "-s", "clients.local_steps=5", "-s")
    assert "set train.runner=stacked" in refused(*command, "train.runner=pooled")
    assert not place.parent.exists()
    assert cli(*command, "train.runner=stacked").code == 0
