"""SLEEC on a configuration's data, measured as the methods are."""

import time
from typing import Any

import torch

from fedaws.config import Config
from fedaws.core.methods import options_of
from fedaws.data.load import load_label_sets
from fedaws.evaluate.measures import KS
from fedaws.evaluate.precision import Ranking, precision_at, propensity_scored
from fedaws.experiments.sleec.settings import SleecConfig
from fedaws.experiments.sleec.sleec import fit, predict


def measure_sleec(cfg: Config) -> dict[str, Any]:
    """precision@k and psp@k, seconds of training and of prediction, and bytes of the model; `options` are SLEEC's."""
    sleec = options_of(cfg, SleecConfig)
    train, test, label_weights = load_label_sets(cfg)
    x = train.x.to_scipy()
    labels = train.labels.to_scipy()
    x_test = test.x.to_scipy()
    started = time.perf_counter()
    model = fit(x, labels, sleec, cfg.seed)
    trained = time.perf_counter()
    best = predict(model, x_test, max(KS))
    predicted = time.perf_counter()
    measures = measured(torch.from_numpy(best), test.labels, label_weights)
    return measures | {
        "seconds": round(trained - started, 3),
        "prediction_seconds": round(predicted - trained, 3),
        "bytes": model.nbytes,
    }


def measured(best: torch.Tensor, labels: Any, label_weights: torch.Tensor) -> dict[str, float]:
    """The measures of anybody's ranking [B, 5]; −1 stands for no label at all, and is never right.

    >>> from fedaws.sparse import from_lists
    >>> labels = from_lists([[0, 1]], width=6)
    >>> measured(torch.tensor([[1, 3, 0, -1, -1]]), labels, torch.ones(6))["precision@3"]
    0.6666666666666666
    """
    # An id beyond the others: no example has that label.
    wider = type(labels)(labels.indices, labels.values, labels.starts, labels.width + 1)
    weights = torch.cat([label_weights, label_weights.new_zeros(1)])
    ranking = Ranking(torch.where(best < 0, labels.width, best), best.new_zeros(best.shape, dtype=torch.float32))
    precision = {f"precision@{k}": precision_at(ranking, wider, k) for k in KS}
    return precision | {f"psp@{k}": propensity_scored(ranking, wider, weights, k) for k in KS}
