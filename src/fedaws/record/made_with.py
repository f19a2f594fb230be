"""What a run is made with: versions and machine."""

import json
import os
import platform
import re
from functools import cache
from importlib.metadata import version
from pathlib import Path

from fedaws.files import write_text

MADE_WITH = "made_with.json"


def note_versions(folder: Path) -> None:
    """Write them beside the run, when it starts or goes on."""
    write_text(folder / MADE_WITH, json.dumps(made_with()) + "\n")


@cache
def made_with() -> dict[str, str]:
    """Versions of what decides the numbers, and the machine, which decides the time."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists() and (found := re.search(r"model name\s*:\s*(.+)", info.read_text(encoding="utf-8"))):
        cpu = found[1].strip()
    return {
        "fedaws": version("fedaws"),
        "torch": version("torch"),
        "python": platform.python_version(),
        "machine": f"{cpu}, {os.cpu_count()} cores",
    }
