"""`fedaws enroll | verify | identify | remove | trials | export` as their users meet them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fedaws
from fedaws.evaluate.comparisons import comparisons
from fedaws.evaluate.error_rates import eer, frr_at_far
from fedaws.people.inputs import load_model, read_examples

Cli = Callable[..., Any]
Refused = Callable[..., str]
RNG = np.random.default_rng(0)
CENTRES = RNG.normal(size=(14, 12)).astype(np.float32)  # 8 people train, 6 are strangers


def examples(person: int, count: int, seed: int) -> np.ndarray:
    noise = np.random.default_rng([person, seed]).normal(size=(count, 12))
    return (CENTRES[person] + 0.3 * noise).astype(np.float32)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    x = np.concatenate([examples(person, 12, 0) for person in range(8)])
    fedaws.train(
        fedaws.from_arrays(x, np.repeat(np.arange(8), 12)),
        config=fedaws.Config().override(["train.rounds=30", "model.embedding_dim=8"]),
        folder=folder,
    )
    return folder


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Files of people 8 … 13, who took no part: first.npz to enrol, second.npz to test."""
    for person in range(8, 14):
        folder = tmp_path / f"p{person}"
        folder.mkdir()
        np.savez(folder / "first.npz", x=examples(person, 5, 1))
        np.savez(folder / "second.npz", x=examples(person, 5, 2))
    return tmp_path


def enrolled(cli: Cli, run: Path, place: Path, *people: int) -> Path:
    for person in people:
        result = cli("enroll", place / "people", f"p{person}", place / f"p{person}/first.npz", "-m", run)
        assert result.code == 0, result.err
    return place / "people"


def test_somebody_is_enrolled_verified_and_removed(cli: Cli, run: Path, place: Path) -> None:
    gallery = enrolled(cli, run, place, 8, 9)
    yes = cli("verify", gallery, "p8", place / "p8/second.npz", "-m", run, "-t", 0.7, "--json")
    told = json.loads(yes.out)
    assert (yes.code, told["accepted"], told["threshold"]) == (0, True, 0.7)
    assert told["score"] > 0.7
    removed = cli("remove", gallery, "p8", "--json")
    assert (removed.code, json.loads(removed.out)) == (0, {"removed": "p8", "people": 1})
    assert b"p8" not in gallery.read_bytes()


def test_a_rejection_is_exit_code_one(cli: Cli, run: Path, place: Path) -> None:
    gallery = enrolled(cli, run, place, 8, 9)
    no = cli("verify", gallery, "p8", place / "p9/second.npz", "-m", run, "-t", 0.9)
    assert (no.code, no.out.startswith("no: p8 scores"), no.err) == (1, True, "")
    nobody = cli("identify", gallery, place / "p12/second.npz", "-m", run, "-t", 0.99, "--json")
    assert (nobody.code, json.loads(nobody.out)["name"], nobody.err) == (1, None, "")


def test_somebody_is_found_among_the_enrolled(cli: Cli, run: Path, place: Path) -> None:
    gallery = enrolled(cli, run, place, 8, 9, 10)
    found = cli("identify", gallery, place / "p9/second.npz", "-m", run, "-t", 0.7, "--margin", 0.01, "--json")
    told = json.loads(found.out)
    assert (found.code, told["name"], told["nearest"][0]["name"]) == (0, "p9", "p9")


def test_more_examples_are_added(cli: Cli, run: Path, place: Path) -> None:
    gallery = enrolled(cli, run, place, 8)
    added = cli("enroll", gallery, "p8", place / "p8/second.npz", "-m", run, "--add", "--json")
    assert json.loads(added.out) == {"name": "p8", "examples": 10, "people": 1}


