"""Many registered nodes, of which few are asked; `benchmarks/flower_size.py` has 10,000."""

import importlib
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from fedaws.flower.federation import read_federation
from flower_trial import Trial

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))
flower_size = importlib.import_module("flower_size")
sys.path.remove(str(ROOT / "benchmarks"))


def test_fifty_of_five_hundred_nodes_answer_by_a_few_threads() -> None:
    before = threading.active_count()
    found, grid = flower_size.serve(nodes=500, per_round=50, rounds=2)
    assert found["good replies of the last round"] == 50
    assert grid.most_threads - before <= 40  # 16, and those of the round before that are about to end
    assert grid.asked_for_all == 4  # which was quick


def test_who_is_online_is_asked_seldom_where_that_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer holds for thirty times what it took, here longer than the run."""
    monkeypatch.setattr("fedaws.flower.members._SELDOM", 3000)
    found, grid = flower_size.serve(nodes=20, per_round=5, rounds=4, latency=0.3)
    assert found["good replies of the last round"] == 5
    assert grid.asked_for_all == 2  # by the benchmark, and by the first round, which waits for everybody


def test_a_file_that_has_not_changed_is_not_read_again(trial: Callable[..., Trial]) -> None:
    path = trial(4).place.federation
    found = read_federation(path)
    assert found.refreshed() is found
    os.utime(path, ns=(1, 1))
    again = found.refreshed()
    assert again is not found
    assert again.members == found.members
    assert again.refreshed() is again
