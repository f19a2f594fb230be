"""Settings and helpers of all tests."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from hypothesis import settings

from fedaws import Config
from fedaws.cli.main import main
from fedaws.config import from_toml

# No deadlines on a noisy machine, and the same examples in every run.
settings.register_profile("fedaws", deadline=None, derandomize=True)
settings.load_profile("fedaws")
torch.set_num_threads(1)  # tests run in parallel processes

# Four classes; a momentum, so that checkpoints have an optimiser's memory; metrics and checkpoints out of step.
TINY = """
name = "tiny"
[data]
name = "synthetic"
classes = 4
features = 6
examples_per_class = 10
overlap = 0.1
[model]
embedding_dim = 5
hidden = [8]
[clients]
examples_per_step = 4
[server]
momentum = 0.9
[train]
rounds = 12
evaluate_every = 4
checkpoint_every = 5
threads = 1
"""


class Result(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture(scope="session")
def tiny() -> Config:
    """A run of milliseconds."""
    return from_toml(TINY, "tiny.toml")


@pytest.fixture
def tiny_toml(tmp_path: Path) -> Path:
    """The same, as a file."""
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., Result]:
    """`fedaws …` in this process and in a folder of its own; gives the exit code and both outputs."""
    monkeypatch.chdir(tmp_path)

    def run(*args: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["fedaws", *map(str, args)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main()
        return Result(int(stopped.value.code or 0), *capsys.readouterr())

    return run


@pytest.fixture
def refused(cli: Callable[..., Result]) -> Callable[..., str]:
    """`fedaws …` that must end with one line on stderr, nothing on stdout and exit code 2; gives that line."""

    def run(*args: object) -> str:
        code, out, err = cli(*args)
        assert (code, out, err.count("\n")) == (2, "", 1), (code, out, err)
        assert err.startswith("error: ")
        return err

    return run
