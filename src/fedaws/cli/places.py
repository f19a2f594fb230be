"""Which folder a command's runs go to: `--out`, the newest unfinished one, or a new one below runs/."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from fedaws.config import Config
from fedaws.errors import FedawsError

if TYPE_CHECKING:
    from fedaws.ranks import Ranks

RUNS = Path("runs")


@contextmanager
def run_folder(stem: str, out: Path | None, resume: bool, cfg: Config | None = None) -> Iterator[Path]:
    """`--out`; or, to resume, the newest unfinished run of the same configuration; or a new folder runs/STEM-N."""
    if out is not None or resume:
        yield out or _newest(stem, cfg)
        return
    folder = _new_folder(stem)
    try:
        yield folder
    finally:
        with suppress(OSError):
            folder.rmdir()  # only if it is still empty: nothing was started


@contextmanager
def one_folder(
    ranks: "Ranks | None", stem: str, out: Path | None, resume: bool, cfg: Config | None = None
) -> Iterator[Path]:
    """`run_folder`, chosen by the first of several ranks for all."""
    if ranks is not None and not ranks.first:
        yield Path(ranks.tell(""))
        return
    with run_folder(stem, out, resume, cfg) as folder:
        if ranks is not None:
            ranks.tell(str(folder))
        yield folder


def _newest(stem: str, cfg: Config | None) -> Path:
    same = [p for p in RUNS.glob(f"{stem}-*") if _resumable(p, cfg)]
    if not same:
        raise FedawsError(f"no unfinished run of {stem} with these settings below {RUNS}/; give its folder with --out")
    return max(same, key=lambda p: p.stat().st_mtime)


def _new_folder(stem: str) -> Path:
    for number in count(1):
        folder = RUNS / f"{stem}-{number}"
        with suppress(FileExistsError):  # taken, perhaps by a run that started together with this one
            folder.mkdir(parents=True)
            break
    return folder


def _resumable(path: Path, cfg: Config | None) -> bool:
    from fedaws.record.folder import RunFolder

    if cfg is None:  # a comparison
        return not (path / "compare.json").exists()
    try:
        return RunFolder(path).config() == cfg and not RunFolder(path).finished
    except FedawsError:
        return False
