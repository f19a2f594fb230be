"""What the commands share: their options, how they end, what they print at last."""

import json as json_module
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from fedaws.cli import console
from fedaws.errors import FedawsError
from fedaws.report.page import write_report

REPORT = "report.html"

Settings = Annotated[
    list[str] | None, typer.Option("-s", "--set", metavar="KEY=VALUE", help="Change a setting; repeatable.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else there.")]


@contextmanager
def user_errors() -> Iterator[None]:
    """A user's mistake is one line on stderr and exit code 2."""
    try:
        yield
    except FedawsError as error:
        _fail(str(error))
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


def _fail(message: str) -> NoReturn:
    print_error(message)
    raise typer.Exit(2) from None


def print_error(message: str) -> None:
    """One line on stderr."""
    print(f"error: {' '.join(message.split())}", file=sys.stderr)


def reported(folder: Path) -> str | None:
    """Write the report beside the runs; hours of training do not end with an error for the sake of a picture."""
    try:
        return str(write_report([folder], folder / REPORT))
    except Exception as error:
        console.warn(f"no report: {' '.join(str(error).split()) or type(error).__name__}; try: fedaws report {folder}")
        return None


def print_json(value: Any) -> None:
    """One object on one line, for programs."""
    print(json_module.dumps(value), flush=True)