def test_mistakes_are_one_line_and_exit_code_two(refused: Refused, cli: Cli, run: Path, place: Path) -> None:
    gallery = enrolled(cli, run, place, 8)
    first = place / "p8/first.npz"
    assert "'p8' is enrolled already" in refused("enroll", gallery, "p8", first, "-m", run)
    assert "there is no threshold for 'p8'" in refused("verify", gallery, "p8", first, "-m", run)
    assert "'Eve' is not enrolled" in refused("verify", gallery, "Eve", first, "-m", run, "-t", 0.5)
    assert "'Eve' is not enrolled" in refused("remove", gallery, "Eve")
    assert "No such file" in refused("remove", place / "no", "Eve")
    assert "is not a run folder" in refused("enroll", gallery, "Eve", first, "-m", place)
    assert "neither an .npz nor a picture" in refused("enroll", gallery, "Eve", place / "a.txt", "-m", run)
    np.savez(place / "narrow.npz", x=np.zeros((2, 3), np.float32))
    assert "wanted [examples, 12]" in refused("enroll", gallery, "Eve", place / "narrow.npz", "-m", run)
    gallery.write_bytes(b"spoilt")
    assert "is no sound gallery" in refused("enroll", gallery, "Eve", first, "-m", run)
    assert gallery.read_bytes() == b"spoilt"


def test_trials_of_an_npz_are_the_comparisons_of_everybody(cli: Cli, run: Path, place: Path) -> None:
    x = np.concatenate([examples(person, 12, 3) for person in range(8, 14)])
    people = np.repeat(["p8", "p9", "p10", "p11", "p12", "p13"], 12)
    np.savez(place / "strangers.npz", x=x, y=people)
    result = cli("trials", run, place / "strangers.npz", "--far", 0.1, "--draws", 20, "--json")
    told = json.loads(result.out)
    found = comparisons(fedaws.load(run).embed(x).numpy(), people, enroll=5)
    assert (told["targets"], told["nontargets"]) == (42, 210)
    assert told["eer"]["value"] == eer(found.targets, found.nontargets)
    assert told["frr_at_far"]["value"] == frr_at_far(found.targets, found.nontargets, 0.1)
    assert told["threshold"]["far"]["value"] <= 0.1
    assert told["eer"]["low"] <= told["eer"]["value"] <= told["eer"]["high"]
    shown = cli("trials", run, place / "strangers.npz", "--draws", 20)
    assert "equal error rate" in shown.out


def trial_list(place: Path) -> Path:
    lines = [
        f"p{a}/first.npz p{b}/second.npz {'target' if a == b else 'nontarget'}"
        for a in range(8, 14)
        for b in range(8, 14)
    ]
    (place / "list.txt").write_text("\n".join(lines))
    return place / "list.txt"


def test_a_trial_list_is_scored_and_its_scores_measured_again(cli: Cli, run: Path, place: Path) -> None:
    listed = trial_list(place)
    first = cli("trials", run, listed, "--out", place / "scores.txt", "--draws", 10, "--json")
    again = cli("trials", place / "scores.txt", listed, "--draws", 10, "--json")
    assert (first.code, json.loads(first.out)) == (0, json.loads(again.out))
    model = fedaws.load(run)
    means = [model.embed(np.load(place / name)["x"]).mean(0) for name in ("p8/first.npz", "p9/second.npz")]
    cosine = float(means[0] @ means[1] / means[0].norm() / means[1].norm())
    words = next(line.split() for line in (place / "scores.txt").read_text().splitlines() if "p9/second" in line)
    assert (words[0], words[3]) == ("p8/first.npz", "nontarget")
    assert float(words[2]) == pytest.approx(cosine, abs=1e-5)


def test_lists_without_people_have_no_intervals(cli: Cli, place: Path) -> None:
    (place / "list.txt").write_text("a u1 target\na u2 nontarget\n")
    (place / "scores.txt").write_text("a u1 0.9\na u2 0.1\n")
    result = cli("trials", place / "scores.txt", place / "list.txt", "--json")
    assert json.loads(result.out)["eer"] == {"value": 0.0, "low": None, "high": None}
    assert "no intervals" in result.err


def test_refused_trials_of_a_list_write_no_scores(refused: Refused, run: Path, place: Path) -> None:
    told = refused("trials", run, trial_list(place), "--out", place / "scores.txt", "--far", 0.01)
    assert "far=0.01 cannot be measured on 30 nontargets" in told
    assert not (place / "scores.txt").exists()


def test_a_list_that_leads_out_of_its_folder_is_refused(refused: Refused, run: Path, place: Path) -> None:
    (place / "p8" / "list.txt").write_text("../p9/first.npz second.npz nontarget\nfirst.npz second.npz target\n")
    assert "leads out of" in refused("trials", run, place / "p8" / "list.txt")


