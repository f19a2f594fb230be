"""Runs of one's own data, encoder, method and measures say what they are."""

import json
from pathlib import Path

import numpy as np
import pytest
from torch import nn

import fedaws
from fedaws import Config
from fedaws.record.files import read_tensors, write_tensors
from fedaws.record.folder import RunFolder
from fedaws.report.collect import collect
from report_pages import page_of, runs_of


def tell(folder: Path, **facts: object) -> None:
    """Change what a finished run says of itself."""
    path = RunFolder(folder).model_file
    tensors, text = read_tensors(path)
    write_tensors(path, tensors, json.loads(text) | facts)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data and encoder of one's own, everything else as it comes: the settings say digits and mlp."""
    folder = tmp_path_factory.mktemp("own") / "a"
    y = np.arange(60) % 3
    x = np.random.default_rng(0).normal(size=(60, 6)).astype(np.float32) + np.eye(6, dtype=np.float32)[y]
    cfg = Config().override(["train.rounds=2", "model.embedding_dim=4", "train.threads=1"])
    fedaws.train(fedaws.from_arrays(x, y, x, y), nn.Linear(6, 4), cfg, folder=folder)
    return folder


@pytest.fixture
def three(own: Path, tmp_path: Path) -> list[Path]:
    """The same run thrice."""
    folders = [tmp_path / "own" / name for name in "abc"]
    for folder in folders:
        RunFolder(folder).create(RunFolder(own).config())
        for name in ("metrics.jsonl", "details.json"):
            (folder / name).write_bytes((own / name).read_bytes())
        (folder / "model").mkdir()
        (folder / "model/model.safetensors").write_bytes((own / "model/model.safetensors").read_bytes())
    return folders


# --- data and encoder -----------------------------------------------------------------------------------------------


def test_own_data_and_encoder_are_not_called_digits_and_mlp(own: Path) -> None:
    text = page_of(own).text
    assert "Data of your own 3 classes · 2 rounds" in text
    assert "Data data of your own, 3 classes" in text
    assert "Encoder encoder of your own (Linear), 4 dimensions, 28 parameters" in text  # 6 · 4 weights and 4 biases
    assert "digits" not in text
    assert "mlp" not in text


def test_an_encoder_is_told_by_its_class_where_that_is_known(three: list[Path]) -> None:
    tell(three[0], encoder_name="CNN")
    assert "encoder of your own (CNN), 4 dimensions" in page_of(three[0]).text


def test_a_name_of_ones_own_is_the_title(three: list[Path]) -> None:
    path = three[0] / "config.toml"
    path.write_text(path.read_text().replace('name = "digits"', 'name = "neighbours"', 1))
    assert "neighbours 3 classes" in page_of(three[0]).text


def test_a_preset_on_other_data_is_not_called_by_its_own(tmp_path: Path) -> None:
    RunFolder(tmp_path).create(Config().override(["data.name=images", "data.root=faces"]))
    text = page_of(tmp_path).text
    assert text.startswith("images – fedaws report")


# --- methods --------------------------------------------------------------------------------------------------------


def test_three_methods_of_ones_own_with_the_same_settings_are_three_rows(three: list[Path]) -> None:
    for folder, role in zip(three, ["FedAwS", "uniformity", "linear loss"], strict=True):
        tell(folder, own_method=True, role=role)
    page = page_of(*three)
    assert [group.label for group in collect(three).groups] == [
        "fedaws (FedAwS)", "fedaws (uniformity)", "fedaws (linear loss)",
    ]  # fmt: skip
    assert "3 methods · 1 seed" in page.text
    assert "0, 0, 0" not in page.text
    assert "Please note" not in page.text


def test_runs_of_one_seed_and_the_same_settings_are_shown_one_by_one_and_said_to_be(three: list[Path]) -> None:
    found = collect(three)
    assert [group.label for group in found.groups] == ["fedaws (own/a)", "fedaws (own/b)", "fedaws (own/c)"]
    text = page_of(*three).text
    assert "3 runs have the method, settings and seed of another: each is shown by itself, without a mean" in text
    assert " ± " not in text


