"""Somebody leaves: their row, name and pictures go from a run's folder; what θ has learnt from them stays."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fedaws.errors import FedawsError
from fedaws.evaluate.half_rows import HalfRows, remove_half_row
from fedaws.evaluate.model import REMOVED
from fedaws.files import only_writer, read_json, write_text, writing
from fedaws.record.files import read_tensors, write_tensors
from fedaws.record.folder import PEOPLE, RunFolder
from fedaws.record.state import read_state

_MADE_AGAIN = ("report.html", PEOPLE)
"""What shows people and is made from the rest."""


class Forgotten(NamedTuple):
    """Who is gone, and from which files."""

    number: int
    files: tuple[Path, ...]


def forget(folder: Path, name: str) -> Forgotten:
    """Remove somebody from a run's model, checkpoints, traces, details and rows in half precision, by name or number.

    Each file is written whole or not at all; a process that was killed is repeated. A run that goes on afterwards
    trains without them. Deleting files does not clean a disk: copies, backups and flash cells are beyond its reach.
    """
    record = RunFolder(folder)
    record.config()  # refuses what is no run folder
    with only_writer(folder):
        number = _number(record, name)
        _put_together(record)
        made = [path for path in (folder / each for each in _MADE_AGAIN) if path.exists()]
        for path in made:
            with writing(path):
                path.unlink()
        # Last the files that have the name: who was interrupted is found by it again.
        files = [path for path in record.traces() if _without_trace(path, number)]
        files += [path for path, model in record.half_rows() if _without_half_row(path, model, number)]
        files += [path for path in [record.details_file] if path.exists() and _without_details(path, number)]
        files += [path for path in _states(record) if _without_row(path, number)]
    return Forgotten(number, (*made, *files))


def _states(record: RunFolder) -> list[Path]:
    return [*record.checkpoints(), *([record.model_file] if record.finished else [])]


def _number(record: RunFolder, name: str) -> int:
    """Their class; also where an interrupted process has removed the name from some of the files already."""
    states = _states(record)
    if not states:
        raise FedawsError(f"{record.path} has no model and no checkpoint yet; nobody can be removed from it")
    for path in states:
        tensors, facts = read_state(path)
        if facts.rows == "private" and path != record.model_file:
            raise FedawsError(
                f"{record.path} has private rows, and the sums in its checkpoints hold everybody's; delete its folder "
                "checkpoints (it cannot be resumed then) and try again"
            )
        names = facts.class_names or tuple(str(c) for c in range(len(tensors["W"])))
        if name and name in names:
            return names.index(name)
    raise FedawsError(f"nobody is called {name!r} in {record.path}; fedaws.load(RUN).class_names tells who is there")


def _put_together(record: RunFolder) -> None:
    """Checkpoints of several ranks as one process writes them: their rows are in one file, and in no other."""
    for path in record.checkpoints():
        tensors, facts = read_state(path)
        if facts.ranks > 1 or facts.shared:
            write_tensors(path, tensors, facts.model_copy(update={"ranks": 1, "shared": {}}).model_dump(mode="json"))
    record.drop_rank_files()  # also those that an interrupted process has left


def _without_row(path: Path, number: int) -> bool:
    """A model or checkpoint without the row; False if it was gone."""
    tensors, facts = read_state(path)
    W = tensors["W"]
    if number >= len(W) or number in facts.forgotten:
        return False
    count = len(W)
    W[number] = 0
    for name, tensor in tensors.items():
        if name.startswith(("spread/", "row_optimizer/", "best/W")) and tensor.ndim and len(tensor) == count:
            tensor[number] = 0 if tensor.is_floating_point() else -1
    tensors.setdefault("bias", W.new_zeros(count))[number] = REMOVED
    names = facts.class_names and tuple("" if c == number else n for c, n in enumerate(facts.class_names))
    gone = tuple(sorted({*facts.forgotten, number}))
    told = facts.model_copy(update={"class_names": names, "forgotten": gone})
    write_tensors(path, tensors, told.model_dump(mode="json"))
    return True


def _without_half_row(path: Path, model: str, number: int) -> bool:
    """Rows in half precision without theirs, if they are still there and of this model; False if it was gone."""
    if not path.exists():
        return False
    rows = HalfRows(path)
    if rows.model != model or number >= rows.num_classes or rows.lacks(number):
        return False
    remove_half_row(path, number)
    return True


def _without_trace(path: Path, number: int) -> bool:
    tensors, text = read_tensors(path)
    theirs = tensors["classes"] == number
    if not bool(theirs.any()) or not bool(tensors["rows"][theirs].any()):
        return False
    tensors["rows"][theirs] = 0
    write_tensors(path, tensors, json.loads(text))
    return True


def _without_details(path: Path, number: int) -> bool:
    """The details of the last round without their figures and pictures."""
    details = read_json(path)
    if not isinstance(details, dict) or number not in details.get("classes", ()):
        return False
    place = details["classes"].index(number)
    for key in ("classes", "right", "count"):
        del details[key][place]
    details["pairs"] = [pair for pair in details.get("pairs", ()) if number not in _ends(pair)]
    for at, row in enumerate(details.get("confusion") or ()):
        row[:] = [0 if number in (at, to) else n for to, n in enumerate(row)]
    write_text(path, json.dumps(details) + "\n")
    return True


def _ends(pair: dict[str, Any]) -> Iterator[Any]:
    return (pair.get(end) for end in ("true", "taken"))
