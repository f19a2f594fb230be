r"""A round that is private: clip each client's change, add noise to the sum, divide by who was expected.

.. math:: \bar\Delta = \frac{1}{n}\Big(\sum_i \Delta_i \min(1, S/\|\Delta_i\|) + N(0, (zS)^2 I)\Big)

n is the expected cohort, not who came: the number that came tells of people too. S goes with the schedule's factor of
the step sizes, as the changes do, so that the noise comes to rest with them; z, and so ε, is the same in all rounds.

Sums of private rows are released with it: w and wwᵀ have length 1, so the one vector (√a Δ/S, √b w, √b wwᵀ) with
a + 2b = 1 has length at most 1, and N(0, z²) in each of its numbers is one Gaussian release of multiplier z.
"""

import math
import os
from collections.abc import Callable, Collection

import torch
from torch import Tensor

from fedaws.core.aggregate import Aggregate
from fedaws.sparse import row_delta
from fedaws.types import Params

RATE = 0.2
"""Of a clip that follows the lengths of changes: at most e^0.2 a round, but for noise."""
Uniform = Callable[[int], Tensor]
"""So many independent numbers in (0, 1), float64."""


def from_the_system(count: int) -> Tensor:
    """Uniform numbers by the operating system: nobody who knows the run's seed can tell them.

    Not by torch's generator, which is seeded with 32 bits that can be tried out.

    >>> u = from_the_system(1000)
    >>> bool((u > 0).all() and (u < 1).all())
    True
    """
    if not count:
        return torch.empty(0, dtype=torch.float64)
    bits = torch.frombuffer(bytearray(os.urandom(8 * count)), dtype=torch.int64)
    return ((bits >> 12).double() + 2**51 + 0.5) / 2**52  # the top 52 bits, at the middles of their intervals


def from_generator(rng: torch.Generator) -> Uniform:
    """Uniform numbers that can be had again: for tests, and for nothing that is to be private."""
    return lambda count: torch.rand(count, generator=rng, dtype=torch.float64).clamp_min_(2.0**-53)


def gaussian(shape: torch.Size, uniform: Uniform) -> Tensor:
    r"""Standard normal numbers of this shape, by Box and Muller: :math:`\sqrt{-2 \ln u}\, (\cos 2\pi v, \sin 2\pi v)`.

    >>> tuple(gaussian(torch.Size([3, 5]), from_the_system).shape)
    (3, 5)
    """
    count = math.prod(shape)
    half = (count + 1) // 2
    u, v = uniform(half), uniform(half).mul_(2 * math.pi)
    length = u.log_().mul_(-2).sqrt_()
    return torch.cat([length * v.cos(), length * v.sin()])[:count].view(shape)


def poisson_cohort(available: Tensor, probability: float, uniform: Uniform) -> Tensor:
    """Each of the available clients by a coin of its own; perhaps nobody.

    >>> poisson_cohort(torch.arange(3), 1.0, from_the_system).tolist()
    [0, 1, 2]
    """
    return available[(uniform(len(available)) < probability).to(available.device)]


def fixed_cohort(available: Tensor, count: int, uniform: Uniform) -> Tensor:
    """So many of the available clients without replacement, or all that there are.

    >>> len(fixed_cohort(torch.arange(9), 4, from_the_system)), len(fixed_cohort(torch.arange(2), 4, from_the_system))
    (4, 2)
    """
    chosen = uniform(len(available)).argsort()[:count].sort().values
    return available[chosen.to(available.device)]


def noised(
    total: Aggregate,
    theta: Params,
    clip: float,
    noise: float,
    expected: float,
    uniform: Uniform,
    tables: Collection[str],
) -> Aggregate:
    """The cohort's work as it may be seen: its summed change of θ with noise in *every* coordinate, over `expected`.

    The clients' changes are clipped to `clip` and weigh the same. Embedding tables get noise in all their rows: which
    rows were touched tells of people too. Nobody came: noise alone. A loss of NaN is of a client that was left out.
    """
    heard, std = len(total.cohort), noise * clip / expected
    delta = Params()
    for name, tensor in theta.items():
        change = (gaussian(tensor.shape, uniform) * std).to(tensor)
        if name in total.delta:
            found = total.delta[name]
            change += (found.to_dense() if found.is_sparse else found) * (heard / expected)
        is_table = name in tables
        delta[name] = (
            row_delta(torch.arange(len(change), device=change.device), change, len(change)) if is_table else change
        )
    return total._replace(delta=delta, loss=float(total.losses.double().nansum()) / expected)


def count_noise(noise: float, expected: float) -> float:
    """Deviation of the noise on the count that a clip follows: n/20, or as much as costs all else 3.3 % more noise."""
    return max(expected / 20, 2 * noise)


def beside_count(noise: float, expected: float) -> float:
    r"""The multiplier of what is released beside that count, so that both together cost what `noise` alone does:

    .. math:: z_\Delta = \big(z^{-2} - (2\sigma_b)^{-2}\big)^{-1/2}

    for half a client is what one can move the count by (Andrew, Thakkar, McMahan and Ramaswamy 2021).

    >>> round(beside_count(5.0, 100), 3), round(beside_count(1.0, 10_000), 6)
    (5.164, 1.000001)
    """
    return float((noise**-2 - (2 * count_noise(noise, expected)) ** -2) ** -0.5)


def next_clip(
    clip: float, inside: int, heard: int, quantile: float, noise: float, expected: float, uniform: Uniform
) -> float:
    r"""The clip after a round in which so many of those `heard` were inside it: nearer to the quantile of the lengths.

    .. math:: C \leftarrow C e^{-0.2 (\tilde b - \gamma)}, \qquad
              \tilde b = \frac12 + \frac1n \Big(\sum_i (b_i - \tfrac12) + N(0, \sigma_b^2)\Big)
    """
    seen = inside - heard / 2 + count_noise(noise, expected) * float(gaussian(torch.Size([1]), uniform))
    return clip * math.exp(-RATE * (0.5 + seen / expected - quantile))


def noised_sums(sums: Params, like: Params, noise: float, expected: float, uniform: Uniform) -> Params:
    """What a cohort's private rows tell, as it may be seen: with noise in every number, over `expected`; of nobody
    noise alone. `like` has the shapes.
    """
    return {
        name: (sums.get(name, torch.zeros_like(tensor)) + noise * gaussian(tensor.shape, uniform).to(tensor)) / expected
        for name, tensor in like.items()
    }
