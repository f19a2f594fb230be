"""The pages that benchmarks write are made from their data."""

import importlib
import json
import sys
from pathlib import Path

import pytest
import torch

from fedaws.data.sources.xc_text import read_text
from fedaws.sparse import SparseRows, from_lists

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))
NAMES = ("audit", "choosing", "competitors", "cooccurrence", "digits", "methods", "participation")
MODULES = {name: importlib.import_module(name) for name in NAMES}
sys.path.remove(str(ROOT / "benchmarks"))

competitors = MODULES["competitors"]


@pytest.mark.parametrize("name", MODULES)
def test_a_committed_page_is_made_from_its_data(name: str) -> None:
    place = ROOT / "docs/results" / name
    results = json.loads(place.with_suffix(".json").read_text(encoding="utf-8"))
    assert place.with_suffix(".md").read_text(encoding="utf-8") == MODULES[name].page(results)


def test_what_competitors_are_given_is_what_the_set_has(tmp_path: Path) -> None:
    x = SparseRows(torch.tensor([2, 0, 1]), torch.tensor([0.5, 1.0, 3.0]), torch.tensor([0, 2, 3]), width=4)
    competitors.write_rows(tmp_path / "train.txt", x, from_lists([[1, 4], [0]], width=5))
    assert (tmp_path / "train.txt").read_text() == "2 4 5\n1,4 0:1 2:0.5\n0 1:3\n"
    assert read_text(tmp_path / "train.txt").labels.width == 5


def test_what_two_methods_share_is_tried_alike() -> None:
    methods = MODULES["methods"]
    space = methods.SETS["digits"].space
    tries = {name: methods.tries_of(row, space) for name, row in methods.ROWS.items()}
    assert {len(each) for each in tries.values()} == {methods.TRIES}
    steps = {name: [settings.split()[0] for settings in each] for name, each in tries.items()}
    assert all(each == steps["fedaws, nearest"] for each in steps.values())
