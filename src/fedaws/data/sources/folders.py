"""A folder for each class, whatever its files hold: which files there are, and whose."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from fedaws.errors import FedawsError

Files = list[tuple[Path, int]]
"""Each file and the number of its class."""


def class_files(folder: Path, suffixes: Collection[str], kind: str) -> tuple[Files, Files, tuple[str, ...]]:
    """The files to train on, those to test on, and the classes' names; files are of one `kind` (image, sound).

    The classes are the folders in `train`, or in `folder` itself where there are neither `train` nor `test`; without a
    `test` there are no files to test on.
    """
    layout = f"train/<class>/<{kind}> and test/<class>/<{kind}>, or <class>/<{kind}>"
    with _looking(folder):
        train, test = folder / "train", folder / "test"
        if test.is_dir() and not train.is_dir():
            raise FedawsError(f"{folder} has a folder test but none train; wanted {layout}")
        classes = _classes(train if train.is_dir() else folder, suffixes, kind, layout)
        tested = _classes(test, suffixes, kind, layout) if test.is_dir() else {}
    beyond = [name for name in tested if name not in classes]
    if beyond:
        raise FedawsError(f"{test / beyond[0]} is a class that {train} has not; add it there or remove it here")
    names = tuple(classes)
    return _numbered(classes, names), _numbered(tested, names), names


@contextmanager
def _looking(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FedawsError(f"cannot read {error.filename or folder}: {error.strerror or error}") from None


def _classes(folder: Path, suffixes: Collection[str], kind: str, layout: str) -> dict[str, list[Path]]:
    """Class → its files, both in the order of their names."""
    folders = sorted(f for f in folder.iterdir() if f.is_dir() and not f.name.startswith("."))
    if not folders:
        raise FedawsError(f"{folder} has no folders of {kind}s; wanted {layout}")
    for each in folders:
        if not each.name.isprintable():  # it becomes a class's name, on screens and in files
            raise FedawsError(f"the folder {str(each)!a} has a name that cannot be printed; rename it")
    return {each.name: _files(each, suffixes, kind) for each in folders}


def _files(folder: Path, suffixes: Collection[str], kind: str) -> list[Path]:
    files = sorted(f for f in folder.iterdir() if f.suffix.lower() in suffixes and not f.name.startswith("."))
    if not files:
        raise FedawsError(f"{folder} has no {kind}s ({' '.join(sorted(suffixes))}); add some or remove the folder")
    return files


def _numbered(classes: dict[str, list[Path]], names: tuple[str, ...]) -> Files:
    number = {name: i for i, name in enumerate(names)}
    return [(file, number[name]) for name, files in classes.items() for file in files]
