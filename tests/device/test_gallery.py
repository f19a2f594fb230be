"""The gallery on embeddings: who is enrolled, who is rejected, who is gone; and a file that is never half."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import fedaws
from fedaws.device import DeviceError, DeviceWarning, Gallery
from fedaws.device.gallery_file import checked_name

DIGEST = "a" * 64
SOURCE = Path(fedaws.__file__).parents[1]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "people.safetensors"


@pytest.fixture
def gallery(path: Path) -> Gallery:
    """Ada on the first axis, Bo on the second, of three."""
    made = Gallery(path, DIGEST, 3)
    made.enroll("Ada", [[1.0, 0.0, 0.0]])
    made.enroll("Bo", [[0.0, 2.0, 0.0], [0.0, 1.0, 0.0]])
    return made


def refusal(action: Callable[[], object]) -> str:
    with pytest.raises(DeviceError) as refused:
        action()
    assert "\n" not in str(refused.value)
    return str(refused.value)


# --- enrolling --------------------------------------------------------------------------------------------------------


def test_a_person_is_the_direction_of_the_mean_of_unit_embeddings(path: Path) -> None:
    person = Gallery(path, DIGEST, 2).enroll("Ada", [[3.0, 0.0], [0.0, 0.5]], min_cohesion=-1)
    np.testing.assert_allclose(person.vector, [2**-0.5, 2**-0.5], rtol=1e-6)
    assert person.count == 2
    assert person.length == pytest.approx(2**-0.5)


@settings(max_examples=25)
@given(z=arrays(np.float64, (5, 3), elements=st.floats(-1, 1)).filter(lambda z: (np.abs(z).max(1) > 0.01).all()))
def test_adding_later_is_enrolling_together(tmp_path_factory: pytest.TempPathFactory, z: Any) -> None:
    z[:, 0] += 2.0  # so that they do not cancel
    folder = tmp_path_factory.mktemp("galleries")
    together = Gallery(folder / "together", DIGEST, 3).enroll("Ada", z, min_cohesion=-1)
    later = Gallery(folder / "later", DIGEST, 3)
    later.enroll("Ada", z[:2], min_cohesion=-1)
    person = later.add("Ada", z[2:], min_cohesion=-1)
    np.testing.assert_allclose(person.vector, together.vector, atol=1e-5)
    assert person.count == together.count
    assert person.length == pytest.approx(together.length, abs=1e-6)


def test_a_stranger_among_the_examples_is_refused_and_named(path: Path) -> None:
    gallery = Gallery(path, DIGEST, 3)
    told = refusal(
        lambda: gallery.enroll("Ada", [[1.0, 0.0, 0.0], [1.0, 0.1, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.1]], 0.2)
    )
    assert "example 2 has a mean cosine of 0.03 with the others, wanted 0.2 or more" in told  # (0 + 0 + 0.0995) / 3
    assert not path.exists()


def test_added_examples_are_held_against_the_earlier_ones(gallery: Gallery) -> None:
    assert "example 0 has a mean cosine of 0.00" in refusal(lambda: gallery.add("Bo", [[1.0, 0.0, 0.0]], 0.2))
    assert gallery.people["Bo"].count == 2


def test_an_example_that_points_away_from_the_others_is_refused_by_default(path: Path) -> None:
    gallery = Gallery(path, DIGEST, 2)
    assert "wanted 0 or more" in refusal(lambda: gallery.enroll("Ada", [[1.0, 0.0], [1.0, 0.1], [-0.1, 1.0]]))
    assert gallery.enroll("Ada", [[1.0, 0.0], [1.0, 0.1], [0.1, 1.0]]).count == 3


def test_nobody_is_enrolled_twice(gallery: Gallery) -> None:
    assert "'Ada' is enrolled already" in refusal(lambda: gallery.enroll("Ada", [[0.0, 0.0, 1.0]]))


@pytest.mark.parametrize(
    ("z", "told"),
    [
        ([], "embeddings have shape (1, 0); wanted [examples, 3]"),
        ([[1.0, 2.0]], "embeddings have shape (1, 2); wanted [examples, 3]"),
        ([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]], "example 1 has no direction: its embedding has length 0"),
        ([[float("nan"), 0.0, 0.0]], "example 0 has no direction"),
        ([[1e300, 1e300, 1e300]], "example 0 has no direction"),
        ([["a", "b", "c"]], "wanted numbers of shape [examples, 3]"),
        ([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]], "the examples of 'Eve' cancel out"),
    ],
)
def test_what_has_no_direction_is_refused(gallery: Gallery, z: Any, told: str) -> None:
    assert told in refusal(lambda: gallery.enroll("Eve", z, min_cohesion=-1))


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["李 雷", "O'Brien; DROP TABLE", "../../etc/passwd", '"', "عالیه\u200cجان", "👩‍🚒", "a" * 200]
)
def test_any_text_is_a_name(path: Path, name: str) -> None:
    Gallery(path, DIGEST, 2).enroll(name, [[1.0, 0.0]])
    assert list(Gallery(path, DIGEST, 2).people) == [name]
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    "name", ["", " ", " Ada", "a\nb", "a\x1b[2J", "a\0", "\u202eadA", "a\u2028b", "\ud800", "a" * 201]
)
def test_control_characters_and_endless_names_are_refused(path: Path, name: str) -> None:
    told = refusal(lambda: Gallery(path, DIGEST, 2).enroll(name, [[1.0, 0.0]]))
    assert told.isprintable()


def test_one_name_typed_in_two_ways_is_one_person(path: Path) -> None:
    gallery = Gallery(path, DIGEST, 2)
    gallery.enroll("Zoe\u0308", [[1.0, 0.0]])
    assert "Zo\u00eb" in gallery
    assert "Zoe\u0308" in gallery


@given(st.text(max_size=250))
def test_a_name_is_kept_or_refused_in_one_line(name: str) -> None:
    try:
        kept = checked_name(name)
    except DeviceError as error:
        told = str(error)
    else:
        told = "kept"
        assert checked_name(kept) == kept
    assert told.isprintable()


# --- questions --------------------------------------------------------------------------------------------------------


def test_somebody_is_verified_from_the_threshold_on(gallery: Gallery) -> None:
    assert gallery.score("Ada", [0.6, 0.8, 0.0]) == pytest.approx(0.6)
    assert gallery.verify("Ada", [0.6, 0.8, 0.0], threshold=0.59)
    assert not gallery.verify("Ada", [0.6, 0.8, 0.0], threshold=0.61)


def test_several_examples_are_asked_about_as_one(gallery: Gallery) -> None:
    assert gallery.score("Ada", [[1, 0, 0], [0, 0, 1]]) == pytest.approx(2**-0.5)


def test_a_stranger_is_nobody(gallery: Gallery) -> None:
    assert gallery.identify([0.1, 0.0, 1.0], threshold=0.5) is None
    assert gallery.identify([1.0, 0.2, 0.0], threshold=0.5) == "Ada"


def test_somebody_between_two_is_nobody(gallery: Gallery) -> None:
    assert gallery.identify([1.0, 1.0, 0.0], threshold=0.5) is None  # equally near
    assert gallery.identify([1.0, 0.9, 0.0], threshold=0.5, margin=0.1) is None
    assert gallery.identify([1.0, 0.9, 0.0], threshold=0.5) == "Ada"


def test_the_nearest_come_best_first(gallery: Gallery) -> None:
    names, scores = zip(*gallery.nearest([0.6, 0.8, 0.0]), strict=True)
    assert names == ("Bo", "Ada")
    assert scores == pytest.approx((0.8, 0.6))


def test_an_empty_gallery_knows_nobody(path: Path) -> None:
    assert Gallery(path, DIGEST, 2).identify([1.0, 0.0], threshold=0.0) is None
    assert "'Ada' is not enrolled" in refusal(lambda: Gallery(path, DIGEST, 2).verify("Ada", [1.0, 0.0], 0.0))


def test_without_any_threshold_nothing_is_decided(gallery: Gallery) -> None:
    assert "there is no threshold for 'Ada'" in refusal(lambda: gallery.verify("Ada", [1.0, 0.0, 0.0]))
    assert "there is no threshold for 'Ada'" in refusal(lambda: gallery.identify([1.0, 0.0, 0.0]))


def test_people_may_have_thresholds_of_their_own(gallery: Gallery) -> None:
    gallery.set_thresholds({"Ada": 0.9, "Bo": 0.5})
    assert gallery.identify([0.8, 0.0, 0.6]) is None
    assert gallery.identify([0.0, 0.8, 0.6]) == "Bo"
    assert gallery.identify([0.8, 0.0, 0.6], threshold=0.7) == "Ada"  # what is given comes first
    gallery.set_thresholds({"Ada": None})
    assert gallery.people["Ada"].threshold is None


def test_the_gallerys_threshold_is_for_those_who_have_none_of_their_own(gallery: Gallery, path: Path) -> None:
    gallery.set_thresholds({"Ada": 0.9})
    again = Gallery(path, DIGEST, 3, threshold=0.7)
    assert (again.threshold_of("Ada"), again.threshold_of("Bo"), again.threshold_of("Ada", 0.1)) == (0.9, 0.7, 0.1)


@pytest.mark.parametrize("value", [1.1, -2, float("nan"), float("inf")])
def test_a_threshold_that_is_no_cosine_is_refused(gallery: Gallery, value: float) -> None:
    assert "wanted −1 … 1, a cosine" in refusal(lambda: gallery.verify("Ada", [1.0, 0.0, 0.0], value))
    assert "wanted 0 ≤ margin ≤ 2" in refusal(lambda: gallery.identify([1.0, 0.0, 0.0], 0.5, margin=-0.1))


# --- the file ---------------------------------------------------------------------------------------------------------


def test_what_is_enrolled_is_read_again(gallery: Gallery, path: Path) -> None:
    again = Gallery(path, DIGEST, 3).people
    assert again == gallery.people
    assert [list(person.vector) for person in again.values()] == [[1, 0, 0], [0, 1, 0]]
    assert abs(again["Ada"].enrolled - time.time()) < 100


def test_nothing_of_a_removed_person_is_left(path: Path) -> None:
    gallery = Gallery(path, DIGEST, 16)
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(3, 16))
    for name, vector in zip(("Ada", "Bo-the-removed", "Cy"), vectors, strict=True):
        gallery.enroll(name, vector[None], threshold=0.123456789 if "Bo" in name else None)
    bo = gallery.people["Bo-the-removed"].vector
    assert bo.tobytes() in path.read_bytes()
    gallery.remove("Bo-the-removed")
    (only,) = path.parent.iterdir()
    left = only.read_bytes()
    assert b"Bo-the" not in left
    assert b"0.123456" not in left
    assert not any(number.tobytes() in left for number in bo)
    assert list(Gallery(path, DIGEST, 16).people) == ["Ada", "Cy"]
    assert "is not enrolled" in refusal(lambda: gallery.remove("Bo-the-removed"))


def test_what_killed_writers_left_goes_with_the_next_change(gallery: Gallery, path: Path) -> None:
    left = path.with_name(f".{path.name}.0123.partial")
    left.write_bytes(path.read_bytes())
    gallery.remove("Bo")
    assert list(path.parent.iterdir()) == [path]


def test_a_gallery_of_another_model_is_refused(gallery: Gallery, path: Path) -> None:
    told = refusal(lambda: Gallery(path, "b" * 64, 3))
    assert "made with another model or preprocessing (aaaaaaaaaaaa…, this is bbbbbbbbbbbb…)" in told
    assert "enrol again" in told
    assert "enrol again" in refusal(lambda: Gallery(path, DIGEST, 4))


def test_only_its_owner_can_read_the_file(gallery: Gallery, path: Path) -> None:
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_vector_does_not_show(gallery: Gallery) -> None:
    assert "vector" not in repr(gallery.people["Ada"])
    assert "array" not in repr(gallery)


def test_changes_of_others_are_seen_at_the_next_question(gallery: Gallery, path: Path) -> None:
    Gallery(path, DIGEST, 3).remove("Ada")
    assert gallery.identify([1.0, 0.0, 0.0], threshold=0.5) is None
    Gallery(path, DIGEST, 3).enroll("Cy", [[0.0, 0.0, 1.0]])
    assert gallery.identify([0.0, 0.0, 1.0], threshold=0.5) == "Cy"


def test_many_writers_lose_nobody(path: Path) -> None:
    def enroll(first: int) -> None:
        for i in range(first, first + 5):
            Gallery(path, DIGEST, 2).enroll(f"person {i}", [[1.0, i]])

    threads = [threading.Thread(target=enroll, args=(first,)) for first in range(0, 20, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(Gallery(path, DIGEST, 2).people) == sorted(f"person {i}" for i in range(20))


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "cannot" in refusal(lambda: Gallery(tmp_path / "file" / "people", DIGEST, 2).enroll("Ada", [[1.0, 0.0]]))
    assert "cannot read" in refusal(lambda: Gallery(tmp_path / "a\0b", DIGEST, 2))
    assert "is not a plain file" in refusal(lambda: Gallery(tmp_path, DIGEST, 2))


# --- kill −9 ----------------------------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
import numpy as np
from fedaws.device import Gallery
path, change, point = sys.argv[1], sys.argv[2], int(sys.argv[3])
gallery, calls = Gallery(path, "a" * 64, 3), 0
def counted(function):
    def call(*args, **kwargs):
        global calls
        calls += 1
        if calls == point:  # before this call
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)
    return call
for name in ("open", "fdopen", "fsync", "replace", "close", "listdir"):
    setattr(os, name, counted(getattr(os, name)))
gallery.enroll("Cy", [[0.0, 0.0, 1.0]]) if change == "enroll" else gallery.remove("Ada")
print("whole")
"""