def test_an_exported_model_serves_as_the_run_does(cli: Cli, run: Path, place: Path) -> None:
    x = np.concatenate([examples(person, 12, 3) for person in range(8, 14)])
    np.savez(place / "strangers.npz", x=x, y=np.repeat(np.arange(6), 12))
    measured = cli("trials", run, place / "strangers.npz", "--far", 0.1, "--draws", 20, "--json").out
    (place / "measured.json").write_text(measured)
    done = cli("export", run, "--out", place / "phone", "--thresholds", place / "measured.json", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["bytes"] == (place / "phone/encoder.onnx").stat().st_size
    gallery = enrolled(cli, run, place, 8, 9)
    np.savez(place / "one.npz", x=examples(8, 1, 4))
    yes = cli("verify", gallery, "p8", place / "one.npz", "-m", place / "phone", "--json")
    told = json.loads(yes.out)
    assert (yes.code, told["threshold"]) == (0, json.loads(measured)["threshold"]["threshold"])
    assert yes.err == ""


def test_asking_with_another_number_of_examples_than_was_measured_is_warned_of(
    cli: Cli, run: Path, place: Path
) -> None:
    x = np.concatenate([examples(person, 25, 3) for person in range(8, 14)])
    np.savez(place / "strangers.npz", x=x, y=np.repeat(np.arange(6), 25))
    measured = cli("trials", run, place / "strangers.npz", "--far", 0.1, "--ask", 5, "--draws", 20, "--json").out
    (place / "measured.json").write_text(measured)
    cli("export", run, "--out", place / "phone", "--thresholds", place / "measured.json")
    gallery = enrolled(cli, run, place, 8, 9)
    five = ("p8/second.npz", "-m", place / "phone")
    assert cli("verify", gallery, "p8", *five).err == ""
    np.savez(place / "two.npz", x=examples(8, 2, 4))
    for question in (("verify", gallery, "p8"), ("identify", gallery)):
        asked = cli(*question, place / "two.npz", "-m", place / "phone")
        assert asked.code == 0
        assert asked.err.startswith("warning: examples asked about at once: 2, and the threshold was measured with 5")
        assert asked.err.count("\n") == 1
        assert cli(*question, place / "two.npz", "-m", place / "phone", "-t", 0.5).err == ""  # nobody knows of this one


def test_what_is_asked_of_a_list_is_said_by_the_list(refused: Refused, run: Path, place: Path) -> None:
    assert "a list says itself what is asked about" in refused("trials", run, trial_list(place), "--ask", 2)
    assert "--ask 2 is for a threshold that is measured" in refused("export", run, "--out", place / "o", "--ask", 2)


def test_wrong_exports_are_refused(refused: Refused, run: Path, place: Path) -> None:
    assert "wanted int8" in refused("export", run, "--out", place / "phone", "--quantize", "int4")
    (place / "t.json").write_text('{"threshold": {"threshold": 7}}')
    told = refused("export", run, "--out", place / "phone", "--thresholds", place / "t.json")
    assert "threshold.threshold: got 7" in told
    assert not (place / "phone").exists()


def test_pictures_are_examples_of_a_model_of_pictures(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (12, 3, 8, 8), dtype=np.uint8)
    config = fedaws.Config().override(["train.rounds=1", "model.embedding_dim=4"])
    fedaws.train(fedaws.from_arrays(x, np.arange(12) % 3), config=config, folder=tmp_path / "run")
    Image.fromarray(x[0].transpose(1, 2, 0)).save(tmp_path / "a.png")
    np.savez(tmp_path / "b.npz", x=x[1])  # one alone
    model = load_model(tmp_path / "run")
    np.testing.assert_array_equal(read_examples([tmp_path / "a.png", tmp_path / "b.npz"], model), x[:2])
    np.testing.assert_array_equal(read_examples([tmp_path], model), x[:2])  # all of a folder


def test_a_picture_for_a_model_of_numbers_is_refused(refused: Refused, run: Path, place: Path) -> None:
    Image.new("RGB", (4, 4)).save(place / "a.png")
    told = refused("enroll", place / "people", "Eve", place / "a.png", "-m", run)
    assert "is a picture, the model takes float32 of shape (12,)" in told
