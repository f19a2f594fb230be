"""What a single figure hides, checked against counting by hand."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedaws import Config
from fedaws.evaluate import Model, TestSet, per_class
from fedaws.evaluate.per_class import examine
from fedaws.sparse import SparseRows, from_lists
from fedaws.types import Params

W = torch.eye(3)
# Scores are the examples themselves. Class 0: one right, one taken for 1. Class 1: two taken for 2. Class 2: right.
X = torch.tensor([[9.0, 1, 0], [1, 9, 0], [0, 1, 9], [0, 2, 9], [0, 0, 9]])
Y = torch.tensor([0, 0, 1, 1, 2])
UNSCALED = Config().override(["model.normalize=false"])


def parameters(encoder: nn.Module) -> Params:
    return {name: p.detach() for name, p in encoder.named_parameters()}


def found(x: Tensor = X, y: Tensor | SparseRows = Y, cfg: Config = UNSCALED) -> dict[str, Any]:
    return examine(Model(nn.Identity(), {}, W, cfg.model.normalize), TestSet(x, y), cfg)


def test_classes_are_counted_one_by_one() -> None:
    got = found()
    assert (got["classes"], got["right"], got["count"]) == ([0, 1, 2], [1, 0, 1], [2, 2, 1])
    assert got["errors"] == 3


def test_the_matrix_has_true_classes_as_rows() -> None:
    assert found()["confusion"] == [[1, 1, 0], [0, 0, 2], [0, 0, 1]]


def test_the_most_frequent_confusion_comes_first_with_its_examples() -> None:
    pairs = found()["pairs"]
    assert [(p["true"], p["taken"], p["count"], p["examples"]) for p in pairs] == [(1, 2, 2, [2, 3]), (0, 1, 1, [1])]


def test_the_histogram_counts_classes_by_their_share() -> None:
    histogram = found()["histogram"]
    assert (histogram[0], histogram[10], histogram[19], sum(histogram)) == (1, 1, 1, 3)  # shares 0, 1/2 and 1


def test_a_class_without_test_examples_has_no_figure() -> None:
    got = found(X[2:], Y[2:])
    assert (got["classes"], got["classes_tested"]) == ([1, 2], 2)


def test_with_sets_of_labels_a_label_is_found_if_it_is_among_the_best_five() -> None:
    # Three classes: all are among the best five. The second example's best class is 1, and its best own label is 0.
    got = found(X[:3], from_lists([[0, 2], [0, 2], []], width=3))
    assert got["label_sets"]
    assert (got["classes"], got["right"], got["count"]) == ([0, 2], [2, 2], [2, 2])
    assert [(p["true"], p["taken"]) for p in got["pairs"]] == [(0, 1)]


def test_of_too_many_examples_every_nth_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(per_class, "MOST_EXAMPLES", 2)
    got = found()  # 5 examples, every third: 0 and 3
    assert (got["examples"], got["test_examples"]) == (2, 5)
    assert got["pairs"][0]["examples"] == [3]


def test_with_many_classes_there_is_no_matrix_and_only_the_hardest_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(per_class, "MOST_CONFUSED", 2)
    monkeypatch.setattr(per_class, "MOST_LISTED", 1)
    got = found()
    assert "confusion" not in got
    assert got["classes"] == [1]


def test_images_come_as_small_bytes() -> None:
    images = torch.zeros(5, 3, 96, 60, dtype=torch.uint8)
    images[2:4, 0] = 255  # red
    encoder: Any = nn.Sequential(nn.Flatten(), nn.Linear(3 * 96 * 60, 3))
    nn.init.zeros_(encoder[1].weight)
    encoder[1].bias = nn.Parameter(torch.tensor([0.0, 0.0, 1.0]))  # all are taken for class 2
    got = examine(Model(encoder, parameters(encoder), W, normalize=False), TestSet(images, Y), UNSCALED)
    shown = {p["true"]: p["images"] for p in got["pairs"]}
    assert shown[1][0].shape == (48, 30, 3)
    assert shown[1][0][0, 0].tolist() == [255, 0, 0]
    assert shown[1][0].dtype == torch.uint8


def test_rows_of_numbers_are_no_images() -> None:
    assert found()["pairs"][0]["images"] == []


def test_digits_are_images() -> None:
    encoder = nn.Linear(64, 3)
    cfg = UNSCALED.override(["data.name=digits"])
    got = examine(Model(encoder, parameters(encoder), W, normalize=False), TestSet(torch.rand(5, 64), Y), cfg)
    assert all(image.shape == (8, 8, 1) for pair in got["pairs"] for image in pair["images"])
    assert got["pairs"][0]["images"]
