"""Tests of what runs over Flower; without the extra `flower` there is nothing to test."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from fedaws import Config

collect_ignore_glob = [] if find_spec("flwr") else ["test_*.py"]


@pytest.fixture
def trial(tmp_path: Path, tiny: Config) -> Callable[..., Any]:
    """Makes a federation of the tiny data."""
    from flower_trial import Trial, make_trial

    def make(clients: int = 4, *, classes: int | None = None, config: Config = tiny, **settings: Any) -> Trial:
        return make_trial(tmp_path / "federation", config, clients, classes, **settings)

    return make
