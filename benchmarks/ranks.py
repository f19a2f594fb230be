"""One process against several ranks: CPU seconds a rank and round, memory a rank, and whether the numbers are the same.

    python benchmarks/ranks.py [--scale 1.0] [--ranks 2] [--rounds 6] [--equal-scale 0.01] [--place DIR] [--json FILE]

Amazon-670K's shape times `--scale` (670,091 classes, 135,909 features, the paper's encoder, d = 512, 4,000 clients a
round), one thread a process; with `--place` a stopped one goes on. CPU time is that of whole rounds of
`fedaws.train` from the third on, the mean, in which gloo's threads are. Memory is what a process has in its rounds: its
own (RssAnon), which is what a further rank costs; files (RssFile), the libraries, which the processes of a machine have
together; Pss, in which each such page counts by its share; and the most that it ever had of all. Equality is taken at
`--equal-scale` with 400 clients: one round of the preset, beside that of one process in blocks of 150 clients, which
rounds otherwise too; and 60 rounds of `moments` with a table alone (mined lists and ReLUs amplify rounding).
"""

import argparse
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from fedaws import train
from fedaws.config import Config, load
from fedaws.ranks.launch import joined
from fedaws.record.folder import RunFolder
from fedaws.training.session import Interrupted, Reporter

COMMON = ["data.name=xc-synthetic", "data.test_examples=50", "train.threads=1", "train.schedule=constant"]
MOMENTS = ["spread.regularizer=moments", "spread.remember=false", "spread.center=false", "model.hidden=[]"]


def configured(scale: float, rounds: int, more: list[str]) -> Config:
    """Stopped after so many rounds, with a checkpoint: nothing is evaluated."""
    often = [f"train.{key}={rounds + 1}" for key in ("rounds", "evaluate_every", "checkpoint_every")]
    return load("amazon-670k").override([*COMMON, f"data.scale={scale}", *often, *more])


def memory_mb() -> dict[str, float]:
    """What this process has now, and the most that it had (Linux)."""
    told = "".join(Path(f"/proc/self/{name}").read_text() for name in ("status", "smaps_rollup"))
    found = dict(re.findall(r"^(VmHWM|RssAnon|RssFile|Pss):\s+(\d+)", told, re.MULTILINE))
    return {name: int(kb) / 1024 for name, kb in found.items()}


def work(config: Path, folder: Path) -> None:
    """One rank, or the one process: train, and note time and memory after every round."""
    torch.set_num_threads(1)
    cpu: list[float] = []
    wall: list[float] = []
    memory: dict[str, float] = {}

    def noted() -> bool:
        cpu.append(time.process_time())
        wall.append(time.perf_counter())
        memory.update(memory_mb())
        return len(cpu) == cfg.train.rounds - 1

    cfg = load(str(config))
    with joined(agreed=(Interrupted,)), suppress(Interrupted):
        train(config=cfg, folder=folder, reporter=Reporter(should_stop=noted))
    rank = os.environ.get("RANK", "0")
    notes = {"cpu": cpu, "wall": wall, **memory, "peak": memory_mb()["VmHWM"]}
    (folder.parent / f"{folder.name}-{rank}.json").write_text(json.dumps(notes))


def run(cfg: Config, world: int, folder: Path) -> list[dict[str, Any]]:
    """The notes of each rank; what an earlier sitting has finished stays."""
    notes = [folder.parent / f"{folder.name}-{rank}.json" for rank in range(world)]
    if all(note.exists() for note in notes):
        return [json.loads(note.read_text()) for note in notes]
    shutil.rmtree(folder, ignore_errors=True)
    config = folder.parent / f"{folder.name}.toml"
    config.write_text(cfg.to_toml())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, __file__, "--work", str(config), str(folder)]
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    shared = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    each = [alone if world == 1 else {**alone, **shared, "RANK": str(rank)} for rank in range(world)]
    processes = [subprocess.Popen(command, env=env) for env in each]
    codes = [process.wait() for process in processes]
    if any(codes):
        raise SystemExit(f"{world} processes: one has failed")
    return [json.loads(note.read_text()) for note in notes]


def difference(one: Path, other: Path) -> dict[str, float]:
    """The largest difference of any number of W, and of θ."""
    ours, theirs = (RunFolder(path).load_model() for path in (one, other))
    theta = (float((ours.theta[name] - theirs.theta[name]).abs().max()) for name in ours.theta)
    return {"W": float((ours.W - theirs.W).abs().max()), "theta": max(theta)}


def round_cpu(notes: dict[str, Any]) -> float:
    """CPU seconds of a round, from the third on."""
    times = notes["cpu"][1:]
    return float((times[-1] - times[0]) / (len(times) - 1))


def equality(scale: float, world: int, place: Path) -> dict[str, dict[str, float]]:
    found = {}
    for name, rounds, more in (("one round", 1, []), ("moments, 60 rounds", 60, MOMENTS)):
        cfg = configured(scale, rounds, ["clients.per_round=400", *more])
        folders = [place / f"{name[:3]}-{count}" for count in (1, world)]
        for count, folder in zip((1, world), folders, strict=True):
            run(cfg, count, folder)
        found[name] = difference(*folders)
        if rounds == 1:
            run(cfg.override(["train.block=150"]), 1, place / "blocks")
            found["one round, one process, in other blocks"] = difference(folders[0], place / "blocks")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--equal-scale", type=float, default=0.01)
    parser.add_argument("--no-equality", action="store_true")
    parser.add_argument("--place", type=Path, help="keeps what is done, so that a stopped benchmark goes on")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--work", type=Path, nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        work(*args.work)
        return
    with tempfile.TemporaryDirectory() as temporary:
        place = args.place or Path(temporary)
        place.mkdir(parents=True, exist_ok=True)
        cfg = configured(args.scale, args.rounds, [])
        (one,) = run(cfg, 1, place / "one")
        ranks = run(cfg, args.ranks, place / "ranks")
        figures: dict[str, Any] = {
            "scale": args.scale,
            "ranks": args.ranks,
            "cpu": {"one": round_cpu(one), "rank": max(map(round_cpu, ranks))},
            **{
                f"{name} MB": {"one": one[name], "rank": max(r[name] for r in ranks)}
                for name in ("RssAnon", "RssFile", "Pss", "peak")
            },
            "same at this size": difference(place / "one", place / "ranks"),
        }
        if not args.no_equality:
            figures |= equality(args.equal_scale, args.ranks, place)
    for name, value in figures.items():
        ratio = f"   {value['rank'] / value['one']:.2f}" if isinstance(value, dict) and "rank" in value else ""
        print(f"{name:22} {value}{ratio}")
    if args.json:
        args.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