@pytest.mark.parametrize(("change", "after"), [("enroll", ["Ada", "Bo", "Cy"]), ("remove", ["Bo"])])
def test_a_kill_at_any_point_leaves_the_old_or_the_new_gallery(
    gallery: Gallery, path: Path, change: str, after: list[str]
) -> None:
    sound = path.read_bytes()
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    seen = set()
    for point in range(1, 40):
        path.write_bytes(sound)
        command = [sys.executable, "-c", KILLED, str(path), change, str(point)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        found = list(Gallery(path, DIGEST, 3).people)
        assert found in (["Ada", "Bo"], after)
        seen.add(tuple(found))
        if done.stdout == "whole\n":
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        Gallery(path, DIGEST, 3).set_thresholds({"Bo": 0.5})  # the next change works, and clears away what was left
        assert list(path.parent.iterdir()) == [path]
    assert done.stdout == "whole\n"
    assert seen == {("Ada", "Bo"), tuple(after)}


def test_a_threshold_of_ones_own_knows_with_how_many_examples_it_was_measured(tmp_path: Path) -> None:
    gallery = Gallery(tmp_path / "people", "0" * 64, 2, threshold=0.5, ask=3)
    gallery.enroll("Ada", [[1.0, 0.0]])
    gallery.enroll("Bo", [[0.0, 1.0]])
    gallery.set_thresholds({"Ada": 0.6}, ask=2)
    again = Gallery(tmp_path / "people", "0" * 64, 2, threshold=0.5, ask=3)
    assert (again.people["Ada"].ask, again.people["Bo"].ask) == (2, None)
    twice, thrice = [[1.0, 0.1]] * 2, [[0.1, 1.0]] * 3
    assert again.verify("Ada", twice)
    assert again.identify(thrice) == "Bo"
    with pytest.warns(DeviceWarning, match="at once: 1, and the threshold was measured with 2"):
        assert again.verify("Ada", [1.0, 0.1])
    with pytest.warns(DeviceWarning, match="at once: 2, and the threshold was measured with 3"):
        assert again.identify([[0.1, 1.0]] * 2) == "Bo"
    assert again.verify("Ada", thrice, threshold=0.0)  # of a given one nothing is known
