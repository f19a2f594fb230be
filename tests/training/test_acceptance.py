"""The figures that the README promises, on scikit-learn's digits. Slow: `make slow`."""

import statistics

import pytest

import fedaws
from fedaws import config

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:classes have collapsed")]


def precision(*settings: str) -> float:
    return 100 * fedaws.train(config=config.load("digits").override(settings)).metrics[-1]["precision@1"]


@pytest.mark.parametrize("weight", [0.1, 1, 10, 100, 1000])
@pytest.mark.parametrize(
    "regularizer",
    [("spread.regularizer=margin",), ("spread.regularizer=nearest", "spread.neighbors=3")],
    ids=["eq6", "eq7"],
)
def test_lambda_no_longer_matters(weight: float, regularizer: tuple[str, ...]) -> None:
    assert precision(f"spread.weight={weight}", *regularizer) >= 95


def test_moments_need_neither_lambda_nor_k() -> None:
    assert precision("spread.regularizer=moments") >= 97


def test_fedaws_matches_the_oracle_and_positive_only_collapses() -> None:
    means = {
        method: statistics.fmean(precision(f"method={method}", f"seed={seed}") for seed in range(3))
        for method in ("positive-only", "fixed", "fedaws", "softmax")
    }
    assert means["fedaws"] >= 97
    assert means["fedaws"] >= means["softmax"] - 0.5
    assert means["fixed"] >= 95
    assert means["positive-only"] < 85
