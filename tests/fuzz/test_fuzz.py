"""No damaged file gives a traceback, a hang, a crash or a blow-up: a value, or one clear line.

The seed is fixed, so that a failure comes again. `make slow` tries 50,000; $FEDAWS_FUZZ_CASES and $FEDAWS_FUZZ_SEED
set other numbers.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fuzz.readers import READERS

CASES = int(os.environ.get("FEDAWS_FUZZ_CASES", "50_000"))
SEED = int(os.environ.get("FEDAWS_FUZZ_SEED", "0"))
TESTS = Path(__file__).parents[1]


def troubles(folder: Path, cases: int, *names: str) -> list[dict[str, Any]]:
    """What was neither read nor refused in one line; a case that ends the process among them."""
    command = [sys.executable, "-m", "fuzz.worker", str(folder), str(SEED), str(cases), *names]
    paths = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    found = [line for line in lines if "trouble" in line]
    if done.returncode:
        last = lines[-1] if lines else {}
        found.append(last | {"trouble": f"ended with {done.returncode}: {done.stderr[-1500:]}"})
    elif len(lines) - len(found) != cases * len(names):
        found.append({"trouble": f"{len(lines) - len(found)} cases were tried"})
    return found


def test_a_few_hundred_damaged_files_are_read_or_refused_in_one_line(tmp_path: Path) -> None:
    assert troubles(tmp_path, 15, *READERS) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_damaged_files_are_read_or_refused_in_one_line(tmp_path: Path, name: str) -> None:
    assert troubles(tmp_path, -(-CASES // len(READERS)), name) == []
