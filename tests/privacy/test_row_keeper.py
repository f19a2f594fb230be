"""A node's row on its disk: what the server may say of it, and when it may be told of."""

import threading
from functools import partial
from pathlib import Path

import pytest
import torch

from fedaws.privacy.row_keeper import Kept, RowKeeper, untold
from helpers import refusal

RUN = "0" * 32
ROWS = torch.eye(4)
NAMES = ("a", "b", "c")


@pytest.fixture
def keeper(tmp_path: Path) -> RowKeeper:
    return RowKeeper(tmp_path, RUN)


def told(number: int) -> Kept:
    return Kept(ROWS[number], frozenset(NAMES))


def test_the_first_row_is_drawn_once_and_stays_until_a_later_one_was_counted(keeper: RowKeeper) -> None:
    first = keeper.counted(0, 1, 4).row
    for number in (1, 2, 3):  # answers that were lost, however many
        keeper.keep(0, number, told(number))
        assert torch.equal(keeper.counted(0, number, 4).row, first)
    keeper.keep(3, 4)
    assert torch.equal(keeper.counted(3, 4, 4).row, ROWS[3])


def test_once_counted_a_node_is_never_new_again(keeper: RowKeeper) -> None:
    keeper.counted(0, 1, 4)
    keeper.keep(0, 1, told(1))
    keeper.keep(1, 2, told(2))  # the server said: counted in round 1
    assert "counted this node in round 0" in refusal(lambda: keeper.counted(0, 3, 4))
    assert "counted this node in round 0" in refusal(lambda: keeper.keep(0, 3, told(3)))


def test_that_it_was_counted_is_remembered_also_where_nothing_is_told(keeper: RowKeeper) -> None:
    keeper.counted(0, 1, 4)
    keeper.keep(0, 1, told(1))
    keeper.keep(1, 2)
    assert "has [1]" in refusal(lambda: keeper.counted(0, 3, 4))


@pytest.mark.parametrize("heard", [1, 7])
def test_a_round_in_which_nothing_was_told_cannot_have_been_counted(keeper: RowKeeper, heard: int) -> None:
    keeper.counted(0, 1, 4)
    keeper.keep(0, 2, told(2))
    assert "lost rounds or lies" in refusal(lambda: keeper.counted(heard, 8, 4))


def test_rounds_only_rise(keeper: RowKeeper) -> None:
    keeper.counted(0, 1, 4)
    keeper.keep(0, 5, told(1))
    keeper.counted(0, 5, 4)  # tried again
    for heard, number in ((0, 4), (5, 5), (5, 4)):
        assert "rounds only rise" in refusal(partial(keeper.counted, heard, number, 4))


def test_another_run_has_another_row_and_none_of_the_first(tmp_path: Path, keeper: RowKeeper) -> None:
    other = RowKeeper(tmp_path, "1" * 32)
    assert not torch.equal(keeper.counted(0, 1, 4).row, other.counted(0, 1, 4).row)
    keeper.keep(0, 1, told(1))
    assert "counted this node in round 1" in refusal(lambda: other.counted(1, 2, 4))


@pytest.mark.parametrize("run", ["", "0" * 31, "../" + "0" * 29, "0" * 32 + "\n", "A" * 32])
def test_a_run_is_called_by_32_digits_and_nothing_else(tmp_path: Path, run: str) -> None:
    assert "32 hexadecimal digits" in refusal(lambda: RowKeeper(tmp_path, run))


def test_a_row_that_others_can_read_or_that_is_of_another_size_is_refused(keeper: RowKeeper) -> None:
    keeper.counted(0, 1, 4)
    assert keeper.path.stat().st_mode & 0o777 == 0o600
    assert "has a row of 4 numbers; the server's model has 5" in refusal(lambda: keeper.counted(0, 1, 5))
    keeper.path.chmod(0o640)
    assert "chmod 600" in refusal(lambda: keeper.counted(0, 1, 4))


@pytest.mark.parametrize("content", [b"", b"abc", bytes(100)])
def test_a_damaged_file_stops_the_node(keeper: RowKeeper, content: bytes) -> None:
    keeper.path.write_bytes(content)
    keeper.path.chmod(0o600)
    assert "damaged" in refusal(lambda: keeper.counted(0, 1, 4))


def test_two_processes_of_one_node_draw_one_first_row(tmp_path: Path) -> None:
    found = list[torch.Tensor]()
    draw = lambda: found.append(RowKeeper(tmp_path, RUN).counted(0, 1, 64).row)  # noqa: E731
    threads = [threading.Thread(target=draw) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert all(torch.equal(row, found[0]) for row in found)


# --- when a row may be told of ----------------------------------------------------------------------------------------

EVERYBODY = tuple("abcdefgh")


def heard(**numbers: int) -> dict[str, int]:
    return dict.fromkeys(EVERYBODY, 3) | numbers


def test_a_row_is_told_of_when_everybody_is_asked() -> None:
    assert untold(heard(), EVERYBODY, EVERYBODY, 3) is None
    assert untold(dict.fromkeys(EVERYBODY, 0), EVERYBODY, (), 3) is None


def test_and_not_when_anybody_is_missing() -> None:
    fewer = {name: 3 for name in EVERYBODY if name != "d"}
    assert "1 of the nodes that were counted have left" in str(untold(fewer, EVERYBODY, EVERYBODY, 3))
    assert "1 of 8 nodes are not asked" in str(untold(fewer, EVERYBODY, (), 3))


def test_nor_after_somebody_has_left_for_good() -> None:
    """Of the sum of all and the later ones of all but one, the one could be had."""
    stay = EVERYBODY[:-1]
    assert "have left; begin a new run" in str(untold(dict.fromkeys(stay, 3), stay, EVERYBODY, 3))


@pytest.mark.parametrize(("new", "told_of"), [(1, False), (2, False), (3, True)])
def test_newcomers_come_as_many_at_a_time_as_a_sum_must_have(new: int, told_of: bool) -> None:
    counts = heard(**dict.fromkeys(EVERYBODY[:new], 0))
    assert (untold(counts, EVERYBODY, EVERYBODY[new:], 3) is None) == told_of


def test_nor_where_nodes_were_counted_in_different_rounds() -> None:
    assert "different rounds" in str(untold(heard(a=2), EVERYBODY, EVERYBODY, 3))
