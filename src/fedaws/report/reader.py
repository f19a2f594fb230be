"""Files of run folders, read with suspicion: whatever is missing or damaged becomes a notice, never an exception."""

import io
from collections.abc import Callable, Collection
from itertools import islice
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from pydantic import BaseModel, ValidationError

from fedaws.errors import FedawsError
from fedaws.files import SMALL, read_json, read_text

_MOST_BYTES = 1 << 26  # of a file of lines; a row of metrics has about 500
_MOST_LINES = 200_000
_T = TypeVar("_T")
_Model = TypeVar("_Model", bound=BaseModel)
_P = ParamSpec("_P")


def attempt(notices: list[str], read: Callable[_P, _T], *args: _P.args, **options: _P.kwargs) -> _T | None:
    """What can be read, or a notice of why not."""
    try:
        return read(*args, **options)
    except FedawsError as error:
        notices.append(" ".join(str(error).split()))
    except OSError as error:
        notices.append(f"cannot read {error.filename}: {error.strerror or error}")
    return None


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object; empty if there is no such file."""
    value = read_json(path) if path.exists() else {}
    if not isinstance(value, dict):
        raise FedawsError(f"{path} is damaged (no JSON object); what it holds is left out")
    return value


def read_lines(path: Path, parse: Callable[[str], _T], notices: list[str]) -> list[_T]:
    """The lines of a .jsonl file that can be parsed, and a notice of the others."""
    if not path.exists():
        return []
    values: list[_T] = []
    bad = 0
    lines = io.StringIO(attempt(notices, read_text, path, _MOST_BYTES, "replace"))
    for line in islice(lines, _MOST_LINES):
        try:
            values.append(parse(line[:SMALL]))
        except (ValueError, RecursionError):
            bad += 1
    if bad:
        notices.append(f"{path} has {bad} lines that cannot be read; left out")
    if lines.readline():
        notices.append(f"{path} has more than {_MOST_LINES:,} lines; the others are left out")
    return values


def read_model(model: type[_Model], path: Path, but: Collection[str] = ()) -> _Model | None:
    """A JSON object of this shape; None if the file has nothing in it `but` these keys, or is not there."""
    content = read_object(path)
    return check(path, model.model_validate, content) if content.keys() - but else None


def check(path: Path, validate: Callable[[Any], _T], content: Any) -> _T:
    """A file's content as the model that it must be, or the one line that says how it is damaged."""
    try:
        return validate(content)
    except ValidationError as error:
        raise FedawsError(f"{path} is damaged ({error.errors()[0]['msg']}); what it holds is left out") from None
