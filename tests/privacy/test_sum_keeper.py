"""What a node refuses to a server that asks for more than the sum of many."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedaws.privacy import secure_sums
from fedaws.privacy.secure_sums import Masked, Round
from fedaws.privacy.sum_keeper import KEY_FILE, PEERS_FILE, STATE_FILE, Peers, SumKeeper, make_key, write_peers
from helpers import refusal

RUN = "0" * 32
NAMES = ("a", "b", "c", "d", "e")
X = np.arange(4, dtype=np.uint32)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Five nodes' folders."""
    public = {}
    for name in NAMES:
        (tmp_path / name).mkdir()
        public[name] = make_key(tmp_path / name)
    for name in NAMES:
        rules = Peers(federation=RUN, name=name, min_cohort=3, threshold=0.6, double_masks=True, peers=public)
        write_peers(tmp_path / name, rules)
    return tmp_path


def keeper(folder: Path, name: str = "a") -> SumKeeper:
    """As a new process has it."""
    return SumKeeper(folder / name / PEERS_FILE)


def about(cohort: tuple[str, ...] = NAMES, **changes: object) -> Round:
    round_ = Round(RUN, 10, cohort, len(cohort) // 2 + 1, True, b"theta")
    return replace(round_, **changes)  # type: ignore[arg-type]


def letters_for(folder: Path, name: str, senders: str) -> dict[str, bytes]:
    sent: dict[str, Masked] = {sender: keeper(folder, sender).mask(X, about()) for sender in senders}
    return {sender: masked.letters[name] for sender, masked in sent.items()}


def test_nodes_with_their_own_files_give_a_sum_although_two_drop_out_on_the_way(folder: Path) -> None:
    sent = {name: keeper(folder, name).mask(X, about()) for name in "abcd"}
    opened = {
        name: keeper(folder, name).open(RUN, 10, {s: masked.letters[name] for s, masked in sent.items()})
        for name in "acd"
    }
    total = secure_sums.unmask({name: masked.vector for name, masked in sent.items()}, about(), opened)
    assert total.tolist() == [0, 4, 8, 12]


REFUSED = {
    "another federation": (about(run="1" * 32), "another federation"),
    "a stranger": (about((*NAMES, "z")), "'z', which is not in"),
    "without me": (about(("b", "c", "d")), "without this node"),
    "too few": (about(("a", "b")), "a sum of 2 nodes; this node gives its part to 3 or more"),
    "single masks": (about(double=False), "without masks of each node's own"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_cohort_that_is_not_what_the_node_wants_is_refused(folder: Path, case: str) -> None:
    asked, line = REFUSED[case]
    assert line in refusal(lambda: keeper(folder).mask(X, asked))


def test_a_threshold_below_the_nodes_own_is_refused(folder: Path) -> None:
    path = folder / "a" / PEERS_FILE
    path.write_text(path.read_text().replace("threshold = 0.6", "threshold = 0.9"))
    line = refusal(lambda: keeper(folder).mask(X, about()))
    assert line == "a sum that 3 of 5 can open; this node wants 5 or more"


@pytest.mark.parametrize("number", [10, 9, 0])
def test_a_number_is_answered_once_and_none_before_also_after_a_restart(folder: Path, number: int) -> None:
    keeper(folder).mask(X, about())
    assert "a number is answered once" in refusal(lambda: keeper(folder).mask(X, about(number=number)))
    keeper(folder).mask(X, about(number=11))


def test_a_refused_round_is_not_counted(folder: Path) -> None:
    refusal(lambda: keeper(folder).mask(X, about(run="1" * 32, number=99)))
    keeper(folder).mask(X, about())


def test_shares_are_opened_once_also_after_a_restart(folder: Path) -> None:
    letters = letters_for(folder, "a", "abcd")
    keeper(folder).open(RUN, 10, letters)
    assert "opened already" in refusal(lambda: keeper(folder).open(RUN, 10, letters))
    fewer = {name: letters[name] for name in "abc"}
    assert "opened already" in refusal(lambda: keeper(folder).open(RUN, 10, fewer))


OPENINGS: dict[str, Callable[[SumKeeper, dict[str, bytes]], object]] = {
    "is not the last": lambda node, letters: node.open(RUN, 9, letters),
    "is not the last that": lambda node, letters: node.open("1" * 32, 10, letters),
    "without this node": lambda node, letters: node.open(RUN, 10, {k: v for k, v in letters.items() if k != "a"}),
    "not of its cohort": lambda node, letters: node.open(RUN, 10, letters | {"z": b""}),
    "a sum of 2 nodes; this node opens one of 3": lambda node, letters: node.open(
        RUN, 10, {k: letters[k] for k in "ab"}
    ),
}


@pytest.mark.parametrize("line", OPENINGS)
def test_what_could_tell_a_single_node_is_not_opened(folder: Path, line: str) -> None:
    letters = letters_for(folder, "a", "abcd")
    assert line in refusal(lambda: OPENINGS[line](keeper(folder), letters))


def test_a_node_that_took_no_part_opens_nothing(folder: Path) -> None:
    letters = letters_for(folder, "a", "bcd")
    assert "is not the last that this node took part in" in refusal(lambda: keeper(folder).open(RUN, 10, letters))


def test_an_older_round_is_not_opened_once_a_newer_has_begun(folder: Path) -> None:
    letters = letters_for(folder, "a", "abcd")
    keeper(folder).mask(X, about(number=11))
    assert "is not the last" in refusal(lambda: keeper(folder).open(RUN, 10, letters))


def test_a_key_that_others_can_read_is_refused(folder: Path) -> None:
    assert (folder / "a" / KEY_FILE).stat().st_mode & 0o777 == 0o600
    (folder / "a" / KEY_FILE).chmod(0o640)
    assert "chmod 600" in refusal(lambda: keeper(folder))


def test_a_key_that_is_not_the_one_the_others_have_is_refused(folder: Path) -> None:
    (folder / "a" / KEY_FILE).unlink()
    make_key(folder / "a")
    assert "has another key for a" in refusal(lambda: keeper(folder))


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"run": 3}', "\x00"])
def test_a_damaged_note_of_the_last_round_stops_the_node(folder: Path, content: str) -> None:
    """To forget it would be to answer a second time."""
    (folder / "a" / STATE_FILE).write_text(content)
    assert STATE_FILE in refusal(lambda: keeper(folder).mask(X, about()))


@pytest.mark.parametrize(
    ("old", "new"),
    [("min_cohort = 3", "min_cohort = 1"), ("threshold = 0.6", "threshold = 0.0"), ("[peers]", "[pears]")],
)
def test_a_mistake_in_the_file_of_peers_is_told_in_one_line(folder: Path, old: str, new: str) -> None:
    path = folder / "a" / PEERS_FILE
    path.write_text(path.read_text().replace(old, new))
    assert PEERS_FILE in refusal(lambda: keeper(folder))
