"""The approximate index; without faiss only that it says how to get it."""

import sys

import pytest
import torch
import torch.nn.functional as F

import fedaws
from fedaws.evaluate.index import ClassIndex
from fedaws.evaluate.precision import rank
from helpers import refusal


def unit(rows: int, dim: int, seed: int) -> torch.Tensor:
    return F.normalize(torch.randn(rows, dim, generator=torch.Generator().manual_seed(seed)), dim=1)


def test_without_faiss_the_install_command_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    assert "pip install 'fedaws[index]'" in refusal(lambda: ClassIndex(unit(4, 2, 0)))


def test_looking_into_every_cell_gives_the_exact_ranking() -> None:
    pytest.importorskip("faiss")
    W, examples = unit(200, 8, 0), unit(17, 8, 1)
    found, exact = ClassIndex(W).rank(examples, 5, probes=14), rank(examples, W, 5)
    assert found.classes.equal(exact.classes)
    torch.testing.assert_close(found.scores, exact.scores)


def test_one_cell_holds_the_class_that_the_example_stands_on() -> None:
    pytest.importorskip("faiss")
    W = unit(200, 8, 0)
    assert ClassIndex(W).rank(W, 1, probes=1).classes.squeeze(1).equal(torch.arange(200))


def test_where_the_cells_hold_too_few_the_rest_is_no_class() -> None:
    pytest.importorskip("faiss")
    ranking = ClassIndex(unit(9, 4, 0), cells=9).rank(unit(1, 4, 1), k=9, probes=1)
    assert ranking.classes[0, 0] >= 0
    assert ranking.classes[0, -1] == -1
    assert ranking.scores[0, -1] == -torch.inf


def test_a_run_identifies_by_its_index() -> None:
    pytest.importorskip("faiss")
    data = fedaws.from_arrays(torch.eye(6).repeat(2, 1), torch.arange(6).repeat(2))
    run = fedaws.train(data, config=fedaws.Config().override(["train.rounds=3"]))
    index = run.index(cells=2)
    assert run.identify(data.x, 2, index, probes=2).classes.equal(run.identify(data.x, 2).classes)
    other = ClassIndex(torch.eye(5), cells=1)
    assert "the index has 5 classes, the model 6" in refusal(lambda: run.identify(data.x, 1, other))


@pytest.mark.parametrize("cells", [0, 10])
def test_cells_that_cannot_be_are_refused(cells: int) -> None:
    pytest.importorskip("faiss")
    assert f"cells={cells}; wanted 1 to 9" in refusal(lambda: ClassIndex(unit(9, 4, 0), cells=cells))
    assert "probes=0; wanted at least one cell" in refusal(lambda: ClassIndex(unit(9, 4, 0)).rank(unit(1, 4, 1), 1, 0))
