r"""Functions of a pair of classes whose sum keeps the classes apart: φ of the score s = w_c · w_y.

The slope φ' and a bound on φ'' are all that gradients and the bounded step need (docs/bounded-step.md). On the sphere
‖w_c − w_y‖² = 2 − 2s, so that functions of the distance are functions of s too.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

import torch
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
        case "softmax":
            return softmax()
        case "uniformity":
            return uniformity()
        case "energy":
            return energy()
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


def softmax() -> Pair:
    r"""FedGC's softmax in place of eq. (6) (Niu & Deng 2022), over mined rows: each class adds

    .. math:: \log\Big(1 + \sum_{y \in N_k(c)} e^{s_{cy} - 1}\Big), \qquad \varphi' = p_y, \quad
              \lambda_{max}(\operatorname{diag} p - p p^T) \le \tfrac12

    FedGC stops the gradient at one end of each pair; here both ends move, as in eq. (6), so that it is a descent.
    """

    def slope_(scores: Tensor) -> Tensor:
        with_own = torch.cat([scores, torch.ones_like(scores[..., :1])], -1)  # w_c · w_c = 1
        return with_own.softmax(-1)[..., :-1]

    return Pair(slope_, curvature=0.5)


def uniformity(t: float = 2.0) -> Pair:
    r"""Wang & Isola 2020, without their logarithm: φ = e^{−t‖w_c − w_y‖²} = e^{−2t(1 − s)}, φ' = 2tφ, φ'' ≤ 4t²."""
    return Pair(lambda scores: scores.sub_(1).mul_(2 * t).exp_().mul_(2 * t), curvature=4 * t * t)


def energy(power: float = 1.0, floor: float = 0.25) -> Pair:
    r"""Hyperspherical energy (Liu et al. 2018): φ = ‖w_c − w_y‖^{−p}, φ' = p q^{−p/2−1} with q = ‖w_c − w_y‖² = 2 − 2s.

    Nearer than q = `floor` the slope stays what it is there, so that φ'' ≤ p (p + 2) floor^{−p/2−2} everywhere.
    """

    def slope_(scores: Tensor) -> Tensor:
        return scores.mul_(-2).add_(2).clamp_min_(floor).pow_(-power / 2 - 1).mul_(power)

    return Pair(slope_, curvature=power * (power + 2) * floor ** (-power / 2 - 2))
