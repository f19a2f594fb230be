"""Timing as ratios within one run: the variants take turns, and the best of several rounds of turns counts."""

import re
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch

from fedaws.machine import blocks


def clock() -> float:
    """Wall seconds; with one thread the process's own CPU seconds, which other processes disturb less."""
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def best_times(
    variants: Mapping[str, Callable[[], object]], turns: int = 7, told: Mapping[str, Callable[[], float]] | None = None
) -> dict[str, float]:
    """Seconds of the fastest call of each variant; they alternate, so that noise hits them alike.

    Those of `told` give their seconds themselves.
    """
    calls = {name: partial(_timed, call) for name, call in variants.items()} | dict(told or {})
    best = dict.fromkeys(calls, float("inf"))
    for call in calls.values():
        call()  # warm-up
    for _ in range(turns):
        for name, call in calls.items():
            best[name] = min(best[name], call())
    return best


def _timed(call: Callable[[], object]) -> float:
    started = clock()
    call()
    return clock() - started


def peak_mb(reset: bool = False) -> float:
    """The most memory the process has held since the last reset, in MB (Linux)."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    (peak,) = re.findall(r"VmHWM:\s+(\d+)", status)
    return int(peak) / 1024


def bare_product(queries: torch.Tensor, W: torch.Tensor) -> None:
    """All scores of the queries, in tiles with a reused buffer: the fastest way to get them at all."""
    for rows in queries.split(1000):
        width = min(len(W), blocks.TILE // len(rows))
        buffer = torch.empty(len(rows) * width)
        for start in range(0, len(W), width):
            part = W[start : start + width]
            torch.mm(rows, part.T, out=buffer[: len(rows) * len(part)].view(len(rows), len(part)))
