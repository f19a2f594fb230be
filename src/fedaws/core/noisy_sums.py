r"""Means of private rows from sums with noise: what the server keeps where rows are to be differentially private.

A client tells all of φ(w) = (w, wwᵀ) in every round it takes part in, not a change of it: a unit vector each, so that
one person moves the cohort's sum by no more than that. What is released of a round is the noisy sum over the expected
size of the cohort. All below is made of these releases alone, so it costs no more privacy:

- a running mean over some rounds, as long as it takes to hear everybody, or as few as the news of a round are surely
  not noise. By what was sent rows have moved meanwhile, in
  a way that is known (:func:`after_step`), so the mean is moved along before the new one is counted in: else rows would
  be pushed again and again by what they have left behind;
- *shrinking* it towards what random rows tell, 0 and I/d, by how much of it may be noise (James and Stein 1961),

  .. math:: \hat m = m_0 + \Big(1 - \frac{E}{\|m - m_0\|^2}\Big)_+ (m - m_0),

  with E = E‖noise‖² and three of its standard deviations, √(2/p) of it for p numbers: noise alone moves no row;
- the nearest means that unit rows can have: ‖μ‖ ≤ 1, M − μμᵀ without negative eigenvalues, tr M = 1.
"""

import math

import torch
from torch import Tensor

from fedaws.config import Config
from fedaws.core.method import SumMemory, SumSpread
from fedaws.core.moments import whitening
from fedaws.core.schedule import schedule
from fedaws.core.sums import HEARD, tell_moments, unknown_moments
from fedaws.types import Memory, Params

NOISE = "noise"
"""Beside the sums: E‖noise‖² of the first and of the second moment."""
SURELY = 3
"""Standard deviations beyond its mean that the noise's length is taken to have."""
LEAST_WINDOW = 10
"""Rounds that are averaged at the least: rows move little in so many."""


def tell_bounded(rows: Tensor) -> Params:
    """Σ w and Σ wwᵀ, to which no row adds more than length 1; one that is not finite adds nothing.

    >>> tell_bounded(torch.tensor([[30.0, 40.0], [torch.nan, 0.0]]))["first"]
    tensor([0.6000, 0.8000])
    """
    lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True, dtype=torch.float64)
    unit = rows.double() / lengths.clamp_min(torch.finfo(torch.float64).tiny)
    sound = unit.isfinite().all(1, keepdim=True)
    return {name: told.to(rows.dtype) for name, told in tell_moments(torch.where(sound, unit, 0)).items()}


def running_means(cfg: Config) -> SumMemory:
    """The memory of means over cohorts as the settings have them."""

    def init(spread: SumSpread, W: Tensor, clients: int) -> Memory:
        unknown = {name: one.double().to(W.device) for name, one in spread.unknown(W.shape[1]).items()}
        heard = torch.zeros(clients, dtype=torch.int64, device=W.device)  # nobody counts as heard: all is told again
        return {HEARD: heard, **unknown, NOISE: torch.zeros(2, dtype=torch.float64, device=W.device)}

    def hear(memory: Memory, told: Params, cohort: Tensor, rounds: int) -> Memory:
        if not told:
            return memory
        clients, per_round = len(memory[HEARD]), cfg.clients.per_round
        share = 1.0 if per_round == "all" else min(1.0, per_round / clients)
        whitened = cfg.spread.whitening * schedule(cfg.train, rounds - 2)  # in the round that ends now
        moved, least = after_step(_moments(memory), shrunk(memory), whitened), max(1 / rounds, 1 / window(share))
        kept, noise = Memory(), []
        for place, (name, now) in enumerate(moved.items()):
            news, more = told[name].to(now) - now, told[NOISE].to(memory[NOISE])[place]
            weight = max(least, _surely_no_noise(news, surely(more, now)))
            kept[name] = memory[name].lerp(now, share) + weight * news
            noise.append((1 - weight) ** 2 * memory[NOISE][place] + weight**2 * more)
        return {HEARD: memory[HEARD], **kept, NOISE: torch.stack(noise)}

    def means(spread: SumSpread, memory: Memory, W: Tensor) -> Params:
        return {name: mean.to(W.dtype) for name, mean in shrunk(memory).items()}

    return SumMemory(init, hear, means)


