"""Somebody leaves a run's folder."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedaws
from fedaws import Config, FederatedData, Reporter
from fedaws.people import inputs
from fedaws.people.forget import forget
from fedaws.people.predict import predict, read_file
from fedaws.record.files import read_tensors, write_tensors
from fedaws.record.folder import RunFolder
from fedaws.record.state import rows_file
from fedaws.training.session import Interrupted
from helpers import dense, refusal

NAMES = ("Ada", "Bo", "Cy", "Dee")


@pytest.fixture
def people() -> FederatedData:
    y = torch.arange(4).repeat_interleave(10)
    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(0)) + y[:, None]
    return fedaws.from_arrays(x, y, validation=0.25, class_names=NAMES)


def trained(tiny: Config, people: FederatedData, folder: Path, stop: int = 99, **more: Any) -> fedaws.Run:
    done = list[int]()
    quiet = Reporter(
        on_round=lambda number, _: done.append(number),
        should_stop=lambda: len(done) >= stop,
        on_warning=lambda message: None,
    )
    return fedaws.train(people, config=tiny, folder=folder, reporter=quiet, **more)


def bytes_of(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


@pytest.mark.parametrize("settings", [[], ["defence.anchor=0.3"]], ids=["plain", "anchored"])
def test_nothing_of_them_is_left_in_the_folder(
    tiny: Config, people: FederatedData, tmp_path: Path, settings: list[str]
) -> None:
    folder = tmp_path / "run"
    trained(tiny.override(settings), people, folder)
    held = list(folder.rglob("*.safetensors"))
    rows = [row for path in held for row in templates(path, 2)]
    assert len(rows) > 10
    assert b"Cy" in bytes_of(folder)
    assert forget(folder, "Cy").number == 2
    left = bytes_of(folder)
    assert b"Cy" not in left
    assert not any(row.numpy().tobytes() in left for row in rows)
    assert b"Dee" in left


def templates(path: Path, number: int) -> list[torch.Tensor]:
    """The vectors of one class in a file of tensors."""
    tensors, _ = read_tensors(path)
    if "rows" in tensors:
        return [tensors["rows"][number]]
    return [t[number] for name, t in tensors.items() if name in ("W", "best/W") or name.startswith("spread/")]


def test_the_best_round_so_far_forgets_them_too(tiny: Config, tmp_path: Path) -> None:
    apart = ["data.classes=10", "data.overlap=1", "data.strangers=3", "data.enroll=3", "seed=2"]
    cfg = tiny.override([*apart, "train.stop_on=strangers", "train.evaluate_every=1"])
    folder, done = tmp_path / "run", list[int]()
    stop = Reporter(on_round=lambda number, _: done.append(number), should_stop=lambda: len(done) >= 6)
    with pytest.raises(Interrupted):
        fedaws.train(config=cfg, folder=folder, reporter=stop)
    held = [row for path in folder.rglob("*.safetensors") for row in templates(path, 2)]
    forget(folder, "2")
    left = bytes_of(folder)
    assert not any(row.numpy().tobytes() in left for row in held)
    run = fedaws.train(config=cfg, folder=folder, resume=True)
    assert run.metrics[-1]["kept_round"] < 6  # one that had them
    assert run.W[2].eq(0).all()
    assert 2 not in run.identify(dense(run.strangers["strangers"].x), 3).classes


def test_checkpoints_of_several_ranks_forget_them_too(tiny: Config, people: FederatedData, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(Interrupted):
        trained(tiny, people, folder, stop=6)
    copy(folder, tmp_path / "one")
    row = read_tensors(RunFolder(folder).checkpoints()[-1])[0]["W"][2].numpy().tobytes()
    for path in RunFolder(folder).checkpoints():
        split(path, 3)
    assert len(list((folder / "checkpoints" / "ranks").iterdir())) == 4
    assert [forget(each, "Cy").number for each in (folder, tmp_path / "one")] == [2, 2]
    assert row not in bytes_of(folder)
    assert bytes_of(folder / "checkpoints") == bytes_of(tmp_path / "one" / "checkpoints")
    assert trained(tiny, people, folder, resume=True).W[2].eq(0).all()


def split(path: Path, world: int) -> None:
    """A checkpoint as so many ranks would have written it."""
    tensors, text = read_tensors(path)
    facts = {**json.loads(text), "ranks": world, "shared": {"W": len(tensors["W"])}}
    for rank in range(1, world):
        write_tensors(rows_file(path, rank, world), {"W": tensors["W"][rank::world]}, facts)
    write_tensors(path, {**tensors, "W": tensors["W"][::world]}, facts)


def test_they_are_never_answered_again_and_the_others_are(tiny: Config, people: FederatedData, tmp_path: Path) -> None:
    before = trained(tiny, people, tmp_path / "run")
    forget(tmp_path / "run", "Cy")
    run = fedaws.load(tmp_path / "run")
    assert 2 not in run.identify(dense(people.x_test), 3).classes
    assert run.class_names == ("Ada", "Bo", "", "Dee")
    assert run.facts.forgotten == (2,)
    assert run.W[[0, 1, 3]].equal(before.W[[0, 1, 3]])
    assert run.W.equal(before.without_class("Cy").W)


def test_a_stopped_run_goes_on_without_them(tiny: Config, people: FederatedData, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(Interrupted):
        trained(tiny, people, folder, stop=6)
    forget(folder, "Cy")
    resumed = trained(tiny, people, folder, resume=True)
    left = trained(tiny.override(["clients.leave=[[6, [2]]]"]), people, tmp_path / "left")
    assert resumed.W.equal(left.W)
    assert RunFolder(folder).load_model().facts.forgotten == (2,)
    assert resumed.class_names == ("Ada", "Bo", "", "Dee")


def test_a_stopped_run_goes_on_without_their_examples_too(tiny: Config, people: FederatedData, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(Interrupted):
        trained(tiny, people, folder, stop=6)
    forget(folder, "Cy")
    stay, test = people.y != 2, people.y_test != 2
    fewer = fedaws.from_arrays(
        dense(people.x)[stay], people.y[stay], dense(people.x_test)[test], dense(people.y_test)[test],
        class_names=NAMES, num_classes=4,
    )  # fmt: skip
    with_all = tmp_path / "copy"
    copy(folder, with_all)
    fewer = FederatedData(**{**vars(fewer), "tested_on": "held-out"})
    assert trained(tiny, fewer, folder, resume=True).W.equal(trained(tiny, people, with_all, resume=True).W)


def copy(source: Path, target: Path) -> None:
    for path in filter(Path.is_file, source.rglob("*")):
        place = target / path.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(path.read_bytes())


def test_an_interrupted_removal_is_finished_by_another(
    tiny: Config, people: FederatedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, written = tmp_path / "run", list[Path]()
    trained(tiny, people, folder)

    def killed(path: Path, *args: Any) -> None:
        written.append(path)
        if path.name.startswith("round-"):
            raise KeyboardInterrupt
        write_tensors(path, *args)

    monkeypatch.setattr("fedaws.people.forget.write_tensors", killed)
    with pytest.raises(KeyboardInterrupt):
        forget(folder, "Cy")
    monkeypatch.setattr("fedaws.people.forget.write_tensors", write_tensors)
    forget(folder, "Cy")
    assert b"Cy" not in bytes_of(folder)


def test_who_is_not_there_is_refused_in_one_line(tiny: Config, people: FederatedData, tmp_path: Path) -> None:
    trained(tiny, people, tmp_path / "run")
    assert "nobody is called 'Eve'" in refusal(lambda: forget(tmp_path / "run", "Eve"))
    forget(tmp_path / "run", "Cy")
    assert "nobody is called 'Cy'" in refusal(lambda: forget(tmp_path / "run", "Cy"))
    assert "nobody is called ''" in refusal(lambda: forget(tmp_path / "run", ""))
    assert "is not a run folder" in refusal(lambda: forget(tmp_path, "Cy"))


def test_an_oracle_does_not_go_on_without_somebody(tiny: Config, people: FederatedData, tmp_path: Path) -> None:
    softmax = tiny.override(["method=softmax"])
    with pytest.raises(Interrupted):
        trained(softmax, people, tmp_path / "run", stop=6)
    forget(tmp_path / "run", "Cy")
    assert "cannot go on" in refusal(lambda: trained(softmax, people, tmp_path / "run", resume=True))


def test_the_command_removes_them_from_run_and_gallery(
    cli: Callable[..., Any], tiny: Config, people: FederatedData, tmp_path: Path
) -> None:
    run, gallery = trained(tiny, people, tmp_path / "run"), tmp_path / "people.safetensors"
    found = fedaws.Gallery(gallery, run)
    for name in ("Cy", "Eve"):
        found.enroll(name, np.asarray(dense(people.x)[20:25]))
    result = cli("forget", tmp_path / "run", "Cy", "--gallery", gallery, "--json")
    told = json.loads(result.out)
    assert (result.code, told["forgotten"], told["class"], told["galleries"]) == (0, "Cy", 2, {str(gallery): 1})
    assert "Cy" not in fedaws.Gallery(gallery, fedaws.load(tmp_path / "run"))


def test_predictions_and_trials_leave_out_who_is_gone(tiny: Config, tmp_path: Path) -> None:
    cfg = tiny.override(["clients.leave=[[6, [2]]]", "data.examples_per_class=40"])
    fedaws.train(config=cfg, folder=tmp_path / "run", reporter=Reporter(on_warning=lambda message: None))
    run = fedaws.load(tmp_path / "run")
    np.savez(tmp_path / "x.npz", x=np.ones((2, 6), np.float32))
    for guesses in predict(run, read_file(run, tmp_path / "x.npz"), k=4):
        assert sorted(guess.name for guess in guesses) == ["0", "1", "3"]
    assert sorted(set(inputs.tested_people(run, 1, 1)[1])) == ["0", "1", "3"]


def test_rows_in_half_precision_forget_them_wherever_they_are(
    tiny: Config, people: FederatedData, tmp_path: Path
) -> None:
    run = trained(tiny, people, tmp_path / "run")
    inside = run.save_half_rows(tmp_path / "run" / "rows")
    outside = fedaws.load(tmp_path / "run").save_half_rows(tmp_path / "rows")
    gone = run.save_half_rows(tmp_path / "deleted")
    gone.unlink()
    others = trained(tiny.override(["seed=7"]), people, tmp_path / "other").save_half_rows(tmp_path / "again")
    run.save_half_rows(others)
    fedaws.load(tmp_path / "other").save_half_rows(others)  # in the same place, of another run
    untouched = others.read_bytes()
    (tmp_path / "run").rename(tmp_path / "moved")
    inside = tmp_path / "moved" / "rows"
    row = run.W[2].half().numpy().tobytes()
    assert row in inside.read_bytes()
    assert row in outside.read_bytes()
    found = forget(tmp_path / "moved", "Cy")
    assert {inside, outside} <= set(found.files)
    for path in (inside, outside):
        assert row not in path.read_bytes()
        assert run.W[3].half().numpy().tobytes() in path.read_bytes()
        small = fedaws.load(tmp_path / "moved", rows=path)
        assert 2 not in small.identify(dense(people.x_test), 3).classes
    assert others.read_bytes() == untouched


def test_a_copy_of_rows_with_somebody_who_has_left_is_refused(
    tiny: Config, people: FederatedData, tmp_path: Path
) -> None:
    path = trained(tiny, people, tmp_path / "run").save_half_rows(tmp_path / "rows")
    (tmp_path / "copy").write_bytes(path.read_bytes())
    forget(tmp_path / "run", "Cy")
    told = refusal(lambda: fedaws.load(tmp_path / "run", rows=tmp_path / "copy"))
    assert "has the row of somebody who has left" in told


def test_a_note_of_rows_that_was_cut_short_is_passed_over(tiny: Config, people: FederatedData, tmp_path: Path) -> None:
    path = trained(tiny, people, tmp_path / "run").save_half_rows(tmp_path / "rows")
    with (tmp_path / "run" / "half_rows.jsonl").open("a") as file:
        file.write('{"path": "/some')
    assert path in forget(tmp_path / "run", "Cy").files
