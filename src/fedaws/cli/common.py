"""What the commands share: their options, how they end, what they print at last."""

import json as json_module
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import typer

from fedaws import config as configuration
from fedaws.cli import console
from fedaws.cli.tables import metrics_table
from fedaws.config import FOLDERS, SPARSE, Config
from fedaws.errors import FedawsError

_EXTRAS = {
    "flwr": "flower",
    "cryptography": "flower",
    "psutil": "flower",
    "tensorboard": "tensorboard",
    "faiss": "index",
    "PIL": "images",
    "onnx": "export",
    "onnxscript": "export",
    "onnxruntime": "export",
    "dp_accounting": "privacy",
    "optuna": "tune",
    "soundfile": "audio",
}
"""Modules that not everybody has, and the extra that brings them."""

Source = Annotated[
    str,
    typer.Argument(
        metavar="PRESET|FILE.toml",
        help="A preset (see `fedaws presets`) or a TOML file.",
        autocompletion=configuration.presets,
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "-s",
        "--set",
        metavar="KEY=VALUE",
        help="Change a setting (see `fedaws settings`); repeatable.",
        autocompletion=lambda: [f"{key}=" for key in configuration.settings()],
    ),
]
_Command = TypeVar("_Command", bound=Callable[..., Any])
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else there.")]


@contextmanager
def user_errors() -> Iterator[None]:
    """A user's mistake is one line on stderr and exit code 2."""
    try:
        yield
    except FedawsError as error:
        _fail(str(error))
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").split(".")[0])
        if extra is None:
            raise
        _fail(
            f"{error.name} is not installed; pip install 'fedaws[{extra}]', or in a clone: pip install -e '.[{extra}]'"
        )
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        _fail(f"{place}{error.strerror or error}")
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "allocate" not in str(error):  # torch has no class of its own for it
            raise
        _fail("out of memory; lower clients.per_round, train.block or the model's size")
    except KeyboardInterrupt:
        print_error("stopped at once; the last checkpoint is kept")
        raise typer.Exit(130) from None


class App(typer.Typer):
    """Typer's, but for mistakes within a command: each is one line."""

    def command(self, *args: Any, **options: Any) -> Callable[[_Command], _Command]:
        """Make a function a command."""
        register = super().command(*args, **options)
        return lambda function: register(user_errors()(function))


def _fail(message: str) -> NoReturn:
    print_error(message)
    raise typer.Exit(2) from None


def print_error(message: str) -> None:
    """One line on stderr."""
    print(f"error: {' '.join(message.split())}", file=sys.stderr)


def configured(source: str, settings: Sequence[str] | None) -> Config:
    """The configuration that a command is to run; what would do nothing is refused.

    A preset that is given other data does not keep the name of its own.
    """
    before = configuration.load(source)
    cfg = before.override(settings or [])
    configuration.check_effects(cfg)
    if cfg.data.name in SPARSE:  # only then: it needs torch
        from fedaws.data.load import as_found

        cfg, notice = as_found(cfg)
        if notice and os.environ.get("RANK", "0") == "0":
            console.warn(notice)
    if source in configuration.presets() and cfg.name == before.name and cfg.data.name != before.data.name:
        cfg = cfg.with_(name=name_of_data(cfg))
    return cfg


def name_of_data(cfg: Config) -> str:
    """What a run on these data is called: by the file or folder, if they are the user's own.

    >>> name_of_data(Config(data={"name": "images", "root": "photos/my faces!"}))
    'my faces-'
    >>> name_of_data(Config(data={"name": "some/place.npz"})), name_of_data(Config(data={"name": "cifar10"}))
    ('place', 'cifar10')
    """
    in_folder = cfg.data.name in FOLDERS and cfg.data.root
    name = Path(cfg.data.root or "").resolve().name if in_folder else Path(cfg.data.name).name.removesuffix(".npz")
    plain = re.sub(r"[^\w .+-]", "-", name)[:100]
    return plain if re.match(r"\w", plain) else f"data{plain}"[:100]


def reported(folder: Path) -> str | None:
    """Write the report beside the runs."""
    from fedaws.report.page import try_report

    return try_report(folder, console.warn)


def show_run(cfg: Config, metrics: dict[str, Any], folder: Path, title: str, json: bool) -> None:
    """What a run came to: its report, and its last figures as a table or as one JSON object."""
    measures = {key: value for key, value in metrics.items() if key != "round"}
    report = reported(folder)
    if json:
        about = {"method": cfg.method, "rounds": cfg.train.rounds, "seed": cfg.seed}
        print_json({**about, **measures, "folder": str(folder), "report": report})
    else:
        console.out.print(metrics_table(measures, title))
        console.say_if("report", report)


def one_place(runs: list[Path], out: Path | None, name: str, what: str) -> Path:
    """`--out`, or this name in the one folder that was given."""
    if out is None and len(runs) > 1:
        raise FedawsError(f"{len(runs)} folders have no one place for their {what}")
    return out or runs[0] / name


def print_json(value: Any) -> None:
    """One object on one line, for programs."""
    print(json_module.dumps(value), flush=True)
