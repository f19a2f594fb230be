"""Threads on an idle and on a busy machine: which default is never far from the best?

    python benchmarks/busy.py [--seconds 0.5]

Every cell is a process of its own (a thread pool's waiting is settled when torch loads): one thread or as many as there
are cores, waiting threads that spin (`OMP_WAIT_POLICY=ACTIVE`) or sleep (`PASSIVE`), alone or beside others that never
rest. Median milliseconds of a call; in brackets against the best of its line. What else runs on the machine counts too.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F

from fedaws.config import ClientsConfig, Config, ModelConfig, SpreadConfig
from fedaws.core.algorithm import run_round
from fedaws.core.methods import method_of
from fedaws.core.spreadout import spread_
from fedaws.data import from_arrays
from fedaws.models.mlp import mlp
from fedaws.runners import make_runner
from fedaws.types import ServerState

SETTINGS = ((1, "PASSIVE"), (0, "PASSIVE"), (0, "ACTIVE"))
"""Threads (0: as many as cores) and how they wait."""


def cases() -> dict[str, Callable[[], object]]:
    """Rounds of small clients, and steps on W alone."""

    def whole_round(clients: int) -> Callable[[], object]:
        y = torch.arange(clients).repeat_interleave(32)
        data, encoder = from_arrays(torch.randn(len(y), 64), y), mlp(64, (128,), 32)
        cfg = Config(
            clients=ClientsConfig(examples_per_step=16, lr=0.1),
            model=ModelConfig(embedding_dim=32, hidden=(128,)),
            spread=SpreadConfig(regularizer="moments"),
        )
        W = F.normalize(torch.randn(clients, 32), dim=1)
        state = ServerState(0, {k: v.detach() for k, v in encoder.named_parameters()}, W)
        run_clients = make_runner(cfg, method_of(cfg), data, encoder)
        return lambda: run_round(state, data.available, run_clients, cfg, torch.Generator(), data.num_examples)

    def step(classes: int, dim: int) -> Callable[[], object]:
        W = F.normalize(torch.randn(classes, dim), dim=1)
        return lambda: spread_(W, torch.arange(classes), SpreadConfig(), 1.0, torch.Generator())

    return {
        "round of 10 clients": whole_round(10),
        "round of 100 clients": whole_round(100),
        "round of 1,000 clients": whole_round(1000),
        "eq. (6), 1,000 × 32": step(1000, 32),
        "eq. (6), 4,000 × 64": step(4000, 64),
    }


def measure(threads: int, seconds: float) -> dict[str, float]:
    """Median milliseconds of each case."""
    torch.set_num_threads(threads or os.cpu_count() or 1)
    found = {}
    for name, call in cases().items():
        call()
        times, end = list[float](), time.perf_counter() + seconds
        while time.perf_counter() < end or len(times) < 5:
            started = time.perf_counter()
            call()
            times.append(time.perf_counter() - started)
        found[name] = 1000 * statistics.median(times)
    return found


@contextmanager
def beside(count: int) -> Iterator[None]:
    """So many processes that never rest."""
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def run(threads: int, policy: str, seconds: float) -> dict[str, float]:
    own = [sys.executable, __file__, "--own", str(threads), "--seconds", str(seconds)]
    done = subprocess.run(own, env=os.environ | {"OMP_WAIT_POLICY": policy}, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.5, help="for each case")
    parser.add_argument("--own", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.own is not None:
        print(json.dumps(measure(args.own, args.seconds)))
        return
    cores = os.cpu_count() or 1
    print(f"{cores} cores, load {os.getloadavg()[0]:.1f} before\n")
    names = [f"{threads or cores} thread{'s' if (threads or cores) > 1 else ''}, {how}" for threads, how in SETTINGS]
    for others in (0, 1, cores):
        with beside(others):
            columns = [run(threads, policy, args.seconds) for threads, policy in SETTINGS]
        print(f"beside {others} other processes | " + " | ".join(names))
        for case in columns[0]:
            best = min(column[case] for column in columns)
            cells = [f"{column[case]:.2f} ({column[case] / best:.1f})" for column in columns]
            print(f"{case} | " + " | ".join(cells))
        print(flush=True)


if __name__ == "__main__":
    main()
