"""Timing as ratios within one run: the variants take turns, and the best of several rounds of turns counts."""

import time
from collections.abc import Callable


def best_times(variants: dict[str, Callable[[], object]], turns: int = 7) -> dict[str, float]:
    """Seconds of the fastest call of each variant; they alternate, so that noise hits them alike."""
    best = dict.fromkeys(variants, float("inf"))
    for call in variants.values():
        call()  # warm-up
    for _ in range(turns):
        for name, call in variants.items():
            started = time.perf_counter()
            call()
            best[name] = min(best[name], time.perf_counter() - started)
    return best
