"""The one way in for bytes from outside, and the one way out for files of our own.

Whatever is read may come from a stranger: a pipe that never ends, a link to a device, more bytes than there is memory.
So a file is opened here, its kind and its size are looked at before a byte is read, and every trouble is one line.
"""

import json
import os
import platform
import secrets
import stat
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from pydantic import BaseModel, ValidationError

from fedaws.errors import FedawsError

SMALL = 1 << 24
"""Bytes that a file of settings, names or figures may have."""
LARGE = 1 << 40
"""Bytes that a file of data may have where its reader takes memory piece by piece."""
_DEEPEST = 64  # levels of a JSON text
_UNPACKED = 1 << 28  # bytes that any packed file may become
_TIMES = 100  # and a large one this many times its size
_STALE = 3600.0  # seconds after which a partial file is a dead process's, whoever that was
# Windows has none of these.
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)  # opening a pipe would last until somebody is at its other end
_CAREFUL = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_Model = TypeVar("_Model", bound=BaseModel)

# --- reading --------------------------------------------------------------------------------------------------------


def open_regular(path: Path, most_bytes: int) -> BufferedReader:
    """The file, opened for reading; refused unless it is a plain file of at most so many bytes."""
    try:
        handle = os.open(path, os.O_RDONLY | _NO_WAIT)
    except (OSError, ValueError) as error:  # ValueError: a name with a zero byte in it
        raise FedawsError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    about = os.fstat(handle)
    if stat.S_ISREG(about.st_mode) and about.st_size <= most_bytes:
        return os.fdopen(handle, "rb")
    os.close(handle)
    if not stat.S_ISREG(about.st_mode):
        raise FedawsError(f"{path} is not a plain file (a folder, pipe or device); remove it or give another")
    raise FedawsError(f"{path} has {about.st_size:,} bytes; wanted at most {most_bytes:,}")


def read_bytes(path: Path, most_bytes: int = SMALL) -> bytes:
    """All of a file."""
    with open_regular(path, most_bytes) as file, reading(path):
        content = file.read(most_bytes + 1)  # it may grow, and the kernel's own files do not say their size
    if len(content) > most_bytes:
        raise FedawsError(f"{path} has more than the {most_bytes:,} bytes that were wanted at most")
    return content


def read_text(path: Path, most_bytes: int = SMALL, errors: str = "strict") -> str:
    """All of a file, as text."""
    try:
        return read_bytes(path, most_bytes).decode("utf-8", errors)
    except UnicodeDecodeError as error:
        raise FedawsError(f"cannot read {path}: it is not UTF-8 ({error.reason} at byte {error.start:,})") from None


def read_json(path: Path, most_bytes: int = SMALL) -> Any:
    """What a JSON file holds."""
    return parse_json(read_bytes(path, most_bytes), str(path))


def parse_json(text: str | bytes, source: str) -> Any:
    """What a JSON text holds, at most 64 levels deep; `source` names it in errors.

    >>> parse_json('{"a": [1, 2]}', "example")
    {'a': [1, 2]}
    """
    return _parse(json.loads, text, source, "JSON")


def read_toml(path: Path, most_bytes: int = SMALL) -> dict[str, Any]:
    """What a TOML file holds, as deep as JSON may be."""
    return parse_toml(read_text(path, most_bytes), str(path))


def parse_toml(text: str, source: str) -> dict[str, Any]:
    """What a TOML text holds; `source` names it in errors."""
    return dict(_parse(tomllib.loads, text, source, "TOML"))


def _parse(parse: Callable[[Any], Any], text: str | bytes, source: str, kind: str) -> Any:
    too_deep = FedawsError(f"{source} is no sound {kind}: brackets in brackets beyond {_DEEPEST} levels")
    try:
        value = parse(text)
    except RecursionError:
        raise too_deep from None
    except ValueError as error:  # of another format, not UTF-8, a number of thousands of digits
        raise FedawsError(f"{source} is no sound {kind}: {error}") from None
    if _deeper(value, _DEEPEST):
        raise too_deep
    return value


def checked(model: type[_Model], tree: Any, source: str) -> _Model:
    """What was read, as this model; its first mistake is an error of one line."""
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        got = "" if first["type"] == "missing" else f"got {first['input']!r:.80}; "
        raise FedawsError(f"{source}: {key}: {got}{first['msg']}") from None


