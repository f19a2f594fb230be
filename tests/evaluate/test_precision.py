"""precision@k and the ranking behind it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedaws.evaluate.precision import Ranking, precision_at, rank


def random_scores(seed: int, examples: int, classes: int, dim: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(examples, dim, generator=rng), torch.randn(classes, dim, generator=rng)


def ranked_by_a_loop(embeddings: torch.Tensor, W: torch.Tensor, k: int) -> list[list[int]]:
    """The k best classes of each example, with Python's sort."""
    rows = []
    for g in embeddings.tolist():
        scores = [sum(a * b for a, b in zip(g, w, strict=True)) for w in W.tolist()]
        rows.append(sorted(range(len(W)), key=scores.__getitem__, reverse=True)[:k])
    return rows


@given(st.integers(0, 2**31), st.integers(1, 12), st.integers(2, 12), st.integers(1, 6))
def test_the_ranking_is_that_of_a_plain_sort(seed: int, examples: int, classes: int, k: int) -> None:
    embeddings, W = random_scores(seed, examples, classes)
    assert rank(embeddings, W, k).classes.tolist() == ranked_by_a_loop(embeddings, W, k)


def test_the_scores_are_the_inner_products_of_the_ranked_classes() -> None:
    embeddings, W = random_scores(0, 5, 7)
    ranking = rank(embeddings, W, 3)
    for i in range(5):
        for j in range(3):
            expected = float(embeddings[i] @ W[ranking.classes[i, j]])
            assert float(ranking.scores[i, j]) == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("tile", [1, 7, 60, 300 * 256])
@pytest.mark.parametrize("k", [1, 5])
def test_tiles_of_any_size_give_the_same_ranking(monkeypatch: pytest.MonkeyPatch, tile: int, k: int) -> None:
    embeddings, W = random_scores(1, 17, 23)
    monkeypatch.setattr("fedaws.machine.blocks.TILE", tile)
    ranking = rank(embeddings, W, k)
    assert ranking.classes.tolist() == ranked_by_a_loop(embeddings, W, k)
    torch.testing.assert_close(ranking.scores, (embeddings @ W.T).sort(dim=1, descending=True).values[:, :k])


def test_tiles_never_hold_more_scores_than_they_may(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, product = list[int](), torch.mm
    monkeypatch.setattr(torch, "mm", lambda a, b, out: sizes.append(len(a) * b.shape[1]) or product(a, b, out=out))
    monkeypatch.setattr("fedaws.machine.blocks.TILE", 300 * 1024)  # classes in 1024s
    rank(*random_scores(2, 300, 2500), k=5)
    assert max(sizes) == 300 * 1024
    assert sum(sizes) == 300 * 2500


def test_there_are_no_more_ranks_than_classes() -> None:
    embeddings, W = random_scores(3, 4, 2)
    assert rank(embeddings, W, 5).classes.shape == (4, 2)


@given(st.integers(0, 2**31), st.sampled_from([1, 3, 5]))
def test_precision_is_that_of_a_plain_loop(seed: int, k: int) -> None:
    embeddings, W = random_scores(seed, 20, 8)
    labels = torch.randint(8, (20,), generator=torch.Generator().manual_seed(seed))
    hits = sum(label in row for label, row in zip(labels.tolist(), ranked_by_a_loop(embeddings, W, k), strict=True))
    assert precision_at(rank(embeddings, W, 5), labels, k) == pytest.approx(hits / (20 * k))


def test_with_one_label_an_example_a_perfect_model_has_precision_1_over_k() -> None:
    ranking = rank(torch.eye(6), torch.eye(6), 5)
    assert [precision_at(ranking, torch.arange(6), k) for k in (1, 3, 5)] == pytest.approx([1, 1 / 3, 1 / 5])


def test_precision_counts_hits_by_hand() -> None:
    ranking = Ranking(torch.tensor([[2, 0, 1], [1, 2, 0], [0, 1, 2]]), torch.zeros(3, 3))
    labels = torch.tensor([2, 0, 1])  # first, third and second in their rows
    assert [precision_at(ranking, labels, k) for k in (1, 2, 3)] == pytest.approx([1 / 3, 2 / 6, 3 / 9])
