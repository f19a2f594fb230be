"""The run folder: what it keeps, what it forgets, what it refuses."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import fedaws
from fedaws import Config
from fedaws.record.facts import Facts
from fedaws.record.files import write_tensors
from fedaws.record.folder import RunFolder
from fedaws.record.state import read_state, rows_file
from fedaws.types import Memory, ServerState
from helpers import refusal

FACTS = Facts(example_shape=(2,), example_dtype="float32")


def state(round_num: int = 0, **memories: Memory) -> ServerState:
    theta = {"a": torch.full((3, 2), float(round_num)), "b": torch.zeros(3)}
    return ServerState(round_num, theta, torch.eye(4, 3) * (round_num + 1), loss=0.25, **memories)  # type: ignore[arg-type]


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    run = RunFolder(tmp_path / "run")
    run.create(Config())
    return run


def save(folder: RunFolder, at: ServerState) -> None:
    folder.save_checkpoint(at, FACTS.model_copy(update={"round": at.round_num, "loss": at.loss}))


# --- configuration --------------------------------------------------------------------------------------------------


def test_the_configuration_comes_back(tmp_path: Path, tiny: Config) -> None:
    RunFolder(tmp_path).create(tiny)
    assert RunFolder(tmp_path).config() == tiny


def test_a_folder_that_holds_a_run_is_not_started_again(folder: RunFolder) -> None:
    message = refusal(lambda: folder.create(Config()))
    assert "already holds a run" in message
    assert "--resume" in message


def test_a_folder_with_other_files_may_be_used(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    RunFolder(tmp_path).create(Config())
    assert RunFolder(tmp_path).started


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    assert "is not a run folder" in refusal(RunFolder(tmp_path).config)


# --- metrics --------------------------------------------------------------------------------------------------------


def test_rows_come_back_in_order(folder: RunFolder) -> None:
    rows = [{"round": r, "loss": 1 / (r + 1)} for r in range(3)]
    for row in rows:
        folder.append_metrics(row)
    assert folder.metrics() == rows
    assert folder.metrics(up_to=1) == rows[:2]


def test_a_line_cut_short_by_a_crash_is_left_out(folder: RunFolder) -> None:
    folder.append_metrics({"round": 1})
    with folder.metrics_file.open("a") as file:
        file.write('{"round": 2, "lo')
    assert folder.metrics() == [{"round": 1}]


@pytest.mark.parametrize("line", ["5", "[]", "{}", '{"round": "two"}', "\x00\x00"])
def test_a_line_that_is_no_row_is_left_out(folder: RunFolder, line: str) -> None:
    folder.metrics_file.write_text(line + "\n")
    assert folder.metrics(up_to=9) == []


def test_rewinding_forgets_the_rows_after_a_round(folder: RunFolder) -> None:
    for r in (1, 2, 3):
        folder.append_metrics({"round": r})
    assert folder.rewind_metrics(2) == [{"round": 1}, {"round": 2}]
    folder.append_metrics({"round": 3, "again": True})
    lines = folder.metrics_file.read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"round": 1}, {"round": 2}, {"round": 3, "again": True}]


def test_metrics_that_were_never_written_are_none(tmp_path: Path) -> None:
    assert RunFolder(tmp_path).metrics() == []


def test_every_column_and_every_file_is_documented(tiny: Config, tmp_path: Path) -> None:
    run = fedaws.train(config=tiny, folder=tmp_path)
    page = (Path(__file__).parents[2] / "docs/run-folder.md").read_text()
    columns = {re.sub("@[35]", "@1", name) for name in run.metrics[-1]}
    assert [name for name in columns if f"`{name}`" not in page] == []
    assert [path.name for path in tmp_path.iterdir() if f"`{path.name}" not in page] == []
    details = json.loads((tmp_path / "details.json").read_text())
    assert [name for name in details if f"`{name}`" not in page] == []


# --- checkpoints ----------------------------------------------------------------------------------------------------


def test_a_resumed_state_is_on_the_device_of_the_run(folder: RunFolder) -> None:
    memory = {"a": torch.zeros(3, 2), "b": torch.zeros(3)}
    save(folder, state(3, optimizer=memory))
    # "meta" stands in for a GPU: a device that every machine has, and that files are not read to.
    start = state(optimizer=memory)
    theta = {name: t.to("meta") for name, t in start.theta.items()}
    found = folder.load_checkpoint(replace(start, theta=theta, W=start.W.to("meta")))
    assert found is not None
    resumed, _ = found
    tensors = [resumed.W, *resumed.theta.values(), *resumed.optimizer.values()]
    assert {t.device.type for t in tensors} == {"meta"}
    assert resumed.round_num == 3


def test_there_is_no_checkpoint_at_first(folder: RunFolder) -> None:
    assert folder.load_checkpoint(state()) is None


def test_the_newest_checkpoint_comes_back_whole(folder: RunFolder) -> None:
    optimizer = {"m/a": torch.ones(3, 2), "m_power": torch.tensor(0.9)}
    save(folder, state(5))
    save(folder, state(7, optimizer=optimizer, row_optimizer={"m/W": torch.ones(4, 3)}))
    start = {"m/a": torch.zeros(3, 2), "m_power": torch.tensor(1.0)}
    found = folder.load_checkpoint(state(optimizer=start, row_optimizer={"m/W": torch.zeros(4, 3)}))
    assert found is not None
    loaded, facts = found
    assert (loaded.round_num, loaded.loss, facts.round) == (7, 0.25, 7)
    assert loaded.W.equal(torch.eye(4, 3) * 8)
    assert loaded.theta["a"].equal(torch.full((3, 2), 7.0))
    assert loaded.row_optimizer["m/W"].equal(torch.ones(4, 3))
    assert loaded.optimizer["m/a"].equal(torch.ones(3, 2))
    assert float(loaded.optimizer["m_power"]) == pytest.approx(0.9)


def test_the_two_newest_checkpoints_are_kept(folder: RunFolder) -> None:
    for r in (1, 2, 10, 9_999_999):
        save(folder, state(r))
    assert [path.stem for path in folder.checkpoints()] == ["round-00000010", "round-09999999"]


def test_when_the_newest_is_damaged_deleting_it_falls_back_on_the_one_before(folder: RunFolder) -> None:
    save(folder, state(1))
    save(folder, state(2))
    newest = folder.checkpoints()[-1]
    newest.write_bytes(newest.read_bytes()[:100])
    assert "delete it to fall back" in refusal(lambda: folder.load_checkpoint(state()))
    newest.unlink()
    found = folder.load_checkpoint(state())
    assert found is not None
    assert found[0].round_num == 1


BASE = state()


@pytest.mark.parametrize(
    ("other", "part"),
    [
        (replace(BASE, W=torch.eye(5, 3)), "'W' is torch.float32 (5, 3), wanted torch.float32 (4, 3)"),
        (replace(BASE, W=torch.eye(4, 3).double()), "'W' is torch.float64 (4, 3)"),
        (replace(BASE, theta={"a": BASE.theta["a"]}), "'theta/b' is missing"),
        (replace(BASE, theta={**BASE.theta, "c": torch.ones(1)}), "'theta/c' is torch.float32 (1,), wanted missing"),
        (replace(BASE, theta={**BASE.theta, "b": torch.zeros(2)}), "'theta/b' is torch.float32 (2,)"),
        (
            state(optimizer={"momentum/b": torch.zeros(2)}),
            "'optimizer/momentum/b' is torch.float32 (2,), wanted missing",
        ),
    ],
)
def test_a_checkpoint_of_another_model_is_refused(folder: RunFolder, other: ServerState, part: str) -> None:
    save(folder, other)
    message = refusal(lambda: folder.load_checkpoint(state()))
    assert "is of another run" in message
    assert part in message


@pytest.mark.parametrize("facts", [{}, [], {**FACTS.model_dump(), "round": -1}, {**FACTS.model_dump(), "round": "two"}])
def test_a_checkpoint_without_sound_facts_is_refused(folder: RunFolder, facts: dict[str, object]) -> None:
    path = folder.path / "checkpoints" / "round-00000001.safetensors"
    write_tensors(path, {"W": torch.eye(4, 3), "theta/a": torch.ones(3, 2), "theta/b": torch.zeros(3)}, facts)
    assert "its facts are wrong" in refusal(lambda: folder.load_checkpoint(state()))


# --- model ----------------------------------------------------------------------------------------------------------


def test_a_run_is_finished_once_its_model_is_there(folder: RunFolder) -> None:
    assert not folder.finished
    folder.save_model(state(3).theta, state(3).W, None, FACTS)
    assert folder.finished


def test_the_model_holds_what_it_is_given_and_its_facts(folder: RunFolder) -> None:
    folder.save_model(state(3).theta, state(3).W, None, FACTS)
    theta, W, facts, _ = folder.load_model()
    assert set(theta) == {"a", "b"}
    assert W.equal(torch.eye(4, 3) * 4)
    assert facts.example_shape == (2,)


def test_an_unfinished_run_gives_its_newest_checkpoint(folder: RunFolder) -> None:
    save(folder, state(1))
    save(folder, state(2))
    assert folder.load_model()[2].round == 2


def test_an_unfinished_run_gives_the_average_where_there_is_one(folder: RunFolder) -> None:
    save(folder, state(1, average={"a": torch.full((3, 2), 7.0), "b": torch.zeros(2)}))
    assert folder.load_model()[0]["a"].equal(torch.full((3, 2), 7.0))


def test_a_run_without_either_is_refused(folder: RunFolder) -> None:
    assert "no model and no checkpoint yet" in refusal(folder.load_model)


@pytest.mark.parametrize("tensors", [{"theta/a": torch.ones(2)}, {"W": torch.ones(3)}])
def test_a_model_without_a_class_matrix_is_refused(folder: RunFolder, tensors: dict[str, torch.Tensor]) -> None:
    write_tensors(folder.model_file, tensors, FACTS.model_dump())
    assert "no matrix W" in refusal(folder.load_model)


# --- checkpoints of several ranks -----------------------------------------------------------------------------------

WHOLE = torch.arange(14.0).view(7, 2)


def by_ranks(folder: RunFolder, world: int, count: int = 7) -> Path:
    """A checkpoint as so many ranks write it."""
    path = folder.checkpoint_file(3)
    facts = FACTS.model_copy(update={"round": 3, "ranks": world, "shared": {"W": count}}).model_dump(mode="json")
    for rank in range(world):
        rows = {"W": WHOLE[rank::world]}
        if rank:
            write_tensors(rows_file(path, rank, world), rows, facts)
        else:
            write_tensors(path, {"theta/a": torch.ones(2), **rows}, facts)
    return path


@pytest.mark.parametrize("writers", [1, 2, 3, 7])
@pytest.mark.parametrize("readers", [1, 2, 3])
def test_rows_come_back_to_any_number_of_ranks(folder: RunFolder, writers: int, readers: int) -> None:
    path = by_ranks(folder, writers)
    for rank in range(readers):
        tensors, _ = read_state(path, rank, readers)
        assert tensors["W"].equal(WHOLE[rank::readers])
        assert tensors["theta/a"].tolist() == [1, 1]
    assert folder.load_model().W.equal(WHOLE)


def test_rows_of_a_rank_that_are_gone_are_told(folder: RunFolder) -> None:
    path = by_ranks(folder, 3)
    rows_file(path, 2, 3).unlink()
    assert "2-of-3" in refusal(lambda: read_state(path))


def test_rows_that_do_not_fit_together_are_refused(folder: RunFolder) -> None:
    path = by_ranks(folder, 3, count=8)
    assert "do not fit together" in refusal(lambda: read_state(path))
    write_tensors(rows_file(by_ranks(folder, 2), 1, 2), {"W": torch.ones(3, 5)}, {})
    assert "do not fit together" in refusal(lambda: read_state(path))


@pytest.mark.parametrize("count", [10**12, 10**30, -1])
def test_numbers_of_rows_that_nobody_can_have_are_refused(folder: RunFolder, count: int) -> None:
    path = folder.checkpoint_file(3)
    facts = FACTS.model_copy(update={"round": 3, "shared": {"W": count}}).model_dump(mode="json")
    write_tensors(path, {"W": torch.ones(0, 2)}, facts)
    assert "is damaged" in refusal(lambda: read_state(path))


@pytest.mark.parametrize("number", [4, 10**30])
def test_a_class_that_was_never_there_cannot_be_forgotten(folder: RunFolder, number: int) -> None:
    folder.save_checkpoint(state(3), FACTS.model_copy(update={"round": 3, "forgotten": (number,)}))
    assert f"it has forgotten class {number} of 4" in refusal(lambda: folder.load_checkpoint(state()))


def test_rows_of_old_checkpoints_go_with_them(folder: RunFolder) -> None:
    path = by_ranks(folder, 2)
    for round_num in (4, 5):
        save(folder, state(round_num))
    assert not path.exists()
    assert not rows_file(path, 1, 2).exists()
