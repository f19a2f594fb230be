"""All measures of a model on a test set, as one flat dict of fractions and distances."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedaws.config import Config
from fedaws.core.losses import positive_hinge
from fedaws.core.rows import here, largest, whole
from fedaws.errors import FedawsError
from fedaws.evaluate.catalogue import BOOKKEEPING, CATALOGUE
from fedaws.evaluate.model import Model
from fedaws.evaluate.precision import precision_at, propensity_scored
from fedaws.evaluate.theory import error_bounds, separation
from fedaws.machine.blocks import ROWS
from fedaws.sparse import Rows, SparseRows

KS = (1, 3, 5)


@dataclass(frozen=True)
class TestSet:
    """Examples to measure on: what a measure of your own gets beside the model."""

    x: Rows  # [N, …]
    y: Rows  # [N] labels, or a set for each
    label_weights: Tensor | None = None  # [C] 1 / propensity of a label, for label sets


TestSet.__test__ = False  # type: ignore[attr-defined]  # pytest takes classes of such names for tests

Measure = Callable[[Model, TestSet], float]
"""A measure of your own: a number of a model and a test set."""


@torch.no_grad()
def evaluate(model: Model, test: TestSet, cfg: Config, embeddings: Tensor | None = None) -> dict[str, float]:
    """precision@1/3/5, the positive hinge on the test set, ρ, the largest cosine; for unit embeddings the bounds.

    For sets of labels also the propensity-scored precision, but not the bounds, which are of one label an example and
    of scores that are cosines. `embeddings` of the test examples need not be computed again where they are known.
    """
    embeddings = model.embed(test.x) if embeddings is None else embeddings
    W, y = model.W, test.y
    ranking = model.rank(embeddings, max(KS))
    ks = [k for k in KS if k <= len(W)]
    measures = {f"precision@{k}": precision_at(ranking, y, k) for k in ks}
    if isinstance(y, SparseRows):
        if test.label_weights is not None:
            measures |= {f"psp@{k}": propensity_scored(ranking, y, test.label_weights, k) for k in ks}
        measures["test_loss"] = _mean_hinge(embeddings, y, W, cfg.clients.margin)
        return measures | separation(_present(W))
    measures["test_loss"] = float(positive_hinge(embeddings, W[y], cfg.clients.margin).mean())
    measures |= separation(_present(W))
    if model.on_sphere:
        rho = measures["min_separation"]
        measures |= error_bounds(embeddings, y, W, rho, cfg.spread.margin, cfg.clients.margin)
    return measures


def check_measures(measures: Any) -> None:
    """Refuse measures of the user's own that are no functions by name, or would stand in the place of ours."""
    if not isinstance(measures, Mapping) or not all(isinstance(n, str) and callable(f) for n, f in measures.items()):
        raise FedawsError(f"measures={repr(measures)[:100]}; wanted functions by name, as in {{'worst': worst_class}}")
    for name in measures:
        if name in CATALOGUE or name in BOOKKEEPING:
            raise FedawsError(f"a measure of your own is called {name!r}, as one of ours; give it another name")


def own_measures(measures: Mapping[str, Measure], model: Model, test: TestSet) -> dict[str, float]:
    """What measures of the user's own say."""
    values = {}
    for name, measure in measures.items():
        given: Any = measure(model, test)
        try:
            value = math.nan if isinstance(given, str) else float(given)  # also a tensor of one number
        except (TypeError, ValueError, RuntimeError):
            value = math.nan
        if not math.isfinite(value):
            got = f"a tensor of shape {tuple(given.shape)}" if isinstance(given, Tensor) else repr(given)[:100]
            raise FedawsError(f"the measure {name!r} gave {got}; wanted a finite number")
        values[name] = value
    return values


def _present(W: Tensor) -> Tensor:
    """The rows of classes that are there; a removed one has zeros."""
    if float(largest(W, -torch.linalg.vector_norm(here(W), dim=1).min())) < 0:
        return W
    rows = whole(W)
    there = torch.linalg.vector_norm(rows, dim=1) > 0
    return W if int(there.sum()) < 2 else rows[there]


def _mean_hinge(embeddings: Tensor, labels: SparseRows, W: Tensor, margin: float) -> float:
    """Over all pairs of an example and one of its labels, in blocks."""
    pairs = zip(*(part.split(ROWS // W.shape[1]) for part in (labels.row_of_each, labels.indices)), strict=True)
    total = sum(float(positive_hinge(embeddings[rows], W[own], margin).sum()) for rows, own in pairs)
    return total / max(1, len(labels.indices))
