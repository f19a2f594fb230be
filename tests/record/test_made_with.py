"""A run says what code made it."""

import re
from pathlib import Path
from typing import Any

import pytest

from fedaws.record import made_with as module


def test_a_checkout_tells_its_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    class Done:
        def __init__(self, stdout: str) -> None:
            self.stdout = stdout

    said = {"log": Done("0123456789ab\n"), "status": Done("")}
    monkeypatch.setattr("subprocess.run", lambda words, **_: said[words[4]])
    assert module._commit() == {"commit": "0123456789ab"}
    said["status"] = Done(" M src/fedaws/core/local.py\n")
    assert module._commit() == {"commit": "0123456789ab+"}
    said["log"] = Done("")  # installed into a folder of somebody else's repository
    assert module._commit() == {}


def test_without_git_there_is_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any, **__: Any) -> None:
        raise FileNotFoundError("git")

    monkeypatch.setattr("subprocess.run", missing)
    assert module._commit() == {}


@pytest.mark.skipif(not (Path(module.__file__).parents[3] / ".git").exists(), reason="no checkout")
def test_here_it_is_a_commit_or_nothing() -> None:
    assert re.fullmatch(r"([0-9a-f]{12}\+?)?", module._commit().get("commit", ""))
