"""Get a published archive once, checked and whole or not at all."""

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from fedaws.errors import FedawsError

_CHUNK = 1 << 18  # bytes
_STALE = 3600.0  # seconds without a write after which a partial file is a dead process's; a live one gives up sooner


@dataclass(frozen=True)
class Archive:
    """A file on the web and the checksum its publisher gives for it; None: what is in it is checked by its reader."""

    url: str
    md5: str | None

    @property
    def name(self) -> str:
        """Its file name."""
        return self.url.rsplit("/", 1)[-1]


def cache_folder() -> Path:
    """Where downloads are kept: $XDG_CACHE_HOME/fedaws, or ~/.cache/fedaws."""
    return Path(os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache")) / "fedaws"


def fetch(archive: Archive, folder: Path, timeout: float = 30.0) -> Path:
    """The archive in this folder, downloaded; a wrong checksum or a broken transfer leaves nothing behind."""
    import pooch  # noqa: PLC0415 - a third of a second that only downloads need wait for
    from requests import RequestException  # noqa: PLC0415

    target = folder / archive.name
    elsewhere = f"get it by other means and put {archive.name} into {folder}"
    pooch.get_logger().setLevel("WARNING")

    def transfer(url: str, partial: str, _: object) -> None:
        with _bar(archive.name) as tell, open(partial, "wb") as file:
            _transfer(url, file, timeout, tell)

    try:
        folder.mkdir(parents=True, exist_ok=True)
        _sweep(archive, folder)
        # Several processes may be at it, each in a folder of its own; the last to end wins, with the same bytes.
        with TemporaryDirectory(prefix=f".{archive.name}.", suffix=".partial", dir=folder) as aside:
            whole = pooch.retrieve(
                archive.url, archive.md5 and f"md5:{archive.md5}", archive.name, aside, downloader=transfer
            )
            os.replace(whole, target)
    except RequestException as error:
        raise FedawsError(f"cannot download {archive.url}: {_reason(error)}; {elsewhere}") from None
    except OSError as error:
        raise FedawsError(
            f"cannot write {target}: {error.strerror or error}; make room or set data.root or XDG_CACHE_HOME"
        ) from None
    except ValueError:
        raise FedawsError(
            f"{archive.url} has not the checksum {archive.md5}: it is not the published file; {elsewhere}"
        ) from None
    print(f"downloaded {archive.url} to {folder}", file=sys.stderr)
    return target


def _sweep(archive: Archive, folder: Path) -> None:
    """Remove what killed downloads have left."""
    for old in folder.glob(f".{archive.name}.*.partial"):
        with suppress(OSError):
            if time.time() - old.lstat().st_mtime > _STALE:
                shutil.rmtree(old)  # not what a link leads to


def _transfer(url: str, file: BinaryIO, timeout: float, tell: Callable[[int, int], object]) -> None:
    """As pooch's own, which leaves its connection open where something goes wrong."""
    import requests  # noqa: PLC0415

    with requests.get(url, stream=True, timeout=timeout) as response:
        response.raise_for_status()
        size = response.headers.get("Content-Length", "")
        for chunk in response.iter_content(_CHUNK):
            file.write(chunk)
            tell(file.tell(), int(size) if size.isdecimal() else 0)


def _reason(error: BaseException) -> str:
    """What the network said first, in one line."""
    response = getattr(error, "response", None)
    if response is not None:
        return f"{response.status_code} {response.reason}"
    while error.__context__ is not None:
        error = error.__context__
    return " ".join((getattr(error, "strerror", None) or str(error) or type(error).__name__).split())


@contextmanager
def _bar(name: str) -> Iterator[Callable[[int, int], object]]:
    """Is told how many bytes are there, and of how many: a bar on a terminal, but none beside the bar of a run."""
    if not sys.stderr.isatty() or hasattr(sys.stderr, "rich_proxied_file"):
        yield lambda received, size: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=None)
        yield lambda received, size: bar.update(task, completed=received, total=size or None)
