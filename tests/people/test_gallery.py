"""People who took no part in training are enrolled by their examples, known again, rejected and removed."""

from pathlib import Path

import numpy as np
import pytest
import torch

import fedaws
from fedaws.device import DeviceWarning
from fedaws.evaluate.comparisons import comparisons
from fedaws.evaluate.error_rates import rates_at
from fedaws.people.digest import model_digest
from helpers import refusal
from people.conftest import Trained


def examples_of(trained: Trained, person: int, count: slice) -> np.ndarray:
    return trained.strangers[trained.whose == person][count]


@pytest.fixture
def gallery(trained: Trained, tmp_path: Path) -> fedaws.Gallery:
    made = fedaws.Gallery(tmp_path / "people.safetensors", trained.run)
    for person in (5, 6, 7):
        made.enroll(f"person {person}", examples_of(trained, person, slice(5)))
    return made


def test_a_person_is_the_mean_direction_of_the_runs_embeddings(trained: Trained, gallery: fedaws.Gallery) -> None:
    z = trained.run.embed(examples_of(trained, 6, slice(5))).mean(0)
    np.testing.assert_allclose(gallery.people["person 6"].vector, (z / z.norm()).numpy(), atol=1e-6)


def test_people_are_known_again_and_others_rejected(trained: Trained, gallery: fedaws.Gallery) -> None:
    own, other = examples_of(trained, 6, slice(5, 15)), examples_of(trained, 9, slice(5, 15))
    assert gallery.verify("person 6", own, threshold=0.8)
    assert gallery.identify(own, threshold=0.8) == "person 6"
    assert gallery.nearest(own)[0][0] == "person 6"
    limit = (gallery.score("person 6", own) + max(score for _, score in gallery.nearest(other))) / 2
    assert gallery.identify(other, threshold=limit) is None


def test_examples_of_two_people_do_not_hold_together(trained: Trained, gallery: fedaws.Gallery) -> None:
    mixed = np.concatenate([examples_of(trained, 8, slice(4)), trained.x_test[:1]])
    least = 0.9
    assert "do not hold together" in refusal(lambda: gallery.enroll("mixed", mixed, min_cohesion=least))
    assert len(gallery) == 3


def test_more_examples_and_removal(trained: Trained, gallery: fedaws.Gallery) -> None:
    assert gallery.add("person 5", examples_of(trained, 5, slice(5, 8))).count == 8
    gallery.remove("person 5")
    assert "person 5" not in gallery
    assert "is not enrolled" in refusal(lambda: gallery.verify("person 5", trained.x_test[:1], 0.5))


def test_a_gallery_of_another_run_is_refused(trained: Trained, gallery: fedaws.Gallery, tmp_path: Path) -> None:
    other = fedaws.train(trained.run.data, config=trained.run.config.override(["train.rounds=1"]))
    assert "enrol again" in refusal(lambda: fedaws.Gallery(tmp_path / "people.safetensors", other))


def test_the_same_model_from_its_folder_has_the_same_digest(trained: Trained) -> None:
    assert model_digest(fedaws.load(trained.folder)) == model_digest(trained.run)


def test_a_frozen_weight_is_part_of_the_digest(trained: Trained) -> None:
    run = fedaws.load(trained.folder)
    run.encoder.register_buffer("of the backbone", torch.zeros(1))
    before = model_digest(run)
    run.encoder.get_buffer("of the backbone").add_(1)
    assert len({before, model_digest(run), model_digest(trained.run)}) == 3


def test_a_threshold_is_measured_on_strangers(trained: Trained, gallery: fedaws.Gallery) -> None:
    got = gallery.threshold_for(trained.strangers, trained.whose, far=0.05, draws=50)
    found = comparisons(trained.run.embed(trained.strangers).numpy(), trained.whose, enroll=5)
    assert (got.far.value, got.frr.value) == rates_at(found.targets, found.nontargets, got.threshold)
    assert got.far.value <= 0.05
    assert got.people == 5
    told = refusal(lambda: gallery.threshold_for(trained.strangers, trained.whose, far=1e-6))
    assert "far=1e-06 cannot be measured on" in told


def test_thresholds_of_their_own_let_that_share_of_strangers_pass(trained: Trained, gallery: fedaws.Gallery) -> None:
    gallery.set_own_thresholds(trained.x_test, far=0.1)
    z = trained.run.embed(trained.x_test).numpy()
    for person in gallery.people.values():
        assert person.threshold is not None
        passing = np.mean(z @ person.vector >= person.threshold - 1e-6)
        assert 0.09 < passing <= 0.101 + 1 / len(z)


def test_wrong_examples_are_the_runs_own_refusal(trained: Trained, gallery: fedaws.Gallery) -> None:
    assert "does not take examples of shape (3,)" in refusal(lambda: gallery.enroll("Eve", np.zeros((2, 3))))


def test_a_measured_threshold_brings_its_number_of_examples_to_a_gallery(trained: Trained, tmp_path: Path) -> None:
    first = fedaws.Gallery(tmp_path / "people", trained.run)
    first.enroll("Ada", trained.strangers[trained.whose == 5][:5])
    measured = first.threshold_for(trained.strangers, trained.whose, far=0.05, ask=3, draws=5)
    assert measured.ask == 3
    gallery = fedaws.Gallery(tmp_path / "people", trained.run, measured)
    later = trained.strangers[trained.whose == 5][5:]
    gallery.verify("Ada", later[:3])
    with pytest.warns(DeviceWarning, match="measured with 3"):
        gallery.verify("Ada", later[:1])
    gallery.set_own_thresholds(trained.x_test, far=0.1)
    with pytest.warns(DeviceWarning, match="measured with 1"):
        gallery.verify("Ada", later[:3])
