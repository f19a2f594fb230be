"""The pages that benchmarks write are made from their data."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import fedaws
from fedaws import config
from fedaws.core.methods import feduv
from fedaws.data.sources.xc_text import read_text
from fedaws.experiments.fingerprint import fingerprint, same
from fedaws.sparse import SparseRows, from_lists

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))
NAMES = (
    "audit",
    "beyond",
    "canaries",
    "choosing",
    "competitors",
    "cooccurrence",
    "digits",
    "methods",
    "participation",
    "unlearning",
    "weights",
)
MODULES = {name: importlib.import_module(name) for name in NAMES}
family = MODULES["code-family"] = importlib.import_module("code_family")
MODULES["private-curves"] = importlib.import_module("private_curves")
MODULES["private-rows"] = importlib.import_module("private_rows")
grouped = importlib.import_module("grouped")
theft = importlib.import_module("private_row_theft")
people = MODULES["people"] = importlib.import_module("strangers")
sys.path.remove(str(ROOT / "benchmarks"))

competitors, methods = MODULES["competitors"], MODULES["methods"]


def test_the_demos_figures_are_of_code_that_still_computes_the_same() -> None:
    """Fails where a change of the code changes results: python benchmarks/digits.py makes them again."""
    published = json.loads((ROOT / "docs/results/digits.json").read_text(encoding="utf-8"))["fingerprints"]
    for method, found in published.items():
        assert same(found, fingerprint(config.load("digits").with_(method=method))), method


def test_the_grid_of_weights_is_of_code_that_still_computes_the_same() -> None:
    published = json.loads((ROOT / "docs/results/weights.json").read_text(encoding="utf-8"))["cells"]
    for step, k, weight in MODULES["weights"].cells():
        cell = published.get(MODULES["weights"].name_of(step, k, weight))
        assert cell is None or same(cell["fingerprint"], fingerprint(MODULES["weights"].configured(step, k, weight)))


def test_trained_and_fixed_rows_are_of_code_that_still_computes_the_same() -> None:
    published = json.loads((ROOT / "docs/results/code-family.json").read_text(encoding="utf-8"))["sets"]
    for name, found in published.items():
        for row, cells in found.items():
            for cell in cells.values():
                stamp = cell.get("fingerprint")
                assert not stamp or cell.get("stale") or same(stamp, fingerprint(family.configured(name, row))), row


def test_trained_and_fixed_rows_had_the_same_step_sizes_to_choose_from() -> None:
    published = json.loads((ROOT / "docs/results/code-family.json").read_text(encoding="utf-8"))["sets"]
    for name, found in published.items():
        tried = [cell["tries"] for cells in found.values() for cell in cells.values() if family.whole(cell)]
        assert all([each["settings"] for each in tries] == list(family.RECIPES[name].steps) for tries in tried), name


@pytest.mark.parametrize("name", MODULES)
def test_a_committed_page_is_made_from_its_data(name: str) -> None:
    place = ROOT / "docs/results" / name
    results = json.loads(place.with_suffix(".json").read_text(encoding="utf-8"))
    assert place.with_suffix(".md").read_text(encoding="utf-8") == MODULES[name].page(results)


def test_the_page_of_stolen_private_rows_is_made_from_the_tries() -> None:
    place = ROOT / "docs/results" / theft.NAME
    found = json.loads(place.with_suffix(".json").read_text(encoding="utf-8"))
    noisy = theft.noisy_lines(found["tries"], found["digits"])
    assert place.with_suffix(".md").read_text(encoding="utf-8") == theft.page(theft.lines_of(found["tries"]), noisy)


def test_what_competitors_are_given_is_what_the_set_has(tmp_path: Path) -> None:
    x = SparseRows(torch.tensor([2, 0, 1]), torch.tensor([0.5, 1.0, 3.0]), torch.tensor([0, 2, 3]), width=4)
    competitors.write_rows(tmp_path / "train.txt", x, from_lists([[1, 4], [0]], width=5))
    assert (tmp_path / "train.txt").read_text() == "2 4 5\n1,4 0:1 2:0.5\n0 1:3\n"
    assert read_text(tmp_path / "train.txt").labels.width == 5


@pytest.mark.parametrize("name", ["digits", "omniglot"])
def test_what_two_methods_share_is_tried_alike(name: str) -> None:
    where = methods.SETS[name]
    tries = {label: methods.tries_of(row, where) for label, row in methods.ROWS.items() if where.fits(row)}
    assert {len(each) for each in tries.values()} == {where.tries}
    steps = {label: [settings.split()[0] for settings in each] for label, each in tries.items()}
    assert all(each == steps["fedaws, nearest"] for each in steps.values())


def test_even_draws_leave_no_choice_out() -> None:
    space = {"a": ["1", "2", "3"], "b": ["4", "5"]}
    draws = methods.evenly(space, 4)
    assert len(draws) == 4
    assert {draw["a"] for draw in draws} == {"1", "2", "3"}
    assert sorted(draw["b"] for draw in draws) == ["4", "4", "5", "5"]


def test_a_killed_cell_goes_on_where_it_was() -> None:
    asked = []

    def run(tried: str, seed: int, best: dict[str, Any] | None) -> dict[str, Any]:
        asked.append((tried, seed))
        return {"precision@1": 0.5 if tried == "b" else 0.1}

    cell: dict[str, Any] = {"tries": [{"settings": "a", "precision@1": 0.2}], "seeds": []}
    steps = methods.fill(cell, ["a", "b"], run, "precision@1")
    next(steps)
    next(steps)
    for _ in methods.fill(cell, ["a", "b"], run, "precision@1"):
        pass
    assert asked == [("b", 0), ("b", 0), ("b", 1), ("b", 2)]
    assert len(cell["seeds"]) == 3


def test_cells_that_were_not_run_again_stay_on_the_page(tmp_path: Path) -> None:
    old, new = {"tries": [], "seeds": [1]}, {"tries": [], "seeds": [2]}
    (tmp_path / "digits").mkdir()
    (tmp_path / "digits" / "fixed.json").write_text(json.dumps(new))
    found = methods.collect(
        tmp_path,
        {
            "sets": {"digits": {"fixed": old, "softmax": old}, "delicious": {"fixed": old}},
            "made_with": {"delicious": "elsewhere"},
        },
    )
    assert found["sets"] == {"digits": {"fixed": new, "softmax": old}, "delicious": {"fixed": old}}
    assert found["made_with"]["delicious"] == "elsewhere"
    assert found["zero_shot"] == {}


def parts(_: bool = False) -> Any:
    """Classes 0, 2, 3 of one group and 1, 4 of another; two training images and one test image of each."""
    y = torch.arange(5)
    x = y.to(torch.uint8).view(5, 1, 1, 1).expand(5, 1, 2, 2)
    return grouped.Parts(torch.cat([x, x]), torch.cat([y, y]), x, y, torch.tensor([0, 1, 0, 0, 1]))


def test_the_last_class_of_each_group_has_no_client_and_is_tested() -> None:
    data = grouped.one_left_out(parts, tuning=False)
    assert data.num_examples.tolist() == [2, 2, 2, 0, 0]
    assert data.y_test.tolist() == [3, 4]


def test_in_tuning_nothing_of_the_last_class_is_seen() -> None:
    data = grouped.one_left_out(parts, tuning=True)
    assert data.num_examples.tolist() == [2, 0, 0, 0, 0]
    assert data.y_test.tolist() == [1, 2, 1, 2]  # training images, two of each


def test_features_have_the_group_and_the_class_if_it_has_a_client() -> None:
    features = grouped.class_features(torch.tensor([0, 0, 0, 0]), torch.tensor([True, False, True, True]))
    assert features.tolist() == [[0.5, 1, 0, 0, 0], [0.5, 0, 0, 0, 0], [0.5, 0, 0, 1, 0], [0.5, 0, 0, 0, 1]]


def test_a_class_without_a_client_gets_the_mean_row_of_its_group() -> None:
    W = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.6, 0.8]])
    rows = grouped.group_means(W, torch.tensor([0, 0, 0, 1]), torch.tensor([True, True, False, True]))
    torch.testing.assert_close(rows, torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5**0.5, 0.5**0.5], [0.6, 0.8]]))


def test_zero_shot_counts_among_the_tested_among_all_and_by_group() -> None:
    # Examples of classes 1 and 2; the first is nearest to class 0 of its own group, the second to its own row.
    W = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
    z = torch.tensor([[1.0, 0.1], [0.0, 1.0]])
    shares = grouped.zero_shot(z, W, torch.tensor([1, 2]), torch.tensor([0, 0, 1]))
    assert shares == {"tested": 1.0, "all": 0.5, "group": 1.0}


def test_omniglot_is_read_from_the_publishers_folders(tmp_path: Path) -> None:
    for alphabet, character, drawer, ink in (("Greek", 1, 2, 0), ("Greek", 2, 1, 255), ("Latin", 1, 20, 255)):
        place = tmp_path / "images_background" / alphabet / f"character0{character}"
        place.mkdir(parents=True)
        Image.new("1", (105, 105), ink).save(place / f"0001_{drawer:02}.png")
    arrays = grouped.from_folder(tmp_path)
    assert arrays["x"].shape == (3, 28, 28)
    assert arrays["x"][:, 0, 0].tolist() == [255, 0, 0]  # ink is what is counted
    assert arrays["y"].tolist() == [0, 1, 2]
    assert arrays["drawer"].tolist() == [1, 0, 19]
    assert arrays["alphabet"].tolist() == ["Greek", "Greek", "Latin"]


def test_every_method_draws_what_it_shares_alike_and_begins_with_the_sets_own() -> None:
    for number in range(1, 8):
        draws = [people.drawn(method, number) for method in people.METHODS if method != "feduv"]
        for key in people.SHARED:
            assert len({str(draw[key]) for draw in draws}) == 1
    assert people.drawn("softmax", 0) == {}


def test_test_people_never_train_nor_choose_and_held_out_people_never_train(monkeypatch: pytest.MonkeyPatch) -> None:
    y = np.repeat(np.arange(12), 8)
    x = y[:, None].astype(np.float32)
    tested, mirrored = np.arange(96) % 8 == 0, np.arange(96) % 8 == 1
    groups = (np.arange(12), (np.array([0, 5, 7]),))
    few = people.People(x, y, tested, tuple("abcdefghijkl"), *groups, mirrored)
    monkeypatch.setitem(people.SETS, "few", people.Set("", lambda: few, fedaws.Config(), 1, 1, 1, 1))
    all_of_them = set("abcdefghijkl")
    for fold in (0, 1, 2, None):
        data = people.federation("few", 0, fold)
        assert data.test_strangers.names == ("a", "f", "h")
        chosen = set() if fold is None else set(data.strangers.names)
        assert len(chosen) == (0 if fold is None else 3)
        assert set(data.class_names) == all_of_them - {"a", "f", "h"} - chosen
        assert float(data.x.mean()) == pytest.approx(0, abs=1e-5)  # centred by those who train alone
        assert len(data.x) == 7 * len(data.class_names)  # mirrored examples train
        assert len(data.test_strangers.x) == 7 * 3  # and nobody is compared by them


def test_examples_told_by_directions_have_unit_variance_among_those_who_train() -> None:
    x = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32) @ np.diag([1, 10, 100]).astype(np.float32)
    trained = np.arange(60) < 40
    y = np.zeros(60, np.int64)
    all_of_them = people.People(x, y, y > 0, ("a",), np.arange(1), (), y > 0, directions=2)
    told = people._told_by_sums(all_of_them, trained)[trained]
    np.testing.assert_allclose(16 * told.T @ told / 40, np.eye(2), atol=1e-4)


@pytest.mark.parametrize("classes", [10, 100, 983, 1623])
@pytest.mark.parametrize("length", [15, 31, 63])
def test_a_short_codes_words_are_as_far_apart_as_it_says(length: int, classes: int) -> None:
    bits, distance = family.code_of(length, classes)
    assert 2**bits >= classes
    W = family.codewords(torch.randn(classes, length, generator=torch.Generator().manual_seed(0)))
    differing = length * (1 - W @ W.T) / 2
    assert round(float(differing.fill_diagonal_(length).min())) >= distance


def test_a_code_that_feduv_has_is_feduvs_and_another_is_made_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.randn(20, 127, generator=torch.Generator().manual_seed(0))
    wanted, (bits, distance, field) = feduv.codewords(rows), feduv.CODES[127]
    assert torch.equal(family.codewords(rows), wanted)
    monkeypatch.delitem(feduv.CODES, 127)
    monkeypatch.setitem(family.CODES, 127, (field, ((bits, distance),)))
    assert torch.equal(family.codewords(rows), wanted)


def test_rows_are_spread_once_for_all_tries_of_a_seed() -> None:
    asked = []

    def start(rows: torch.Tensor) -> torch.Tensor:
        asked.append(len(rows))
        return rows + 1

    first = family._once(("digits", 2, 0), start, torch.zeros(3, 2))
    first.zero_()  # what a run does to its rows is not seen by the next
    assert torch.equal(family._once(("digits", 2, 0), start, torch.zeros(3, 2)), torch.ones(3, 2))
    assert asked == [3]


def family_cell(tried: float, seeds: list[float], ridge: float, lda: float) -> dict[str, Any]:
    steps = {"ridge": {"0.1": ridge, "1.0": 0.0}, "lda": {"0.1": lda, "1.0": 0.0}}
    tries = [{"settings": "a=1", "precision@1": tried, "last_steps": steps}, {"settings": "a=2", "failed": "why"}]
    return {"tries": tries, "seeds": [{"precision@1": p, "last_step": {"ridge": p, "lda": p + 0.1}} for p in seeds]}


def test_trained_rows_are_compared_with_the_fixed_ones_that_held_out_rows_prefer() -> None:
    cells = {
        "fixed": {"64": family_cell(0.5, [0.4, 0.4, 0.4], 0.5, 0.6)},
        "fixed-spread": {
            "64": family_cell(0.4, [0.5, 0.5, 0.5], 0.7, 0.6)
        },  # better on test rows, which choose nothing
        "feduv": {"64": family_cell(0.3, [0.1, 0.1, 0.1], 0.1, 0.1)},
        "fedaws": {"64": family_cell(0.6, [0.6, 0.6, 0.6], 0.6, 0.7)},
    }
    assert family.gain(cells, 64, after=False) == pytest.approx(20)  # on `fixed`
    assert family.gain(cells, 64, after=True) == pytest.approx(20)  # 70 by lda, on the 50 of `fixed-spread` by ridge
    assert family.gain(cells, 128, after=False) is None
    cells["feduv"]["64"]["seeds"].pop()
    assert family.gain(cells, 64, after=False) is None  # a hole
