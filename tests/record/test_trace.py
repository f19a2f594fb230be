"""W along the way: enough to see the classes move, and small for any number of them."""

import json
from pathlib import Path

import pytest
import torch

import fedaws
from fedaws import Config, Reporter
from fedaws.record.files import read_tensors
from fedaws.record.folder import RunFolder
from fedaws.record.trace import trace_rounds, traced_classes
from fedaws.training.session import Interrupted


def test_few_rounds_are_all_kept() -> None:
    assert trace_rounds(5) == {0, 1, 2, 3, 4, 5}


@pytest.mark.parametrize("rounds", [1, 24, 25, 1500, 10**6])
def test_any_run_keeps_its_start_its_end_and_at_most_25_rounds(rounds: int) -> None:
    kept = trace_rounds(rounds)
    assert {0, rounds} <= kept <= set(range(rounds + 1))
    assert len(kept) <= 25


def test_the_sample_of_many_classes_is_decided_by_the_seed_alone() -> None:
    first, again, other = (traced_classes(17_913, 512, seed) for seed in (1, 1, 2))
    assert first.equal(again)
    assert not first.equal(other)
    assert first.unique().equal(first)
    assert int(first.max()) < 17_913


@pytest.mark.parametrize(("classes", "dim"), [(670_091, 512), (17_913, 64), (300, 100_000)])
def test_a_snapshot_is_never_above_a_quarter_of_a_megabyte_but_for_two_huge_rows(classes: int, dim: int) -> None:
    assert 4 * dim * len(traced_classes(classes, dim, 0)) <= max(2**18, 8 * dim)


def test_a_run_keeps_its_rows_as_they_start_and_end(tiny: Config, tmp_path: Path) -> None:
    run = fedaws.train(config=tiny, folder=tmp_path)
    files = RunFolder(tmp_path).traces()
    assert [int(path.stem[-8:]) for path in files] == sorted(trace_rounds(12))
    last, _ = read_tensors(files[-1])
    assert last["classes"].tolist() == [0, 1, 2, 3]
    assert last["rows"].equal(run.W)


def test_a_stopped_and_resumed_run_keeps_the_same_bits_along_the_way(tiny: Config, tmp_path: Path) -> None:
    fedaws.train(config=tiny, folder=tmp_path / "whole")
    seen: list[int] = []
    stop = Reporter(on_round=lambda done, loss: seen.append(done), should_stop=lambda: len(seen) == 7)
    with pytest.raises(Interrupted):
        fedaws.train(config=tiny, folder=tmp_path / "parts", reporter=stop)
    fedaws.train(config=tiny, folder=tmp_path / "parts", resume=True)
    whole, parts = (RunFolder(tmp_path / name).traces() for name in ("whole", "parts"))
    assert [path.name for path in whole] == [path.name for path in parts]
    for one, other in zip(whole, parts, strict=True):  # safetensors writes its header's words in any order
        rows = [read_tensors(path)[0]["rows"].view(torch.int32) for path in (one, other)]
        assert rows[0].equal(rows[1])
    details = [json.loads((tmp_path / name / "details.json").read_text()) for name in ("whole", "parts")]
    assert details[0] == details[1]


def test_the_time_of_a_round_adds_up_over_sittings(tiny: Config, tmp_path: Path) -> None:
    run = fedaws.train(config=tiny, folder=tmp_path)
    assert set(run.facts.parts) == {"clients", "evaluation", "records"}
    assert 0 < run.facts.parts["clients"] <= run.facts.seconds
    again = fedaws.train(config=tiny, folder=tmp_path, resume=True)
    assert again.facts.parts["clients"] == run.facts.parts["clients"]


def test_rows_that_are_not_finite_are_not_kept(tiny: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedaws.training.train.random_rows", lambda cfg, classes: torch.full((classes, 5), torch.nan))
    with pytest.raises(fedaws.FedawsError):
        fedaws.train(config=tiny, folder=tmp_path)
    assert RunFolder(tmp_path).traces() == []
