"""Digests of functions: the same in every process, others where the function is."""

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fedaws.core import losses
from fedaws.core.methods import method_of
from fedaws.core.optimizers import from_torch
from fedaws.record.functions import digests

HELPED = """
import torch
MARGIN = 0.5
def helper(x): return x * 2
def loss(g, w): return (helper(g) * w).sum(-1) - MARGIN
"""


def digest(value: Any) -> str:
    return digests({"it": value})["it"]


def made(source: str, name: str = "loss") -> Callable[..., Any]:
    """A function as a script has it."""
    here: dict[str, Any] = {"__name__": "__main__"}
    exec(source, here)
    return here[name]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("MARGIN = 0.5", "MARGIN = 0.7"),
        ("return x * 2", "return x * 3"),
        ("return x * 2", "return x + 2"),
        ("(g, w)", "(g, w, more=1)"),
    ],
)
def test_what_a_function_names_in_its_file_counts(before: str, after: str) -> None:
    assert digest(made(HELPED)) != digest(made(HELPED.replace(before, after)))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("import torch", "import torch\n\n# a remark\n\n"),
        ("def helper(x): return", 'def helper(x):\n    """Twice."""\n    return'),
        ("MARGIN = 0.5", "MARGIN = 0.5\nOTHER = 3"),
    ],
)
def test_lines_remarks_and_docstrings_do_not_count(before: str, after: str) -> None:
    assert digest(made(HELPED)) == digest(made(HELPED.replace(before, after)))


def test_what_it_captures_and_its_defaults_count() -> None:
    def scaled(factor: float) -> Callable[[float], float]:
        return lambda x: factor * x

    assert digest(scaled(2)) == digest(scaled(2)) != digest(scaled(3))
    assert digest(partial(F.normalize, dim=1)) != digest(partial(F.normalize, dim=0))
    slow, fast = (from_torch(partial(torch.optim.Adam, lr=lr)) for lr in (0.1, 0.2))
    assert digest(slow) != digest(fast)


def test_what_changes_as_it_is_called_does_not_count() -> None:
    seen: list[int] = []
    count = 0

    def counting(x: int) -> int:
        nonlocal count
        count += 1
        seen.append(x)
        return x

    before = digest(counting)
    counting(1)
    assert digest(counting) == before


def test_a_function_that_calls_itself_and_odd_values_have_a_digest() -> None:
    def falling(x: int) -> int:
        return falling(x - 1) if x else 0

    for value in (falling, torch.nn.Linear(1, 1), len, object(), [1], torch.optim.AdamW, losses.hinge_of_score(0.9)):
        assert digest(value) == digest(value)
    assert digest(losses.hinge_of_score(0.9)) != digest(losses.hinge_of_score(0.8))


def test_another_process_gives_the_same() -> None:
    code = HELPED + "def odd(x): return x in {'a', 'b', 'c', 1.5}\nfrom fedaws.record.functions import digests\n"
    code += "print(digests({'loss': loss, 'odd': odd}))"
    runs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(runs) == 1


def test_the_packages_own_methods_have_the_same_digest_twice() -> None:
    from fedaws import Config

    assert digest(method_of(Config())) == digest(method_of(Config()))
