"""Measures for examples with several labels, against plain loops."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedaws.evaluate.precision import Ranking, precision_at, propensity_scored, rank, right
from fedaws.sparse import from_lists

SETS = st.lists(st.lists(st.integers(0, 7), unique=True, max_size=6), min_size=1, max_size=10)


def ranking_of(sets: list[list[int]], seed: int) -> Ranking:
    rng = torch.Generator().manual_seed(seed)
    return rank(torch.randn(len(sets), 4, generator=rng), torch.randn(8, 4, generator=rng), 5)


@given(SETS, st.integers(0, 2**31), st.sampled_from([1, 3, 5]))
def test_precision_is_that_of_a_plain_loop(sets: list[list[int]], seed: int, k: int) -> None:
    ranking = ranking_of(sets, seed)
    hits = sum(len(set(row[:k]) & set(own)) for row, own in zip(ranking.classes.tolist(), sets, strict=True))
    assert precision_at(ranking, from_lists(sets, 8), k) == pytest.approx(hits / (k * len(sets)))


@given(SETS, st.integers(0, 2**31), st.sampled_from([1, 3, 5]))
def test_propensity_scored_precision_is_that_of_a_plain_loop(sets: list[list[int]], seed: int, k: int) -> None:
    ranking = ranking_of(sets, seed)
    weights = 1 + torch.rand(8, generator=torch.Generator().manual_seed(seed + 1))
    w = weights.tolist()
    gained = possible = 0.0
    for row, own in zip(ranking.classes.tolist(), sets, strict=True):
        gained += sum(w[c] for c in row[:k] if c in own)
        possible += sum(sorted((w[c] for c in own), reverse=True)[:k])
    expected = gained / possible if possible else 0.0
    assert propensity_scored(ranking, from_lists(sets, 8), weights, k) == pytest.approx(expected, abs=1e-6)


def test_sets_of_one_label_are_labels() -> None:
    labels = [3, 0, 7, 7, 2]
    ranking = ranking_of([[c] for c in labels], 0)
    for k in (1, 3, 5):
        single = precision_at(ranking, torch.tensor(labels), k)
        assert precision_at(ranking, from_lists([[c] for c in labels], 8), k) == single


def test_a_perfect_ranking_has_propensity_scored_precision_1() -> None:
    ranking = Ranking(torch.tensor([[1, 2, 0], [0, 1, 2]]), torch.zeros(2, 3))
    labels = from_lists([[2, 1], [0]], 3)
    assert [propensity_scored(ranking, labels, torch.tensor([1.0, 3.0, 2.0]), k) for k in (1, 2, 3)] == [1, 1, 1]


def test_a_rare_label_counts_for_more_than_a_frequent_one() -> None:
    labels, weights = from_lists([[0, 1]], 3), torch.tensor([1.0, 4.0, 1.0])
    frequent, rare = (Ranking(torch.tensor([[c]]), torch.zeros(1, 1)) for c in (0, 1))
    assert propensity_scored(frequent, labels, weights, 1) == 0.25
    assert propensity_scored(rare, labels, weights, 1) == 1


def test_examples_without_labels_count_as_missed() -> None:
    ranking = Ranking(torch.tensor([[0], [0]]), torch.zeros(2, 1))
    assert precision_at(ranking, from_lists([[0], []], 2), 1) == 0.5
    assert precision_at(ranking, from_lists([[], []], 2), 1) == 0
    assert propensity_scored(ranking, from_lists([[], []], 2), torch.ones(2), 1) == 0


@pytest.mark.parametrize("tile", [1, 7, 300])
def test_tiles_of_any_size_give_the_same_precision(monkeypatch: pytest.MonkeyPatch, tile: int) -> None:
    sets = [[0, 3], [5], [1, 2, 4], [7]]
    whole = precision_at(ranking_of(sets, 3), from_lists(sets, 8), 3)
    monkeypatch.setattr("fedaws.machine.blocks.TILE", tile)
    assert precision_at(ranking_of(sets, 3), from_lists(sets, 8), 3) == whole


def test_many_classes_do_not_overflow_the_pairs() -> None:
    width, rows = 3_000_000, 1500  # rows × width is beyond 32 bits
    sets = from_lists([[width - 1 - i] for i in range(rows)], width)
    classes = torch.tensor([[width - 1 - i, i] for i in range(rows)])
    assert right(classes, sets).tolist() == [[True, False]] * rows
    narrow = type(sets)(sets.indices.to(torch.int32), None, sets.starts, width)
    assert right(classes, narrow).equal(right(classes, sets))
