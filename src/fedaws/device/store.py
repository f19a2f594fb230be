"""Files of templates: read whole and bounded, replaced whole or not at all, by one writer at a time."""

import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedaws.device.errors import DeviceError

_WAIT = 10.0  # seconds for another writer
_OPENING = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)  # a pipe is not waited for
_MAKING = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
Stamp = tuple[int, int, int]
"""What changes when a file is replaced."""


def read(path: Path, most_bytes: int) -> tuple[bytes, Stamp]:
    """All of a plain file of at most so many bytes, and its stamp."""
    try:
        handle = os.open(path, os.O_RDONLY | _OPENING)
    except (OSError, ValueError) as error:  # ValueError: a name with a zero byte in it
        raise _unreadable(path, error) from None
    about = os.fstat(handle)
    if not stat.S_ISREG(about.st_mode):
        os.close(handle)
        raise DeviceError(f"{path} is not a plain file (a folder, pipe or device); give another")
    try:
        with os.fdopen(handle, "rb") as file:
            content = file.read(most_bytes + 1)
    except OSError as error:
        raise _unreadable(path, error) from None
    except MemoryError:
        raise DeviceError(f"{path} does not fit into memory") from None
    if len(content) > most_bytes:
        raise DeviceError(f"{path} has more than {most_bytes:,} bytes; wanted at most so many")
    return content, _stamp(about)


def stamp(path: Path) -> Stamp | None:
    """The stamp of a file; None if there is none."""
    try:
        return _stamp(path.stat())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> DeviceError:
    return DeviceError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}")


def _stamp(about: os.stat_result) -> Stamp:
    return about.st_ino, about.st_mtime_ns, about.st_size


@contextmanager
def only_writer(path: Path) -> Iterator[None]:
    """Hold a file's folder for this process, and clear away what killed writers have left of the file.

    The hold ends with the process, however it ends. Whoever holds it is alone, so every partial file is a dead one's.
    """
    with _writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path.parent, os.O_RDONLY)
    try:
        end = time.monotonic() + _WAIT
        while not _locked(handle, path):
            if time.monotonic() > end:
                raise DeviceError(f"another process is writing in {path.parent}; try again when it is done")
            time.sleep(0.02)
        _sweep(path)
        yield
    finally:
        os.close(handle)


def _locked(handle: int, path: Path) -> bool:
    from filelock import lock_descriptor  # noqa: PLC0415 - only writers need wait for it

    with _writing(path):
        return lock_descriptor(handle, blocking=False)


def replace(path: Path, content: bytes) -> None:
    """Put a new file in the place of an old one, on the disk before this returns; only its owner may read it."""
    with _writing(path):
        partial = path.with_name(f"{_partial(path)}{secrets.token_hex(8)}.partial")
        handle = os.open(partial, _MAKING, 0o600)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(handle)
            os.replace(partial, path)
        except BaseException:
            with suppress(OSError):
                partial.unlink()
            raise
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # or a power cut may bring the old one back
        finally:
            os.close(folder)


def _partial(path: Path) -> str:
    return f".{path.name}."


def _sweep(path: Path) -> None:
    with _writing(path):
        for name in os.listdir(path.parent):
            if name.startswith(_partial(path)) and name.endswith(".partial"):
                (path.parent / name).unlink()


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: a name with a zero byte in it
        if isinstance(error, DeviceError):
            raise
        reason = getattr(error, "strerror", None) or error
        raise DeviceError(f"cannot write {path}: {reason}; make room or choose another folder") from None
