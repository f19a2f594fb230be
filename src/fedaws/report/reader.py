"""Files of run folders, read with suspicion: whatever is missing or damaged becomes a notice, never an exception."""

import io
import json
import os
import stat
from collections.abc import Callable, Collection
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from torch import Tensor

from fedaws.errors import FedawsError
from fedaws.record.files import read_tensors

MOST_BYTES = 64 * 2**20
"""Of a text file; a row of metrics has about 500."""
MOST_LINES = 200_000
MOST_IN_AN_OBJECT = 16 * 2**20
"""Bytes of one JSON text: what it becomes in memory may be twenty times as large."""
_T = TypeVar("_T")


def attempt(read: Callable[[], _T], notices: list[str]) -> _T | None:
    """What can be read, or a notice of why not."""
    try:
        return read()
    except FedawsError as error:
        notices.append(" ".join(str(error).split()))
    except OSError as error:
        notices.append(f"cannot read {error.filename}: {error.strerror or error}")
    return None


def read_text(path: Path, most: int = MOST_BYTES) -> str:
    """A text file; empty if there is none. A pipe or a device could go on for ever, and is refused like a huge file."""
    try:
        # Without waiting: to open a pipe that nobody writes to would never end.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except FileNotFoundError:
        return ""
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise FedawsError(f"{path} is not a plain file; what it holds is left out")
        with open(handle, "rb", closefd=False) as file:
            content = file.read(most + 1)
    finally:
        os.close(handle)
    if len(content) > most:
        raise FedawsError(f"{path} is larger than {most >> 20} MB; what it holds is left out")
    return content.decode(errors="replace")


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object; empty if there is no such file."""
    text = read_text(path, MOST_IN_AN_OBJECT)
    if not path.exists():
        return {}
    value = check(lambda: json.loads(text), path)
    if not isinstance(value, dict):
        raise FedawsError(f"{path} is damaged (no JSON object); what it holds is left out")
    return value


def read_lines(path: Path, parse: Callable[[str], _T], notices: list[str]) -> list[_T]:
    """The lines of a .jsonl file that can be parsed, and a notice of the others."""
    values: list[_T] = []
    bad = 0
    lines = io.StringIO(attempt(partial(read_text, path), notices) or "")
    for line in islice(lines, MOST_LINES):
        try:
            values.append(parse(line[:MOST_IN_AN_OBJECT]))
        except (ValueError, RecursionError):
            bad += 1
    if bad:
        notices.append(f"{path} has {bad} lines that cannot be read; left out")
    if lines.readline():
        notices.append(f"{path} has more than {MOST_LINES:,} lines; the others are left out")
    return values


def read_weights(path: Path, only: Collection[str] | None = None) -> tuple[dict[str, Tensor], str]:
    """`read_tensors` of a plain file."""
    if path.exists() and not path.is_file():
        raise FedawsError(f"{path} is not a plain file; what it holds is left out")
    return read_tensors(path, only)


def check(make: Callable[[], _T], path: Path) -> _T:
    """What `make` makes of a file's content, or the one line that says how it is damaged."""
    try:
        return make()
    except FedawsError:
        raise
    except (ValueError, RecursionError) as error:  # pydantic's and json's among them
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise FedawsError(f"{path} is damaged ({reason}); what it holds is left out") from None