def shrunk(memory: Memory) -> Params:
    """What everybody is sent: the running means less what may be noise, such as unit rows can have."""
    unknown = unknown_moments(len(memory["first"]))
    found = []
    for (name, mean), noise in zip(_moments(memory).items(), memory[NOISE], strict=True):
        nothing = unknown[name].to(mean)
        apart = mean - nothing
        found.append(nothing + _surely_no_noise(apart, surely(noise, mean)) * apart)
    return nearest_moments(*found)


def surely(noise: Tensor, like: Tensor) -> float:
    """What E‖noise‖² in such a vector or symmetric matrix hardly ever exceeds, with so much on average."""
    numbers = _numbers(len(like))[like.ndim - 1]
    return float(noise) * (1 + SURELY * math.sqrt(2 / float(numbers)))


def _surely_no_noise(seen: Tensor, noise: float) -> float:
    """(1 − E/‖x‖²)₊: how much of what is seen is not noise."""
    length = float(seen.square().sum())
    return max(0.0, 1 - noise / length) if length > 0 else 0.0


def after_step(moments: Params, sent: Params, whitened: float) -> Params:
    """The means of rows after the step by the means that they were sent, if all are shortened alike by it.

    >>> W = torch.tensor([[0.8, 0.6], [0.8, -0.6]])
    >>> means = {"first": W.mean(0), "second": W.T @ W / 2}
    >>> torch.allclose(after_step(means, means, 0)["second"], torch.diag(torch.tensor([0.0, 1.0])), atol=1e-6)
    True
    """
    first, second, shift = moments["first"], moments["second"], sent["first"]
    linear = whitening(sent["second"] - torch.outer(shift, shift), whitened)
    crossed = torch.outer(shift, first)
    second = linear @ (second - crossed - crossed.T + torch.outer(shift, shift)) @ linear
    length = float(second.trace())
    if length <= 0:  # noise has eaten it
        return moments
    return {"first": linear @ (first - shift) / length**0.5, "second": second / length}


def _moments(memory: Memory) -> Params:
    return {"first": memory["first"], "second": (memory["second"] + memory["second"].T) / 2}


def window(share: float) -> int:
    """Rounds that are averaged at most, where a round hears such a share of all: until everybody is heard about twice.

    >>> window(1.0), window(0.05)
    (10, 40)
    """
    return max(LEAST_WINDOW, round(2 / share))


def noise_energies(dim: int, deviation: float, per_round: float, share: float) -> Tensor:
    r"""E‖noise‖² of a cohort's means: of the first moment, and of the second once it is symmetric.

    `deviation` is of the noise in each number; to it comes that a cohort is a `share` of all, drawn by coins:
    :math:`(1 - q)/n`, for w and wwᵀ have length 1.
    """
    return _numbers(dim) * deviation**2 + (1 - share) / per_round


def _numbers(dim: int) -> Tensor:
    """Of w, and of the symmetric wwᵀ."""
    return torch.tensor([dim, dim * (dim + 1) / 2], dtype=torch.float64)


def nearest_moments(first: Tensor, second: Tensor) -> Params:
    """Means that unit rows can have, near these.

    >>> found = nearest_moments(torch.zeros(2), torch.diag(torch.tensor([0.9, -0.3])))
    >>> found["second"]
    tensor([[1., 0.],
            [0., 0.]])
    """
    first = first / first.norm().clamp_min(1)
    values, vectors = torch.linalg.eigh(second - torch.outer(first, first))
    values = values.clamp_min(0)
    room = (1 - first.square().sum()).clamp_min(0)  # tr M = 1
    total = values.sum()
    values = values * (room / total) if float(total) > 0 else torch.full_like(values, float(room) / len(values))
    return {"first": first, "second": (vectors * values) @ vectors.T + torch.outer(first, first)}
