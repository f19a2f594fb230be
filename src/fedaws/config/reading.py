"""Configurations from files: TOML texts, and the presets that come with the package."""

import os
from importlib import resources
from pathlib import Path
from typing import Any

from fedaws.config.mistakes import did_you_mean
from fedaws.config.run import Config
from fedaws.errors import FedawsError
from fedaws.files import parse_toml, read_text

LONGEST_TEXT = 100_000


def parse(tree: dict[str, Any]) -> Config:
    """A checked configuration from nested dicts."""
    return Config(**tree)


def load(source: str | os.PathLike[str]) -> Config:
    """The configuration of a preset or a file.

    Parameters
    ----------
    source
        A preset's name (see `presets`), or the path of a TOML file.

    Returns
    -------
    Config
        The checked configuration.
    """
    source = os.fspath(source)
    if source in presets():
        return from_toml(preset_text(source), source)
    path = Path(source)
    if path.suffix != ".toml":
        hint = did_you_mean(source, presets(), f"there are {', '.join(presets())}")
        raise FedawsError(f"no preset {source!r}; {hint} (or give the path of a .toml file)")
    return from_toml(read_text(path, LONGEST_TEXT), source)


def from_toml(text: str, source: str) -> Config:
    """The configuration in a TOML text; `source` names it in errors."""
    if len(text) > LONGEST_TEXT:
        raise FedawsError(f"{source}: got more than {LONGEST_TEXT:,} characters; wanted a table of settings")
    tree = parse_toml(text, source)
    try:
        return parse(tree)
    except FedawsError as error:
        raise FedawsError(f"{source}: {error}") from None


def presets() -> list[str]:
    """The names of the experiments that come with the package."""
    return sorted(
        f.name.removesuffix(".toml") for f in resources.files("fedaws.presets").iterdir() if f.name.endswith(".toml")
    )


def preset_text(name: str) -> str:
    """A preset's file."""
    return (resources.files("fedaws.presets") / f"{name}.toml").read_text(encoding="utf-8")
