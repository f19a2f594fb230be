"""Voices that nobody has: harmonics of a pitch through the resonances of a throat. For trying things out."""

import numpy as np
from numpy.typing import NDArray

from fedaws.device.sound import Samples

_VOWELS = np.array([[730, 1090, 2440], [270, 2290, 3010], [300, 870, 2240], [530, 1840, 2480], [570, 840, 2410]])  # Hz
_WIDTHS = np.array([90.0, 110.0, 170.0])  # Hz, of the resonances
_Numbers = NDArray[np.float64]


def voice(person: int, utterance: int, rate: int = 8000, seconds: float = 1.0) -> Samples:
    """What somebody who does not exist says at one time, [rate · seconds]: two vowels, one after the other.

    A person has a pitch, a length of throat, a darkness and a breath; an utterance has vowels, a melody and a loudness.

    >>> voice(3, 0).shape, float(np.abs(voice(3, 0)).max()) <= 1
    ((8000,), True)
    """
    own, said = np.random.default_rng([person, 0]), np.random.default_rng([person, 1, utterance])
    pitch, throat = np.exp(own.uniform(np.log(85), np.log(240))), own.uniform(0.82, 1.22)
    darkness, breath = own.uniform(0.6, 1.6), own.uniform(0.002, 0.02)
    t = np.arange(round(rate * seconds)) / rate
    melody = pitch * said.uniform(0.93, 1.07) * (1 + said.uniform(-0.1, 0.1) * (t / seconds - 0.5))
    phase = 2 * np.pi * np.cumsum(melody) / rate + said.uniform(0, 2 * np.pi)
    first, second = said.choice(len(_VOWELS), 2)
    turn = 1 / (1 + np.exp(-20 * (t / seconds - 0.5)))
    x = breath * said.standard_normal(len(t))
    for k in range(1, int(0.45 * rate / melody.max())):
        heights = [_resonance(k * pitch, throat * _VOWELS[vowel]) for vowel in (first, second)]
        x += ((1 - turn) * heights[0] + turn * heights[1]) * k**-darkness * np.sin(k * phase)
    x *= np.minimum(1, np.minimum(t, t[::-1]) / 0.03)  # no click at either end
    loud: Samples = (said.uniform(0.2, 0.8) * x / np.abs(x).max()).astype(np.float32)
    return loud


def _resonance(frequency: float, formants: _Numbers) -> float:
    """How much of a tone comes through."""
    return float((1 / (1 + ((frequency - formants) / _WIDTHS) ** 2)).sum() + 0.02)
