"""Rows of mostly zeros."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedaws.sparse import SparseRows, add_up, from_dense, from_lists, in_order


def matrix(seed: int, rows: int = 7, width: int = 5) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.rand(rows, width, generator=rng) * (torch.rand(rows, width, generator=rng) < 0.4)


@given(st.integers(0, 2**31), st.lists(st.integers(0, 6), max_size=9))
def test_selected_rows_are_those_of_the_dense_matrix(seed: int, numbers: list[int]) -> None:
    dense = matrix(seed)
    chosen = torch.tensor(numbers, dtype=torch.int64)
    assert from_dense(dense).index_select(0, chosen).to_dense().equal(dense[chosen])


@given(st.integers(0, 2**31), st.integers(0, 8), st.integers(0, 8))
def test_a_run_of_rows_is_that_of_the_dense_matrix(seed: int, start: int, stop: int) -> None:
    dense = matrix(seed)
    assert from_dense(dense)[start:stop].to_dense().equal(dense[start:stop])


@pytest.mark.parametrize("size", [1, 3, 7, 10])
def test_parts_put_together_are_the_whole(size: int) -> None:
    dense = matrix(3)
    assert torch.cat([part.to_dense() for part in from_dense(dense).split(size)]).equal(dense)


def test_a_run_of_rows_shares_memory() -> None:
    x = from_dense(matrix(0))
    assert x[2:5].indices.untyped_storage().data_ptr() == x.indices.untyped_storage().data_ptr()


def test_counts_and_rows_of_entries_by_hand() -> None:
    sets = from_lists([[4, 1], [], [0]], width=5)
    assert (len(sets), sets.shape, sets.counts.tolist()) == (3, (3, 5), [2, 0, 1])
    assert sets.row_of_each.tolist() == [0, 0, 2]
    assert sets.to_dense().tolist() == [[0, 1, 0, 0, 1], [0] * 5, [1, 0, 0, 0, 0]]


def test_rows_may_be_selected_from_a_mapped_array() -> None:
    indices = np.array([2, 0, 1], dtype=np.int32)
    x = SparseRows(torch.from_numpy(indices), torch.ones(3), torch.tensor([0, 1, 3]), 3)
    assert x.index_select(0, torch.tensor([1])).indices.dtype == torch.int32


@given(st.integers(0, 2**31), st.booleans())
def test_adding_up_is_that_of_a_plain_loop(seed: int, weighted: bool) -> None:
    rng = torch.Generator().manual_seed(seed)
    ids, numbers = torch.randint(6, (15,), generator=rng), torch.randint(4, (15,), generator=rng)
    rows, weights = torch.randn(4, 3, generator=rng), torch.rand(15, generator=rng)
    expected = torch.zeros(6, 3)
    for j in range(15):
        expected[ids[j]] += (weights[j] if weighted else 1.0) * rows[numbers[j]]
    found = add_up(ids, numbers, rows, weights if weighted else None, 6)
    torch.testing.assert_close(found.to_dense(), expected)
    assert found.indices()[0].tolist() == sorted(set(ids.tolist()))


IDS = torch.tensor([0, 2, 1])
STARTS = torch.tensor([0, 2, 3])


@pytest.mark.parametrize(
    ("rows", "flaw"),
    [
        (SparseRows(IDS, None, STARTS, 3), None),
        (SparseRows(IDS.int(), torch.ones(3), STARTS, 3), None),
        (SparseRows(IDS[:0], None, torch.tensor([0]), 3), None),
        (SparseRows(IDS, None, torch.tensor([], dtype=torch.int64), 3), "not lists"),
        (SparseRows(IDS[None], None, STARTS, 3), "not lists"),
        (SparseRows(IDS, None, STARTS.int(), 3), "not lists"),
        (SparseRows(IDS.float(), None, STARTS, 3), "its indices are torch.float32"),
        (SparseRows(IDS, torch.ones(2), STARTS, 3), "its values are 2 of torch.float32, wanted 3"),
        (SparseRows(IDS, torch.ones(3, dtype=torch.int64), STARTS, 3), "its values are 3 of torch.int64"),
        (SparseRows(IDS, None, torch.tensor([1, 2, 3]), 3), "do not end where its 3 entries do"),
        (SparseRows(IDS, None, torch.tensor([0, 2, 4]), 3), "do not end where its 3 entries do"),
        (SparseRows(IDS, None, torch.tensor([0, 2**62, 3]), 3), "a row ends before it begins"),
        (SparseRows(IDS, None, torch.tensor([0, -1, 3]), 3), "do not end"),
        (SparseRows(IDS[:0], None, torch.tensor([0, 0]), 0), "its width is 0"),
    ],
)
def test_parts_that_make_no_matrix_are_told(rows: SparseRows, flaw: str | None) -> None:
    assert (rows.flaw() is None) if flaw is None else (flaw in (rows.flaw() or ""))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(("count", "most"), [(0, 1), (1, 1), (7, 3), (5000, 40), (5000, 2**31 - 1)])
def test_ids_are_put_in_the_order_of_a_stable_sort(dtype: torch.dtype, count: int, most: int) -> None:
    ids = torch.randint(0, most, (count,), generator=torch.Generator().manual_seed(0)).to(dtype)
    for ours, theirs in zip(in_order(ids), ids.sort(stable=True), strict=True):
        assert ours.equal(theirs)
        assert ours.dtype == theirs.dtype


def test_ids_too_large_to_share_a_word_with_their_place_are_sorted_too() -> None:
    ids = torch.tensor([2**62, 5, 2**62, 2**62 - 1])
    assert in_order(ids)[1].tolist() == [1, 3, 0, 2]
