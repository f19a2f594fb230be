"""Several methods and seeds side by side."""

import statistics
from pathlib import Path
from typing import Any

import pytest

import fedaws
from fedaws import Config, FedawsError, Reporter
from fedaws.experiments.compare import Comparison, compare, parse_methods
from fedaws.training.session import Interrupted


class Watch:
    """Makes a reporter for each run and notes which rounds are really trained; stops after some, if asked."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.trained: list[tuple[str, int]] = []
        self.stop_after = stop_after

    def __call__(self, one: Config) -> Reporter:
        return Reporter(
            on_round=lambda done, loss: self.trained.append((f"{one.method}-{one.seed}", done)),
            should_stop=lambda: len(self.trained) == self.stop_after,
        )


def side_by_side(cfg: Config, names: list[str], seeds: int, folder: Path, resume: bool, watch: Watch) -> Any:
    return compare(names, config=cfg, seeds=seeds, folder=folder, resume=resume, reporter=watch).histories


def test_every_method_runs_with_every_seed_from_the_configured_one_on(tiny: Config, tmp_path: Path) -> None:
    watch = Watch()
    histories = compare(
        ["fixed", "fedaws"], config=tiny.override(["seed=5"]), seeds=2, folder=tmp_path, reporter=watch
    ).histories
    assert {method: len(runs) for method, runs in histories.items()} == {"fixed": 2, "fedaws": 2}
    assert list(dict(watch.trained)) == ["fixed-5", "fixed-6", "fedaws-5", "fedaws-6"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "fedaws-seed5", "fedaws-seed6", "fixed-seed5", "fixed-seed6"
    ]  # fmt: skip


def test_each_run_is_the_run_that_train_would_give(tiny: Config, tmp_path: Path) -> None:
    histories = compare(["fixed"], config=tiny, seeds=2, folder=tmp_path, reporter=Watch()).histories
    alone = fedaws.train(config=tiny.override(["method=fixed", "seed=1"]))
    assert histories["fixed"][1][-1]["precision@1"] == alone.metrics[-1]["precision@1"]
    assert histories["fixed"][1][-1]["loss"] == alone.metrics[-1]["loss"]


def test_a_stopped_comparison_goes_on_where_it_was(tiny: Config, tmp_path: Path) -> None:
    whole = side_by_side(tiny, ["fixed", "fedaws"], 1, tmp_path / "whole", False, Watch())
    with pytest.raises(Interrupted):
        side_by_side(tiny, ["fixed", "fedaws"], 1, tmp_path / "parts", False, Watch(stop_after=12 + 7))
    watch = Watch()
    parts = side_by_side(tiny, ["fixed", "fedaws"], 1, tmp_path / "parts", True, watch)
    assert watch.trained == [("fedaws-0", r) for r in range(8, 13)]  # nothing of `fixed`, the rest of `fedaws`
    for method in ("fixed", "fedaws"):
        assert [without_seconds(row) for row in parts[method][0]] == [without_seconds(row) for row in whole[method][0]]


def without_seconds(row: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in row.items() if name != "seconds"}


def test_a_finished_comparison_is_only_read(tiny: Config, tmp_path: Path) -> None:
    first = side_by_side(tiny, ["fixed"], 2, tmp_path, False, Watch())
    watch = Watch()
    assert side_by_side(tiny, ["fixed"], 2, tmp_path, True, watch) == first
    assert watch.trained == []


def test_another_method_can_be_added_to_a_comparison(tiny: Config, tmp_path: Path) -> None:
    side_by_side(tiny, ["fixed"], 1, tmp_path, False, Watch())
    watch = Watch()
    side_by_side(tiny, ["fixed", "positive-only"], 1, tmp_path, True, watch)
    assert {run for run, _ in watch.trained} == {"positive-only-0"}


def test_a_mistake_in_the_last_run_shows_before_the_first_one_starts(tiny: Config, tmp_path: Path) -> None:
    cfg = tiny.override(["privacy.rows=private", "spread.regularizer=moments"])
    with pytest.raises(FedawsError, match="method=fixed keeps no row with its client"):
        side_by_side(cfg, ["fedaws", "fixed"], 1, tmp_path, False, Watch())
    assert not list(tmp_path.iterdir())


def test_seeds_beyond_the_largest_are_refused(tiny: Config, tmp_path: Path) -> None:
    with pytest.raises(FedawsError, match="seed: got 2147483648"):
        side_by_side(tiny.override([f"seed={2**31 - 1}"]), ["fixed"], 2, tmp_path, False, Watch())


# --- figures --------------------------------------------------------------------------------------------------------


def test_a_summary_has_mean_deviation_and_single_figures_of_the_last_round() -> None:
    last = (0.5, 0.7, 0.9)
    histories = {"fedaws": [[{"precision@1": 0.1}, {"precision@1": value, "round": 8}] for value in last]}
    summary = Comparison(histories).summary["fedaws"]
    assert set(summary) == {"precision@1"}
    assert summary["precision@1"]["mean"] == pytest.approx(0.7)
    assert summary["precision@1"]["std"] == pytest.approx(statistics.stdev(last)) == pytest.approx(0.2)
    assert summary["precision@1"]["runs"] == list(last)


def test_one_seed_has_no_deviation() -> None:
    assert Comparison({"fixed": [[{"loss": 2.0}]]}).summary["fixed"]["loss"] == {
        "mean": 2.0,
        "std": None,
        "runs": [2.0],
    }


@pytest.mark.parametrize("text", ["fedaws,fixed", " fedaws , fixed ,", "fedaws,fixed,fedaws"])
def test_methods_come_as_a_list_with_commas(text: str) -> None:
    assert parse_methods(text) == ["fedaws", "fixed"]


@pytest.mark.parametrize("text", ["fedaws,fedsgd", "", ","])
def test_unknown_methods_are_refused_with_the_known_ones(text: str) -> None:
    with pytest.raises(FedawsError, match=r"unknown method .* there are fedaws, positive-only, fixed"):
        parse_methods(text)
