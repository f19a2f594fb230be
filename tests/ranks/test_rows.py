"""Rows that are shared out: what needs no other rank, and what is refused."""

from collections.abc import Callable
from io import BytesIO

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedaws.core import rows as words
from fedaws.ranks.group import Ranks
from fedaws.ranks.rows import _ANSWERS, SharedRows, share
from helpers import refusal

WHOLE = torch.arange(14.0).view(7, 2)


@pytest.fixture
def rows() -> SharedRows:
    """Those of rank 1 of 3: rows 1 and 4."""
    return share(WHOLE, Ranks(1, 3))


def test_rows_look_like_the_whole_and_have_a_part(rows: SharedRows) -> None:
    assert (len(rows), rows.shape, rows.dtype, rows.ndim) == (7, (7, 2), torch.float32, 2)
    assert words.here(rows).tolist() == [[2, 3], [8, 9]]


def test_rows_know_where_they_are(rows: SharedRows) -> None:
    assert words.places_of(rows, torch.tensor([[0, 1], [4, 6]])).tolist() == [[-1, 0], [1, -1]]
    assert words.ids_of(rows, torch.tensor([0, 1])).tolist() == [1, 4]


def test_of_what_all_write_each_writes_its_own(rows: SharedRows) -> None:
    rows[torch.tensor([0, 4, 5])] = torch.tensor([[1.0, 1.0], [-2.0, -3.0], [1.0, 1.0]])
    assert words.here(rows).tolist() == [[2, 3], [-2, -3]]


def test_questions_are_shared_out_without_gaps() -> None:
    parts = [words.own_part(share(WHOLE, Ranks(rank, 3)), 10) for rank in range(3)]
    assert [number for part in parts for number in range(10)[part]] == list(range(10))


def test_rows_beside_others_are_shared_out_alike(rows: SharedRows) -> None:
    beside = words.kept_beside(rows, (5,), -1, torch.int32)
    assert beside.shape == (7, 5)
    assert words.here(beside).tolist() == [[-1] * 5] * 2


def test_every_word_has_an_answer() -> None:
    assert set(words.WORDS) <= _ANSWERS.keys()


REFUSED: list[Callable[[Tensor], object]] = [
    lambda W: W.sum(0),
    lambda W: W.T @ W,
    lambda W: W + 1,
    lambda W: 2 * W,
    lambda W: W[:3],
    lambda W: W[0],
    lambda W: W[torch.ones(7, dtype=torch.bool)],
    lambda W: F.normalize(W, dim=1),
    lambda W: torch.ones(1, 2) @ W.T,
    lambda W: torch.cat([W, W]),
    lambda W: W.clone(),
    lambda W: W.tolist(),
    lambda W: W.numpy(),
    list,
    lambda W: W.copy_(WHOLE),
    lambda W: W.isfinite().all(),
    lambda W: torch.save(W, BytesIO()),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_would_take_a_part_for_the_whole_is_refused(rows: SharedRows, number: int) -> None:
    assert "ranks" in refusal(lambda: REFUSED[number](rows))
