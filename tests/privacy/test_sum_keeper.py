"""What a node refuses to a server that asks for more than the sum of many."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedaws.privacy import secure_sums
from fedaws.privacy.secure_sums import Masked, Round
from fedaws.privacy.sum_keeper import (
    KEY_FILE,
    PEERS_FILE,
    STATE_FILE,
    Peers,
    SumKeeper,
    delete_secrets,
    make_key,
    write_peers,
)
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


# --- two sums that could tell a single node ---------------------------------------------------------------------------


def summed(folder: Path, name: str = "a", senders: str = "abcd", number: int = 10) -> dict[str, bytes]:
    """A sum that nodes have answered; the letters that one of them is to open."""
    round_ = about(number=number)
    sent = {sender: keeper(folder, sender).mask(X, round_) for sender in senders}
    return {sender: masked.letters[name] for sender, masked in sent.items()}


def test_the_same_theta_and_round_over_other_nodes_is_refused_once_one_was_opened_also_after_a_restart(
    folder: Path,
) -> None:
    """The attack: Σ over a, b, c, d, e less Σ over a, c, d, e is what b has sent."""
    keeper(folder).open(RUN, 10, summed(folder))
    others = ("a", "c", "d", "e")
    line = refusal(lambda: keeper(folder).mask(X, about(others, number=11)))
    assert line == "a second sum at the same θ and round over other nodes; their difference could tell a single one"
    keeper(folder).mask(X, about(others, number=12, point=b"the next round"))
    assert "a second sum" in refusal(lambda: keeper(folder).mask(X, about(others, number=13)))


def test_the_same_nodes_are_summed_again_but_never_all_but_one_of_them(folder: Path) -> None:
    """A server that crashed asks again, and learns what it learnt before."""
    keeper(folder).open(RUN, 10, summed(folder))
    letters = summed(folder, number=11)
    without_b = {name: letter for name, letter in letters.items() if name != "b"}
    assert "of other nodes than were summed" in refusal(lambda: keeper(folder).open(RUN, 11, without_b))
    assert set(keeper(folder).open(RUN, 11, letters)) == set("abcd")


def test_a_sum_that_was_never_opened_may_be_tried_over_other_nodes(folder: Path) -> None:
    keeper(folder).mask(X, about())
    keeper(folder).mask(X, about(("a", "c", "d", "e"), number=11))


def test_without_masks_of_its_own_a_node_has_given_a_sum_as_soon_as_it_answers(folder: Path) -> None:
    path = folder / "a" / PEERS_FILE
    path.write_text(path.read_text().replace("double_masks = true", "double_masks = false"))
    keeper(folder).mask(X, about(double=False))
    assert "a second sum" in refusal(lambda: keeper(folder).mask(X, about(("a", "c", "d"), number=11, double=False)))


def test_letters_that_cannot_be_read_use_up_nothing(folder: Path) -> None:
    letters = summed(folder)
    damaged = letters | {"b": bytes(len(letters["b"]))}
    assert "damaged" in refusal(lambda: keeper(folder).open(RUN, 10, damaged))
    assert set(keeper(folder).open(RUN, 10, letters)) == set("abcd")


# --- numbers, settings, leaving ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [2**62, 2 * time.time_ns() // 1000], ids=["largest", "years ahead"])
def test_a_number_far_ahead_is_refused_and_does_not_block_the_node(folder: Path, number: int) -> None:
    now = time.time_ns() // 1000
    keeper(folder).mask(X, about(number=now))
    assert "more than an hour ahead" in refusal(lambda: keeper(folder).mask(X, about(number=number)))
    keeper(folder).mask(X, about(number=now + 1))


def test_numbers_cannot_be_raised_beyond_the_clock_step_by_step(folder: Path) -> None:
    hour = 3_600_000_000
    keeper(folder).mask(X, about(number=time.time_ns() // 1000 + hour - 10**6))
    assert "more than an hour ahead" in refusal(
        lambda: keeper(folder).mask(X, about(number=time.time_ns() // 1000 + 2 * hour))
    )


def test_other_settings_than_those_of_the_first_sum_are_refused_until_the_operator_allows_them(folder: Path) -> None:
    keeper(folder).mask(X, about(settings=b"lr = 0.1"))
    changed = b"lr = 100"
    line = refusal(lambda: keeper(folder).mask(X, about(number=11, settings=changed)))
    assert f'write settings = "{changed.hex()}"' in line
    path = folder / "a" / PEERS_FILE
    path.write_text(path.read_text().replace('settings = "first"', 'settings = "any"'))
    keeper(folder).mask(X, about(number=11, settings=changed))
    path.write_text(path.read_text().replace('settings = "any"', 'settings = "first"'))
    assert "changed how this node is to train" in refusal(
        lambda: keeper(folder).mask(X, about(number=12, settings=b"lr = 0.1"))
    )


def test_settings_that_the_operator_has_written_down_hold_from_the_first_sum_on(folder: Path) -> None:
    path = folder / "a" / PEERS_FILE
    path.write_text(path.read_text().replace('settings = "first"', f'settings = "{bytes(32).hex()}"'))
    assert "changed how" in refusal(lambda: keeper(folder).mask(X, about(settings=b"\1" * 32)))
    keeper(folder).mask(X, about(settings=bytes(32)))


def test_a_node_that_leaves_leaves_no_secret_and_is_a_stranger_once_its_line_is_gone(folder: Path) -> None:
    keeper(folder, "e").mask(X, about())
    assert {path.name for path in delete_secrets(folder / "e")} == {KEY_FILE, STATE_FILE}
    assert [path.name for path in (folder / "e").iterdir() if not path.name.startswith(".")] == [PEERS_FILE]
    path = folder / "a" / PEERS_FILE
    path.write_text("\n".join(line for line in path.read_text().splitlines() if not line.startswith("e = ")))
    assert "'e', which is not in" in refusal(lambda: keeper(folder).mask(X, about()))
