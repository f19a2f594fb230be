r"""Functions of a pair of classes whose sum keeps the classes apart: φ of the score s = w_c · w_y.

The slope φ' and a bound on φ'' are all that gradients and the bounded step need (docs/bounded-step.md). On the sphere
‖w_c − w_y‖² = 2 − 2s, so that functions of the distance are functions of s too.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from torch import Tensor

from fedaws.config import SpreadConfig


@dataclass(frozen=True)
class Pair:
    """`slope_` turns scores into φ'(s), in place if it can; its rows [m, k] are the pairs of one class each."""

    slope_: Callable[[Tensor], Tensor]
    curvature: float  # φ'' is at most this
    constant: float | None = None  # φ' where it is the same for all scores, which then need not be computed
    of_distance: bool = False  # whether the gradient is taken of ‖w_c − w_y‖², which pulls at w_c itself too


def make_pair(cfg: SpreadConfig) -> Pair | None:
    """The configured function; None where the classes are kept apart by moments alone."""
    match cfg.regularizer:
        case "margin":
            return hinge(cfg.margin)
        case "nearest":
            return squared_distance()
        case "moments":
            return None
        case _:
            assert_never(cfg.regularizer)


def hinge(margin: float) -> Pair:
    """Eq. (6): φ = max(0, ν − 1 + s)², φ' = 2 (ν − 1 + s)₊, φ'' ≤ 2."""
    return Pair(lambda scores: scores.add_(margin - 1).clamp_min_(0).mul_(2), curvature=2.0)


def squared_distance() -> Pair:
    """Eq. (7): φ = −‖w_c − w_y‖² = 2s − 2, φ' = 2."""
    return Pair(lambda scores: scores.fill_(2.0), curvature=0.0, constant=2.0, of_distance=True)
