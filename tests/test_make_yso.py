"""A folder of subjects becomes examples with sets of labels, alike on every machine."""

import importlib
import math
import sys
from pathlib import Path

import pytest

BENCHMARKS = str(Path(__file__).parents[1] / "benchmarks")
sys.path.append(BENCHMARKS)
make_yso = importlib.import_module("make_yso")
sys.path.remove(BENCHMARKS)


def test_a_title_has_the_subjects_in_whose_files_it_stands(tmp_path: Path) -> None:
    (tmp_path / "p1-en.txt").write_text("http://yso/p1 cats\ncats\nCats and dogs\n\nCats  alone\n", encoding="utf-8")
    (tmp_path / "p2-en.txt").write_text("http://yso/p2 dogs\ndogs\nCats and dogs\n", encoding="utf-8")
    assert make_yso.titles_of(tmp_path) == {"Cats and dogs": {"p1-en", "p2-en"}, "Cats alone": {"p1-en"}}


def test_the_split_of_a_title_depends_on_nothing_but_the_title(tmp_path: Path) -> None:
    titles = {f"word number {i}": {"a"} for i in range(60)}
    extra = {f"other {i}": {"a"} for i in range(60)}
    make_yso.make(titles, tmp_path / "few", pool=False)
    make_yso.make(titles | extra, tmp_path / "many", pool=False)
    for part in ("train", "test"):
        few, many = (set((tmp_path / where / f"{part}.txt").read_text().splitlines()[1:]) for where in ("few", "many"))
        assert few
        assert few <= many


def test_a_label_needs_ten_training_titles(tmp_path: Path) -> None:
    train = [title for i in range(100) if make_yso.digest(title := f"title {i}") % 5]
    subjects = {title: {"often"} | ({"seldom"} if i < 9 else set()) for i, title in enumerate(train)}
    subjects[next(f"title {i}" for i in range(100) if make_yso.digest(f"title {i}") % 5 == 0)] = {"often"}
    make_yso.make(subjects, tmp_path, pool=False)
    assert (tmp_path / "train.txt").read_text().splitlines()[0] == f"{len(train)} {make_yso.BUCKETS} 1"


def test_features_are_tf_idf_of_the_training_titles() -> None:
    """`rare` stands in 5 of 10, `common` in all: its weight is log(10/10) = 0."""
    titles = [f"common rare x{i}" if i < 5 else f"common y{i}" for i in range(10)]
    width, features = make_yso.pooled_features(titles)
    assert width == 2
    assert features("rare common") == {1: pytest.approx(1.0)}


def test_hashed_features_need_no_other_title() -> None:
    weights = make_yso.hashed_features("one two two")
    one, two = (weights[make_yso.digest(word) % make_yso.BUCKETS] for word in ("one", "two"))
    assert two / one == pytest.approx(1 + math.log(2))
    assert one**2 + two**2 == pytest.approx(1)
