r"""Noise that no one party adds: every node a share of it, in whole numbers, before its vector is masked.

Node i adds to its fixed-point change q_i, modulo 2³², a discrete Gaussian of its own (Canonne et al. 2020),

.. math:: q_i + N_{\mathbb Z}(0, s^2), \qquad s = z\,\hat S / \sqrt t, \qquad \hat S = S/h + \sqrt p / 2 ,

with S the clip, h the fixed-point step, p the number of coordinates (rounding moves each by half a step at most) and t
the threshold: a sum opens with t nodes or more, so that whatever opens has noise of at least zŜ. The sum of t discrete
Gaussians is as private as one of multiplier z, but for τ = 10 Σ_k exp(−2π² s² k/(k+1)) (Kairouz, Liu and Steinke
2021), which for s ≥ 16 is below 10⁻¹⁰⁰⁰: it is 1/2z²-concentrated (:mod:`fedaws.privacy.accountant`).
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedaws.errors import FedawsError
from fedaws.privacy.mechanism import Uniform, from_the_system
from fedaws.privacy.secure_sums import step

LEAST_DEVIATION = 16.0
"""Of a share, in steps: below it a sum of discrete Gaussians is not nearly one."""
TAIL = 12.0
"""Standard deviations of the noise for which the sum has room; beyond them it wraps around, and a round is spoilt."""


class NoiseShares(NamedTuple):
    """How a round's vector is to be scaled, and what each node adds to it."""

    bound: float  # of a number in the vector, so that sum and noise fit into 32 bits
    deviation: float  # of one node's share, in steps


def noise_shares(noise: float, clip: float, clients: int, threshold: int, numbers: int) -> NoiseShares:
    """Shares with which every sum of `threshold` nodes or more has noise of `noise` times what one can move it.

    >>> shares = noise_shares(2.0, 1.0, clients=5, threshold=3, numbers=100)
    >>> unit = step(shares.bound, 5)
    >>> round(shares.deviation * unit * 3**0.5, 3)  # of three nodes, and a little for rounding
    2.0
    """
    bound = clip * (1 + TAIL * noise / math.sqrt(threshold * clients))
    moved = clip / step(bound, clients) + math.sqrt(numbers) / 2
    deviation = noise * moved / math.sqrt(threshold)
    if deviation < LEAST_DEVIATION:
        raise FedawsError(
            f"{clients} nodes and noise={noise:g} leave shares of {deviation:.2g} steps; wanted {LEAST_DEVIATION:g} or "
            "more: raise the noise, or have fewer nodes in a round"
        )
    return NoiseShares(bound, deviation)


def discrete_gaussian(count: int, deviation: float, uniform: Uniform = from_the_system) -> NDArray[np.int64]:
    r"""So many independent whole numbers x with chances in proportion to :math:`e^{-x^2 / 2s^2}`.

    Discrete Laplace numbers of scale t = ⌊s⌋ + 1, kept with a chance of exp(−(|x| − s²/t)² / 2s²), about three of four.

    >>> len(discrete_gaussian(1000, 5.0))
    1000
    """
    scale, found, missing = math.floor(deviation) + 1, list[NDArray[np.int64]](), count
    while missing > 0:
        tries = missing + missing // 2 + 16
        u, v, w = (uniform(tries).numpy() for _ in range(3))
        size = np.floor(-scale * np.log(u))  # geometric
        kept = np.log(v) < -((size - deviation**2 / scale) ** 2) / (2 * deviation**2)
        negative = w < 0.5
        kept &= ~(negative & (size == 0))  # there is one zero, not two
        numbers = np.where(negative, -size, size)[kept].astype(np.int64)[:missing]
        found.append(numbers)
        missing -= len(numbers)
    return np.concatenate(found) if found else np.empty(0, np.int64)
