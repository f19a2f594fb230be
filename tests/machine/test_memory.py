"""What is freed is kept for the next, until it is given back."""

import sys
from pathlib import Path

import numpy as np
import pytest

from fedaws.machine.memory import keep_freed_memory, return_freed_memory


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc")
def test_freed_memory_is_kept_until_it_is_given_back() -> None:
    if not keep_freed_memory():
        pytest.skip("no glibc")
    return_freed_memory()
    before = resident_mb()
    arrays = [np.ones(1 << 18) for _ in range(64)]  # 2 MB each
    last = np.ones(1 << 18)  # so that the heap does not end where they do
    del arrays
    assert resident_mb() > before + 100
    assert return_freed_memory()
    assert resident_mb() < before + 50
    assert last[0] == 1
