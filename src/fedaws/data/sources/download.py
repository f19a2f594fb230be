"""Get a published archive once, checked and whole or not at all."""

import hashlib
import http.client
import os
import secrets
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from fedaws.errors import FedawsError

_CHUNK = 1 << 18
_STALE = 3600.0  # seconds without a write after which a partial file is a dead process's; a live one gives up sooner


@dataclass(frozen=True)
class Archive:
    """A file on the web and the checksum its publisher gives for it."""

    url: str
    md5: str

    @property
    def name(self) -> str:
        """Its file name."""
        return self.url.rsplit("/", 1)[-1]


def cache_folder() -> Path:
    """Where downloads are kept: $XDG_CACHE_HOME/fedaws, or ~/.cache/fedaws."""
    return Path(os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache")) / "fedaws"


def fetch(archive: Archive, folder: Path, timeout: float = 30.0) -> Path:
    """The archive in this folder, downloaded; a wrong checksum or a broken transfer leaves nothing behind."""
    target = folder / archive.name
    # Several processes may be at it, each with a file of its own; the last to end wins, with the same bytes.
    partial = folder / f".{archive.name}.{os.getpid()}-{secrets.token_hex(4)}.partial"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _sweep(archive, folder)
        with partial.open("wb") as file:
            found = _transfer(archive, folder, file.write, timeout)
            file.flush()
            os.fsync(file.fileno())
        if found != archive.md5:
            raise FedawsError(
                f"{archive.url} has checksum {found}, wanted {archive.md5}: it is not the published file; "
                f"get it by other means and put {archive.name} into {folder}"
            )
        partial.replace(target)
    except OSError as error:
        raise FedawsError(
            f"cannot write {target}: {error.strerror or error}; make room or set data.root or XDG_CACHE_HOME"
        ) from None
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
    Console(stderr=True).print(f"downloaded {archive.url} to {folder}", highlight=False, markup=False, soft_wrap=True)
    return target


def _sweep(archive: Archive, folder: Path) -> None:
    """Remove what a killed download has left."""
    for old in folder.glob(f".{archive.name}.*.partial"):
        with suppress(OSError):
            if time.time() - old.stat().st_mtime > _STALE:
                old.unlink()


def _transfer(archive: Archive, folder: Path, write: Callable[[bytes], object], timeout: float) -> str:
    """Hand over what is at the address, piece by piece; returns its MD5."""
    digest = hashlib.md5(usedforsecurity=False)
    with _connected(archive, folder):
        response = urllib.request.urlopen(archive.url, timeout=timeout)
    with response, _progress(archive.name, size := _length(response)) as advance:
        received = 0
        while True:
            with _connected(archive, folder):
                chunk = response.read(_CHUNK)
                if not chunk and received < size:
                    raise ConnectionError(f"it broke off after {received:,} of {size:,} bytes")
            if not chunk:
                return digest.hexdigest()
            write(chunk)
            digest.update(chunk)
            received += len(chunk)
            advance(len(chunk))


@contextmanager
def _connected(archive: Archive, folder: Path) -> Iterator[None]:
    """Tell of the network's troubles, apart from the disk's, in one line."""
    try:
        yield
    except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: an address that is none
        if isinstance(error, urllib.error.HTTPError):
            error.close()
            reason: object = f"{error.code} {error.reason}"
        else:
            reason = getattr(error, "reason", None) or error
        reason = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
        raise FedawsError(
            f"cannot download {archive.url}: {' '.join(str(reason).split())}; "
            f"get it by other means and put {archive.name} into {folder}"
        ) from None


def _length(response: http.client.HTTPResponse) -> int:
    """What the server says it will send, or 0."""
    said = response.headers.get("Content-Length") or ""
    return int(said) if said.isascii() and said.isdigit() else 0


@contextmanager
def _progress(name: str, size: int) -> Iterator[Callable[[int], None]]:
    """Is told of every piece: a bar on a terminal, nothing in a log, where an error is to stand alone."""
    if hasattr(sys.stderr, "rich_proxied_file"):  # a run's bar is there already; lines go above it, a bar would not
        yield _tenths(name, size)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    times = (TransferSpeedColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, *times, console=console, transient=True, disable=not console.file.isatty()) as bar:
        task = bar.add_task(name, total=size or None)
        yield lambda count: bar.advance(task, count)


def _tenths(name: str, size: int) -> Callable[[int], None]:
    received, told = 0, 0

    def advance(count: int) -> None:
        nonlocal received, told
        received += count
        tenth = 10 * received // size if size else 0
        if tenth > told:
            told = tenth
            print(f"{name}: {10 * tenth} % of {size / 1e6:,.0f} MB", file=sys.stderr)

    return advance