def test_a_comparison_made_twice_is_two_groups_of_seeds(tmp_path: Path) -> None:
    for name in ("first", "second"):
        runs_of(tmp_path / name, fedaws=[0.8, 0.9])
    seeds = [[run.config.seed for run in group.runs] for group in collect([tmp_path]).groups]
    assert seeds == [[0, 1], [0, 1]]


def test_a_run_of_ones_own_method_has_no_command(three: list[Path]) -> None:
    tell(three[0], own_method=True, own_data=False, own_encoder=False)
    text = page_of(three[0]).text
    assert "To run it again" not in text
    assert "with data, an encoder or a method that no configuration can name" in text


# --- what was tested on ---------------------------------------------------------------------------------------------


def test_training_accuracy_is_never_called_test_accuracy(three: list[Path]) -> None:
    tell(three[0], tested_on="training")
    text = page_of(three[0]).text
    assert " % of its own training examples (no test set was given)" in text
    assert "Share of its own training examples (no test set was given) whose best class is right." in text
    assert "Tested on 60 of its own training examples (no test set was given)" in text
    assert "test examples" not in text


def test_held_out_accuracy_is_called_so(three: list[Path]) -> None:
    tell(three[0], tested_on="held-out")
    text = page_of(three[0]).text
    assert " % of the held-out training examples (the test set was not used)" in text
    assert "60 held-out training examples" in text
    assert "test examples" not in text


def test_runs_that_were_tested_on_different_kinds_of_examples_are_said_to_be(three: list[Path]) -> None:
    tell(three[0], tested_on="training", role="one")
    tell(three[1], role="two")
    assert "not all runs were tested on the same kind of examples" in page_of(*three[:2]).text


# --- measures -------------------------------------------------------------------------------------------------------


def with_measure(folder: Path, values: dict[str, float]) -> None:
    (folder / "metrics.jsonl").write_text(json.dumps({"round": 2, "precision@1": 0.5, **values}) + "\n")


def test_a_measure_of_ones_own_has_a_column_and_a_chart(three: list[Path]) -> None:
    with_measure(three[0], {"eer": 0.0625, "replies": 3})
    page = page_of(three[0])
    assert "precision@1 largest cosine ρ eer rounds" in page.text
    assert "50.0 % – – 0.0625" in page.text
    assert "Measures of your own eer A measure of your own." in page.text
    charts = json.loads(page.data)["charts"]
    assert charts["eer"]["lines"][0]["y"] == [0.0625]
    assert "replies" not in charts


@pytest.mark.parametrize("key", ["__proto__", '"><script>alert(1)</script>', "constructor", ""])
def test_any_text_may_name_a_measure(three: list[Path], key: str) -> None:
    with_measure(three[0], {key: 1.0})
    page = page_of(three[0])
    assert len(page.all("script")) == 2


def test_very_many_measures_do_not_swell_the_page(three: list[Path]) -> None:
    with_measure(three[0], {f"m{number}": 1.0 for number in range(5000)})
    assert len(json.loads(page_of(three[0]).data)["charts"]) < 30


def test_runs_that_differ_in_an_option_of_their_method_are_told_apart_by_it(tmp_path: Path) -> None:
    for steps in (5, 9):
        cfg = Config().override(["method=fixed-spread", f"options.steps={steps}"])
        RunFolder(tmp_path / "runs" / str(steps)).create(cfg)
    RunFolder(tmp_path / "runs" / "usual").create(Config(method="fixed-spread"))
    labels = [group.label for group in collect([tmp_path / "runs"]).groups]
    assert labels == ["fixed-spread steps=5", "fixed-spread steps=9", "fixed-spread steps=none"]
    assert "options.steps none 5 9 none" in page_of(tmp_path / "runs").text  # default, and then run by run


def test_a_long_role_is_cut_with_a_mark_so_that_no_number_is_cut_unseen(three: list[Path]) -> None:
    tell(three[0], own_method=True, role="a" * 55 + " 0.01 on the server")
    (run, *_) = (run for group in collect(three[:1]).groups for run in group.runs)
    assert run.role == "a" * 55 + " 0.0" + "…"
    tell(three[0], role="b" * 60)
    (run, *_) = (run for group in collect(three[:1]).groups for run in group.runs)
    assert run.role == "b" * 60
