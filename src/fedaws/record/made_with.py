"""What a run is made with: versions and machine."""

import json
import os
import platform
import re
import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedaws.files import write_text

MADE_WITH = "made_with.json"

_QUIETLY: Any = {"capture_output": True, "text": True, "timeout": 10}


def note_versions(folder: Path) -> None:
    """Write them beside the run, when it starts or goes on."""
    write_text(folder / MADE_WITH, json.dumps(made_with()) + "\n")


@cache
def made_with() -> dict[str, str]:
    """Versions of what decides the numbers, and the machine, which decides the time."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists() and (name := re.search(r"model name\s*:\s*(.+)", info.read_text(encoding="utf-8"))):
        cpu = name[1].strip()
    return {
        "fedaws": version("fedaws"),
        **_commit(),
        "torch": version("torch"),
        "python": platform.python_version(),
        "machine": f"{cpu}, {os.cpu_count()} cores",
    }


def _commit() -> dict[str, str]:
    """The commit that last changed this package, where it lies in a repository; with + if it was changed since."""
    here = Path(__file__).parents[1]
    git = ["git", "--no-optional-locks", "-C", str(here)]
    try:
        last = subprocess.run([*git, "log", "-1", "--format=%h", "--abbrev=12", "--", "."], check=True, **_QUIETLY)
        changed = subprocess.run([*git, "status", "--porcelain", "--", "."], check=True, **_QUIETLY)
    except (OSError, subprocess.SubprocessError):  # no git, or no repository
        return {}
    commit = last.stdout.strip()
    return {"commit": commit + ("+" if changed.stdout.strip() else "")} if commit else {}
