"""Before a run: what noise a target ε needs, or what ε given noise costs, and what is left to learn from."""

from collections.abc import Sequence
from typing import NamedTuple

from fedaws.errors import FedawsError
from fedaws.privacy.accountant import (
    LEAST_NOISE,
    Cohorts,
    epsilon,
    epsilon_if_known,
    noise_for,
    noise_to_signal,
)


class Row(NamedTuple):
    """One line of a plan."""

    epsilon: float
    epsilon_if_known: float  # against whoever knows who took part in which round
    noise: float  # multiplier of the clip
    noise_to_signal: float  # length of the noise over the longest mean change of θ
    advice: str


def plan(
    people: int,
    per_round: int,
    rounds: int,
    delta: float,
    cohorts: Cohorts,
    parameters: int,
    targets: Sequence[float] = (),
    noises: Sequence[float] = (),
) -> list[Row]:
    """A line for each target ε, then for each noise multiplier.

    >>> from fedaws.privacy.accountant import AtMost
    >>> plan(60, 60, 200, 60**-1.1, AtMost(), 50_000, targets=[8.0])[0].advice
    '60 people at ε = 8: noise 21 × the signal: will not train'
    """
    for noise in noises:
        if not noise >= LEAST_NOISE:
            raise FedawsError(f"noise={noise:g}; wanted at least {LEAST_NOISE:g}: less hides nobody")
    pairs = [(target, noise_for(target, delta, rounds, cohorts)) for target in targets]
    pairs += [(epsilon(noise, delta, rounds, cohorts), noise) for noise in noises]
    ratios = [noise_to_signal(noise, per_round, parameters) for _, noise in pairs]
    known = [epsilon_if_known(noise, delta, rounds, cohorts) for _, noise in pairs]
    return [
        Row(e, unhidden, z, ratio, _advice(people, e, ratio))
        for (e, z), unhidden, ratio in zip(pairs, known, ratios, strict=True)
    ]


def _advice(people: int, eps: float, ratio: float) -> str:
    """In words; where they change was seen in the curve of docs/privacy.md."""
    if ratio >= 1:
        fate = "will not train"
    elif ratio >= 0.1:
        fate = "costs much precision"
    elif ratio >= 0.02:
        fate = "costs some precision"
    else:
        fate = "nearly free"
    weak = "; ε above 10 promises little" if eps > 10 else ""
    return f"{people:,} people at ε = {eps:.3g}: noise {ratio:.2g} × the signal: {fate}{weak}"