def _deeper(value: Any, levels: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    if levels == 0:
        return True
    inner = value.values() if isinstance(value, dict) else value
    return any(_deeper(each, levels - 1) for each in inner)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Tell of a broken disk, or of too little memory, in one line."""
    try:
        yield
    except OSError as error:
        raise FedawsError(f"cannot read {path}: {error.strerror or error}") from None
    except MemoryError:
        raise FedawsError(f"{path} does not fit into memory; make it smaller or use a larger machine") from None


def check_unpacked(path: Path, packed: int, unpacked: int, fix: str) -> None:
    """Refuse what is small on disk and vast in memory, before memory is taken.

    A packed file may become 256 MB, or 100 times its size if that is more, and never more than the free memory.
    """
    if unpacked > max(_UNPACKED, _TIMES * packed):
        raise FedawsError(
            f"{path} has {packed:,} bytes and unpacks to {unpacked:,}; wanted at most {_UNPACKED:,} "
            f"or {_TIMES} times its size; {fix}"
        )
    free = free_memory()
    if unpacked > free:
        raise FedawsError(f"{path} does not fit into memory: it unpacks to {unpacked:,} bytes, {free:,} are free")


def free_memory() -> int:
    """Bytes that can be had without swapping, as Linux tells it; elsewhere no limit is known."""
    try:
        facts = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return LARGE
    return next((1024 * int(line.split()[1]) for line in facts if line.startswith("MemAvailable:")), LARGE)


# --- writing --------------------------------------------------------------------------------------------------------


@contextmanager
def atomically(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """A file to write into; at the end it takes the place of `path`, whole and on the disk, or not at all.

    It is made aside under a name that nobody can know before, so no link that lies in wait there is followed. `mode`
    says who may read it, from its first byte on.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _sweep(path)
        partial = path.with_name(f"{_partial_name(path)}-{secrets.token_hex(4)}.partial")
        handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _CAREFUL, mode)
        try:
            with os.fdopen(handle, "wb") as file:
                yield file
                file.flush()
                os.fsync(handle)
            partial.replace(path)
            _sync_folder(path.parent)
        finally:
            with suppress(OSError):
                partial.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Have a new name on the disk too: after a power cut the old file could be back under it."""
    if os.name != "posix":  # Windows opens no folders, and writes names down by itself
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some file systems know no such thing
            os.fsync(handle)
    finally:
        os.close(handle)


def _partial_name(path: Path, process: int | None = None) -> str:
    """How the names of a process's partial files of this target begin."""
    machine = platform.node().replace("-", "_").replace("/", "_")[:20]
    return f".{path.name}.{machine}-{process or os.getpid()}"


def _sweep(path: Path) -> None:
    """Remove what killed processes have left of this file: those of this machine at once, others' after an hour."""
    for name in os.listdir(path.parent):
        if not (name.startswith(f".{path.name}.") and name.endswith(".partial")):
            continue
        partial = path.parent / name
        with suppress(OSError):
            if _is_dead(path, name) or time.time() - partial.lstat().st_mtime > _STALE:
                partial.unlink()


def _is_dead(path: Path, name: str) -> bool:
    number = name.split("-")[-2] if name.count("-") >= 2 else ""
    if not number.isdecimal() or not name.startswith(f"{_partial_name(path, int(number))}-"):
        return False
    try:
        os.kill(int(number), 0)
    except (ProcessLookupError, OverflowError):
        return True
    except OSError:
        return False
    return False


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file so that it is either there whole or not at all, also after a power cut."""
    with atomically(path) as file:
        file.write(content)


def write_text(path: Path, text: str) -> None:
    """`write_bytes` for text."""
    write_bytes(path, text.encode())


def append_line(path: Path, line: str) -> None:
    """Add a line to a file; a crash can cut short this line only, and no other. A link is not followed."""
    with writing(path):
        handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | _CAREFUL | _NO_WAIT, 0o666)
        with os.fdopen(handle, "ab+") as file:
            cut_short = file.tell() and os.pread(handle, 1, file.tell() - 1) != b"\n"
            file.write((b"\n" if cut_short else b"") + f"{line}\n".encode())
            file.flush()
            os.fsync(handle)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Tell of a full disk or a forbidden folder in one line."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise FedawsError(f"cannot write {path}: {reason}; make room or choose another folder") from None


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Hold a folder for this process; the hold ends with the process, however it ends."""
    from filelock import lock_descriptor  # noqa: PLC0415 - a tenth of a second that only writers need wait for

    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    try:
        with writing(folder):
            free = lock_descriptor(handle, blocking=False)
        if not free:
            raise FedawsError(f"another process is training in {folder}; wait for it or choose another --out")
        yield
    finally:
        os.close(handle)
