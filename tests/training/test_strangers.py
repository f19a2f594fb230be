"""Runs with strangers: measured by the round, chosen by, and never trained on."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import fedaws
from fedaws import Config, Reporter, Run
from fedaws.data import load_data
from fedaws.evaluate.comparisons import comparisons
from fedaws.evaluate.error_rates import eer
from fedaws.training.session import Interrupted
from helpers import refusal

SETTINGS = [
    "data.classes=10",
    "data.overlap=1",
    "data.strangers=3",
    "data.test_strangers=2",
    "data.enroll=3",
    "seed=2",
]
CHOOSING = [*SETTINGS, "train.stop_on=strangers", "train.evaluate_every=1", "train.rounds=12"]


def bits(run: Run) -> dict[str, list[int]]:
    return {name: t.view(torch.int32).flatten().tolist() for name, t in {"W": run.W, **run.theta}.items()}


def rows(folder: Path) -> list[dict[str, float]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]


def interrupted(cfg: Config, folder: Path, rounds: int) -> None:
    seen: list[int] = []
    stop = Reporter(on_round=lambda done, loss: seen.append(done), should_stop=lambda: len(seen) >= rounds)
    with pytest.raises(Interrupted):
        fedaws.train(config=cfg, folder=folder, resume=True, reporter=stop)


def eer_of(run: Run, part: str) -> float:
    strangers = run.strangers[part]  # type: ignore[index]
    found = comparisons(run.embed(strangers.x).numpy(), strangers.people.numpy(), enroll=3)
    return eer(found.targets, found.nontargets)


def test_strangers_are_measured_in_every_row_and_those_of_the_test_in_the_last_alone(tiny: Config) -> None:
    run = fedaws.train(config=tiny.override(SETTINGS))
    assert all("strangers_eer" in row for row in run.metrics)
    assert ["test_strangers_eer" in row for row in run.metrics] == [False, False, True]
    assert run.metrics[-1]["strangers_eer"] == pytest.approx(eer_of(run, "strangers"))
    assert run.metrics[-1]["test_strangers_eer"] == pytest.approx(eer_of(run, "test_strangers"))
    assert len(run.W) == 5


@pytest.mark.parametrize("method", ["fedaws", "fixed"])
@pytest.mark.parametrize("runner", ["serial", "pooled", "stacked"])
def test_no_runner_trains_on_strangers(tiny: Config, method: str, runner: str) -> None:
    # The same run on data that never had them: the classes that stay, as arrays.
    cfg = tiny.override([*SETTINGS, f"method={method}", f"train.runner={runner}"])
    made = load_data(cfg)
    alone = fedaws.from_arrays(made.x, made.y, made.x_test, made.y_test)
    without = cfg.override(["data.strangers=0", "data.test_strangers=0"])
    assert bits(fedaws.train(config=cfg)) == bits(fedaws.train(alone, config=without))


def test_the_model_that_is_kept_is_that_of_the_lowest_error_on_strangers(tiny: Config) -> None:
    cfg = tiny.override(CHOOSING)
    every = fedaws.train(config=cfg.override(["train.stop_on=none"])).metrics
    lowest = min(range(12), key=lambda i: every[i]["strangers_eer"])
    assert 0 < lowest < 11  # else this test shows nothing
    kept = fedaws.train(config=cfg)
    last = kept.metrics[-1]
    assert (last["round"], last["kept_round"], kept.facts.round) == (12, lowest + 1, lowest + 1)
    for key in ("strangers_eer", "precision@1", "max_cosine"):
        assert last[key] == every[lowest][key]
    assert eer_of(kept, "strangers") == pytest.approx(every[lowest]["strangers_eer"])
    assert kept.evaluate()["precision@1"] == last["precision@1"]


@pytest.mark.parametrize("more", [[], ["privacy.rows=private", "spread.regularizer=moments"], ["server.average=0.9"]])
def test_a_run_that_chooses_is_resumed_to_the_same_bits(tiny: Config, tmp_path: Path, more: list[str]) -> None:
    cfg = tiny.override([*CHOOSING, *more])
    whole = fedaws.train(config=cfg, folder=tmp_path / "whole")
    for rounds in (3, 4):
        interrupted(cfg, tmp_path / "parts", rounds)
    parts = fedaws.train(config=cfg, folder=tmp_path / "parts", resume=True)
    assert bits(parts) == bits(whole) == bits(fedaws.load(tmp_path / "parts"))
    assert rows(tmp_path / "parts") == rows(tmp_path / "whole")
    assert parts.facts.round == whole.facts.round


def test_after_patience_is_at_its_end_no_round_follows(tiny: Config, tmp_path: Path) -> None:
    cfg = tiny.override([*CHOOSING, "train.rounds=40", "train.patience=3"])
    run = fedaws.train(config=cfg, folder=tmp_path / "run")
    last = run.metrics[-1]
    assert last["round"] == last["kept_round"] + 3 < 40
    assert "test_strangers_eer" in last
    before = rows(tmp_path / "run")
    again = fedaws.train(config=cfg, folder=tmp_path / "run", resume=True)
    assert rows(tmp_path / "run") == before
    assert bits(again) == bits(run)


def test_a_run_that_stops_before_its_first_measurement_goes_on(tiny: Config, tmp_path: Path) -> None:
    cfg = tiny.override([*CHOOSING, "train.evaluate_every=4"])
    whole = fedaws.train(config=cfg)
    interrupted(cfg, tmp_path / "run", 2)
    assert bits(fedaws.train(config=cfg, folder=tmp_path / "run", resume=True)) == bits(whole)


def test_stopping_on_strangers_needs_some(tiny: Config) -> None:
    cfg = tiny.override(["train.stop_on=strangers"])
    assert "there are none; set data.strangers" in refusal(lambda: fedaws.train(config=cfg))


@pytest.mark.parametrize("last", ["train.enroll=1", "train.last_step=ridge"])
def test_stopping_on_strangers_is_refused_with_a_step_after_the_last_round(tiny: Config, last: str) -> None:
    cfg = tiny.override([*CHOOSING, last])
    assert "W is made anew after the last one" in refusal(lambda: fedaws.train(config=cfg))


@pytest.mark.parametrize("moves", ["clients.join=[[9, [1]]]", "clients.leave=[[9, [1]]]"])
def test_stopping_on_strangers_is_refused_where_clients_come_and_go(tiny: Config, tmp_path: Path, moves: str) -> None:
    cfg = tiny.override([*CHOOSING, moves])
    assert "none of those who have joined since" in refusal(lambda: fedaws.train(config=cfg, folder=tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_patience_without_stopping_is_refused(tiny: Config) -> None:
    line = refusal(lambda: tiny.override(["train.patience=3"]))
    assert "train.patience=3 has no effect on train.stop_on=none" in line


def test_settings_of_strangers_are_refused_for_data_that_are_given(tiny: Config) -> None:
    given = load_data(tiny)
    line = refusal(lambda: fedaws.train(given, config=tiny.override(["data.strangers=2"])))
    assert "give it to fedaws.from_arrays" in line


def test_a_stranger_of_too_few_examples_is_refused_before_training(tiny: Config) -> None:
    cfg = tiny.override([*SETTINGS, "data.enroll=10"])
    assert "has 10 examples, and 10 enrol a stranger; lower data.enroll" in refusal(lambda: fedaws.train(config=cfg))


def test_the_progress_line_has_the_strangers_error(cli: Callable[..., Any], tiny_toml: Path) -> None:
    settings = [word for setting in CHOOSING for word in ("-s", setting)]
    done = cli("train", tiny_toml, *settings, "--out", "run", "--json")
    assert done.code == 0
    told = json.loads(done.out)
    assert f"EER {100 * told['strangers_eer']:.1f} %  kept: round {told['kept_round']}" in done.err
    page = Path("run/report.html").read_text()
    assert "Strangers: equal error rate" in page
    assert "test strangers&#39; EER" in page


def test_methods_are_compared_by_their_strangers_too(cli: Callable[..., Any], tiny_toml: Path) -> None:
    settings = [word for setting in SETTINGS for word in ("-s", setting)]
    done = cli("compare", tiny_toml, *settings, "--methods", "fedaws,fixed", "--seeds", "2", "--json")
    assert {"strangers_eer", "test_strangers_eer"} <= json.loads(done.out)["methods"]["fixed"].keys()
    assert "EER" in cli("compare", tiny_toml, *settings, "--methods", "fedaws,fixed", "--out", "b").out
