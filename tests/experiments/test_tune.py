"""`fedaws tune`: equal tries for every method, kept, and the same when the search was stopped."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fedaws.experiments.tune
from fedaws import Config, FedawsError
from fedaws.data import from_sparse
from fedaws.experiments.tune import Tries, combinations, grid, space_of, tune, tuning_page
from fedaws.sparse import from_lists

BASE = Config.model_validate(
    {"method": "fixed", "model": {"hidden": [8], "embedding_dim": 8}, "train": {"rounds": 3, "threads": 1}}
)


def trained(values: Callable[[Config], float]) -> Callable[..., Any]:
    """In place of training: what the configuration says."""

    class Run:
        def __init__(self, cfg: Config) -> None:
            self.metrics = [{"precision@1": values(cfg), "seconds": 1.0}]

    return lambda config, reporter: Run(config)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """The runs; longer ones are better up to 12 rounds, and so are more dimensions."""
    done: list[Config] = []

    def value(cfg: Config) -> float:
        done.append(cfg)
        return min(cfg.train.rounds, 12) / 100 + cfg.model.embedding_dim / 10_000

    monkeypatch.setattr(fedaws.experiments.tune, "train", trained(value))
    return done


def test_the_first_try_is_the_preset_and_every_try_is_on_held_out_training_rows(
    ran: list[Config], tmp_path: Path
) -> None:
    tune(BASE, 6, tmp_path / "fixed.jsonl", "precision@1")
    assert ran[0].model.embedding_dim == 8
    assert {cfg.data.validation for cfg in ran} == {0.2}


def test_the_best_gets_more_rounds_until_these_stop_paying(ran: list[Config], tmp_path: Path) -> None:
    found = tune(BASE, 6, tmp_path / "fixed.jsonl", "precision@1")
    assert [length["rounds"] for length in found["lengths"]] == [3, 6, 12, 24]  # 24 is no better than 12
    assert found["rounds"] == 12
    assert found["settings"][-1] == "train.rounds=12"


def test_all_methods_have_the_same_number_of_tries(ran: list[Config], tmp_path: Path) -> None:
    for method in ("fixed", "fedaws", "softmax"):
        tune(BASE.with_(method=method), 7, tmp_path / f"{method}.jsonl", "precision@1")
    for method in ("fixed", "fedaws", "softmax"):
        first = [cfg for cfg in ran if cfg.method == method and cfg.seed == 0 and cfg.train.rounds == 3]
        assert len({cfg.to_toml() for cfg in first}) == 7


def test_a_search_that_was_stopped_goes_on_with_the_same_tries(ran: list[Config], tmp_path: Path) -> None:
    whole = tune(BASE, 9, tmp_path / "whole.jsonl", "precision@1")
    lines = (tmp_path / "whole.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    cut = tmp_path / "cut.jsonl"
    cut.write_text("".join(lines[:5]) + lines[5][:20], encoding="utf-8")  # the sixth was cut short
    before = len(ran)
    assert tune(BASE, 9, cut, "precision@1") == whole
    assert len(ran) - before == len(lines) - 5
    assert len(Tries(cut).known) == len(lines)


def test_a_try_that_is_refused_or_diverges_is_kept_and_counts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def value(cfg: Config) -> float:
        if cfg.model.embedding_dim > 8:
            raise FedawsError("training diverged")
        return 0.5

    monkeypatch.setattr(fedaws.experiments.tune, "train", trained(value))
    found = tune(BASE, 6, tmp_path / "fixed.jsonl", "precision@1")
    errors = [json.loads(line)["error"] for line in (tmp_path / "fixed.jsonl").read_text().splitlines()]
    assert "training diverged" in errors
    assert found["values"] == [0.5, 0.5, 0.5]


def test_tries_of_other_settings_are_not_taken_for_these(ran: list[Config], tmp_path: Path) -> None:
    path = tmp_path / "fixed.jsonl"
    grid(BASE, [("clients.lr=0.1",)], [0], path, "precision@1")
    other = BASE.override(["train.rounds=5"])
    assert grid(other, [("clients.lr=0.1",)], [0], path, "precision@1")[0]["values"] == [0.0508]
    grid(other, [("clients.lr=0.1",)], [0], path, "precision@1")
    assert [cfg.train.rounds for cfg in ran] == [3, 5]


def test_a_grid_varies_the_given_keys_alone_with_the_given_seeds(ran: list[Config], tmp_path: Path) -> None:
    choices = combinations({"spread.weight": ["1", "10"], "model.hidden": ["[8]", "[4,4]"]})
    found = grid(BASE, choices, [3, 5], tmp_path / "fixed.jsonl", "precision@1")
    assert [one["settings"][0] for one in found] == ["spread.weight=1"] * 2 + ["spread.weight=10"] * 2
    assert all(one["values"] == [0.0308] * 2 for one in found)
    held_out = BASE.override(["data.validation=0.2", "train.evaluate_every=3", "train.checkpoint_every=3"])
    wanted = [held_out.override([*choice, f"seed={seed}"]) for choice in choices for seed in (3, 5)]
    assert ran == wanted  # and no run with more rounds


def test_what_is_held_out_is_what_the_settings_say(ran: list[Config], tmp_path: Path) -> None:
    grid(BASE.override(["data.validation=50"]), [("clients.lr=0.1",)], [0], tmp_path / "fixed.jsonl", "precision@1")
    assert ran[0].data.validation == 50


def test_the_command_tries_a_grid_and_says_how_much_there_is_to_run(cli: Callable[..., Any]) -> None:
    settings = ("-s", "train.rounds=2", "-s", "train.threads=1")
    refused = cli("tune", "digits", "--only", "spread.weight=1,10", "--only", "spread.margin=0.9,3", *settings)
    assert (refused.code, refused.out) == (2, "")
    assert "spread.margin: got 3" in refused.err
    command = ("tune", "digits", "--only", "spread.weight=1,10", "--seeds", "0,4", *settings)
    first = cli(*command, "--json")
    assert first.err.startswith("4 runs (choices × seeds × methods: 2 × 2 × 1)")
    assert first.err.count("the first run took") == 1
    found = json.loads(first.out)
    assert found["seeds"] == [0, 4]
    assert [one["settings"] for one in found["methods"]["fedaws"]] == [["spread.weight=1"], ["spread.weight=10"]]
    again = cli(*command)
    assert "the first run took" not in again.err  # nothing is run twice
    lines = [line for line in again.out.splitlines() if "fedaws" in line]
    mean = sum(found["methods"]["fedaws"][1]["values"]) / 2
    assert f"{100 * mean:.1f}" in lines[1]


def test_a_choice_that_is_refused_is_shown_with_the_reason(cli: Callable[..., Any]) -> None:
    done = cli("tune", "digits", "--only", "model.norm=weight,group", "-s", "train.rounds=2", "--json")
    good, bad = json.loads(done.out)["methods"]["fedaws"]
    assert good["values"][0] > 0
    assert bad["values"] == [None]
    assert "model.norm=group has no effect" in bad["errors"][0]


def test_what_is_varied_is_what_the_method_has() -> None:
    assert "clients.class_lr" not in space_of(BASE)  # nobody trains fixed rows
    assert "spread.weight" in space_of(BASE.with_(method="fedaws"))
    assert "clients.scale" in space_of(BASE.with_(method="softmax"))
    assert space_of(BASE, {"clients.per_round": ["2", "5"]})["clients.per_round"][1:] == [
        "clients.per_round=2",
        "clients.per_round=5",
    ]


def test_a_held_out_row_may_have_the_one_label_that_a_client_would_know() -> None:
    words, sets = from_lists([[i % 6] for i in range(40)], width=6), [[i % 4, (i + 1) % 4] for i in range(40)]
    data = [
        from_sparse(words, from_lists(sets, width=4), validation=0.25, held_out_labels=which)
        for which in ("one", "all")
    ]
    assert [part.y_test.counts.tolist() for part in data] == [[1] * 10, [2] * 10]


def test_the_command_tunes_writes_a_page_and_runs_nothing_twice(cli: Callable[..., Any]) -> None:
    command = ("tune", "digits", "--methods", "fixed", "--tries", "3", "-s", "train.rounds=2", "--json")
    first, again = cli(*command), cli(*command)
    assert (first.code, again.code) == (0, 0)
    assert json.loads(first.out) == json.loads(again.out)
    assert json.loads(first.out)["fixed"]["tries"] == 3
    assert first.err.startswith("12 to 21 runs of fixed")  # 3, 3 · 2 seeds more, 3 to 12 with more rounds
    assert "| `fixed` | 3 |" in Path("runs/tune/tuning.md").read_text(encoding="utf-8")


def test_a_mistake_is_told_before_anything_is_run(refused: Callable[..., str]) -> None:
    assert "wanted KEY=A,B" in refused("tune", "digits", "--vary", "clients.per_round")
    assert "wanted KEY=A,B" in refused("tune", "digits", "--only", "clients.per_round")
    assert "did you mean 'spread.weight'?" in refused("tune", "digits", "--only", "spread.wieght=1")
    assert "leave out --vary and --tries" in refused("tune", "digits", "--only", "spread.weight=1", "--tries", "3")
    assert "--seeds is for --only" in refused("tune", "digits", "--seeds", "2")
    assert "wanted a number of seeds" in refused("tune", "digits", "--only", "spread.weight=1", "--seeds", "x")
    assert "--measure loss" in refused("tune", "digits", "--measure", "loss")
    for content in ("[1]", '{"digits": 1}'):
        Path("tuning.json").write_text(content)
        assert "no results of a tuning" in refused("tune", "digits", "--out", ".")


def test_the_committed_page_is_made_from_its_data() -> None:
    place = Path(__file__).parents[2] / "docs/results/tuning.md"
    found = json.loads(place.with_suffix(".json").read_text(encoding="utf-8"))
    assert place.read_text(encoding="utf-8") == tuning_page(found)
    for preset, methods in found.items():
        for name, result in methods.items():
            tries = Tries(place.parent / "tuning" / preset / f"{name}.jsonl").known
            assert len(tries) == result["runs"]  # every try is there
