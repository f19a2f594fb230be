"""Ranks as processes of a fork server: torch is loaded once for all of them, and not once for each."""

import os
import signal
import socket
import sys
import warnings
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from fedaws import Config, train
from fedaws.errors import FedawsError
from fedaws.ranks.launch import joined
from fedaws.training.session import Reporter

_SERVER = get_context("forkserver")
_SERVER.set_forkserver_preload(["rank_processes"])


def run_ranks(world: int, work: Callable[..., None], *args: Any) -> list[int | None]:
    """Run `work(*args)` in so many ranks; their exit codes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = [_SERVER.Process(target=_rank, args=(rank, world, port, work, args)) for rank in range(world)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(240)
    hanging = [process for process in ranks if process.is_alive()]
    for process in hanging:
        process.kill()
    assert not hanging, "a rank hangs"
    return [process.exitcode for process in ranks]


def _rank(rank: int, world: int, port: int, work: Callable[..., None], args: Any) -> None:
    os.environ |= {"RANK": f"{rank}", "WORLD_SIZE": f"{world}", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{port}"}
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    try:
        with joined():
            work(*args)
    except FedawsError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        sys.exit(2)


def train_all(configs: dict[str, Config], folder: Path) -> None:
    """Train each, one after the other."""
    for name, cfg in configs.items():
        train(config=cfg, folder=folder / name)


def train_on(cfg: Config, folder: Path) -> None:
    """Begin a run, or go on with it; what is said lies beside the folder."""
    _tell_into(folder)
    train(config=cfg, folder=folder, resume=True)


def train_until_killed(cfg: Config, folder: Path, rank: str, round_num: int) -> None:
    """A rank that is gone after a round, without a word; what the others say lies beside the folder."""

    def on_round(done: int, _: float) -> bool:
        if os.environ["RANK"] == rank and done == round_num:
            os.kill(os.getpid(), signal.SIGKILL)
        return False

    _tell_into(folder)
    rounds = iter(range(1, cfg.train.rounds + 1))
    train(config=cfg, folder=folder, reporter=Reporter(should_stop=lambda: on_round(next(rounds), 0.0)))


def train_until_wrong(cfg: Config, folder: Path, rank: str) -> None:
    """A rank that finds something wrong which the others do not know of."""

    def stop() -> bool:
        if os.environ["RANK"] == rank:
            raise FedawsError("my disk is full")
        return False

    _tell_into(folder)
    train(config=cfg, folder=folder, reporter=Reporter(should_stop=stop))


def refused_all(configs: dict[str, Config], folder: Path) -> None:
    """What each is refused with, a line in a file of the rank's."""
    lines = []
    for name, cfg in configs.items():
        try:
            train(config=cfg, folder=folder / name)
        except FedawsError as error:
            lines.append(f"{name}: {error}")
    (folder / f"refused-{os.environ['RANK']}.txt").write_text("\n".join(lines))


def _tell_into(folder: Path) -> None:
    sys.stderr = (folder.parent / f"{folder.name}-{os.environ['RANK']}.txt").open("w")
