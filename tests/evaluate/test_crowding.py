"""Scores lowered where other classes are near."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import fedaws
from fedaws import Config
from fedaws.evaluate.index import ClassIndex
from fedaws.evaluate.precision import crowding, rank
from helpers import dense, refusal


def unit(rows: int, dim: int, seed: int) -> torch.Tensor:
    return F.normalize(torch.randn(rows, dim, generator=torch.Generator().manual_seed(seed)), dim=1)


def test_it_is_the_mean_cosine_with_the_ten_nearest_others() -> None:
    W = unit(40, 6, 0)
    expected = []
    for c in range(40):
        others = sorted((float(W[c] @ W[y]) for y in range(40) if y != c), reverse=True)
        expected.append(0.7 * sum(others[:10]) / 10)
    found = crowding(W, 0.7)
    assert found is not None
    torch.testing.assert_close(found, torch.tensor(expected))


def test_without_a_weight_or_another_class_nothing_is_taken() -> None:
    assert crowding(unit(40, 6, 0), 0.0) is None
    assert crowding(unit(1, 6, 0), 1.0) is None


def test_a_class_in_a_crowd_loses_to_a_lonely_one_as_near() -> None:
    W = F.normalize(torch.tensor([[1.0, 0.1], [1.0, 0.12], [0.0, 1.0]]), dim=1)
    between = F.normalize(W[0] + W[2], dim=0)[None]  # as near to 0 as to 2, and nearer to 1
    assert rank(between, W, 1).classes.item() == 1
    assert rank(between, W, 1, crowding(W, 0.5)).classes.item() == 2


def test_an_index_takes_it_from_the_scores_too() -> None:
    pytest.importorskip("faiss")
    W, examples = unit(200, 8, 0), unit(17, 8, 1)
    shift = crowding(W, 1.0)
    found, exact = ClassIndex(W, shift=shift).rank(examples, 5, probes=14), rank(examples, W, 5, shift)
    assert found.classes.equal(exact.classes)
    torch.testing.assert_close(found.scores, exact.scores)


def test_a_run_evaluates_and_identifies_with_it(tmp_path: Path) -> None:
    cfg = Config().override(["train.rounds=4", "train.evaluate_every=4", "model.crowding=2", "train.threads=1"])
    run = fedaws.train(config=cfg, folder=tmp_path / "run")
    assert run.data is not None
    embeddings, labels = run.embed(run.data.x_test), dense(run.data.y_test)
    best = rank(embeddings, run.W, 1, crowding(run.W, 2.0)).classes[:, 0]
    plain = rank(embeddings, run.W, 1).classes[:, 0]
    assert not best.equal(plain)
    assert run.metrics[-1]["precision@1"] == pytest.approx(float((best == labels).float().mean()))
    assert fedaws.load(tmp_path / "run").identify(run.data.x_test).classes[:, 0].equal(best)
    assert "error_bound" not in run.metrics[-1]  # a bound of the scores as they are


def test_rows_of_any_length_have_no_crowd() -> None:
    told = refusal(lambda: Config().override(["model.normalize=false", "model.crowding=1"]))
    assert "set model.normalize=true" in told
