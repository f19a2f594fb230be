"""Every measure that a model has is in the catalogue, and on the page about run folders."""

import json
import re
from pathlib import Path

import pytest

import fedaws
from fedaws import Config
from fedaws.evaluate.catalogue import BOOKKEEPING, CATALOGUE, measure_of, measures_in

DOCS = Path(__file__).parents[2] / "docs"


def test_a_run_writes_no_column_that_the_catalogue_does_not_know(tiny: Config, tmp_path: Path) -> None:
    fedaws.train(config=tiny, folder=tmp_path)
    row = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
    assert row.keys() <= CATALOGUE.keys() | BOOKKEEPING


def test_every_measure_says_what_it_is() -> None:
    for key, measure in CATALOGUE.items():
        assert measure.key == key
        assert measure.title
        assert measure.note.endswith(".")
        assert measure.short
        assert measure.better in ("higher", "lower")
        assert not measure.own
        assert not measure.bounds or measure.bounds in CATALOGUE


def test_every_column_stands_on_the_page_about_run_folders() -> None:
    names = set(re.findall(r"`([@\w]+)`", (DOCS / "run-folder.md").read_text(encoding="utf-8")))
    written = {key for key in CATALOGUE if key != "error" and "@" not in key} | BOOKKEEPING
    assert written <= names


def test_a_measure_of_ones_own_keeps_its_name_and_comes_last() -> None:
    assert measures_in(["mine", "psp@1", "round", "loss"]) == ["psp@1", "loss", "mine"]
    assert measure_of("mine").own
    assert measure_of("mine").better is None


@pytest.mark.parametrize("key", sorted(BOOKKEEPING))
def test_what_a_clock_or_a_server_counts_is_no_measure(key: str) -> None:
    assert measures_in([key]) == []
