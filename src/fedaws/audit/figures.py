"""A figure with its interval and what chance would give: the form that every attack's result has in the end."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta, binomtest

_DRAWS = 2000


@dataclass(frozen=True)
class Figure:
    """A measured value, its 95 % interval, and the value of somebody who guesses."""

    value: float
    low: float
    high: float
    chance: float = 0.0
    n: int = 0  # what was drawn from: clients, people, rows or examples


@dataclass(frozen=True)
class Finding:
    """A line of the audit's table: who does what, what they learn, and the figures of it."""

    attack: str
    who: str
    does: str
    learns: str
    figure: Figure


def share(hits: int, n: int, chance: float = 0.0) -> Figure:
    """A share of n independent tries, with Wilson's interval.

    >>> figure = share(5, 10)
    >>> round(figure.low, 3), round(figure.high, 3)
    (0.237, 0.763)
    """
    found = binomtest(hits, n).proportion_ci(method="wilson")
    return Figure(hits / n, float(found.low), float(found.high), chance, n)


def mean(values: Sequence[float], chance: float = 0.0, seed: int = 0) -> Figure:
    """A mean over clients or people, with the interval of a bootstrap over them.

    >>> mean([0.5, 0.5, 0.5])
    Figure(value=0.5, low=0.5, high=0.5, chance=0.0, n=3)
    """
    numbers = np.asarray(values, dtype=float)
    drawn = np.random.default_rng(seed).integers(len(numbers), size=(_DRAWS, len(numbers)))
    low, high = np.quantile(numbers[drawn].mean(1), [0.025, 0.975])
    return Figure(float(numbers.mean()), float(low), float(high), chance, len(numbers))


def auc(members: Sequence[float], others: Sequence[float], chance: float = 0.5, seed: int = 0) -> Figure:
    """How often a member scores above another, ties by half, with a bootstrap over people of both kinds.

    >>> auc([0.9, 0.8], [0.1, 0.8]).value
    0.875
    """
    inside, outside = np.asarray(members, dtype=float), np.asarray(others, dtype=float)
    above = (inside[:, None] > outside).astype(float) + 0.5 * (inside[:, None] == outside)
    rng = np.random.default_rng(seed)
    draws = [above[_again(rng, len(inside))][:, _again(rng, len(outside))].mean() for _ in range(_DRAWS)]
    low, high = np.quantile(draws, [0.025, 0.975])
    return Figure(float(above.mean()), float(low), float(high), chance, len(inside) + len(outside))


def _again(rng: np.random.Generator, count: int) -> NDArray[np.int64]:
    return rng.integers(count, size=count)


def at_least(hits: int, n: int, confidence: float = 0.975) -> float:
    """Clopper and Pearson's lower bound of a share: what it surely is at least.

    >>> round(at_least(10, 10, 0.95), 4)  # 0.05 ** (1 / 10)
    0.7411
    """
    return float(beta.ppf(1 - confidence, hits, n - hits + 1)) if hits else 0.0


def at_most(hits: int, n: int, confidence: float = 0.975) -> float:
    """Clopper and Pearson's upper bound of a share.

    >>> round(at_most(0, 10, 0.95), 4)  # 1 − 0.05 ** (1 / 10)
    0.2589
    """
    return 1 - at_least(n - hits, n, confidence)
