"""A preset and settings for sparse data of one's own, from their numbers of labels and rows."""

import math
from typing import NamedTuple

EPOCHS = 8
"""How often a run should see its rows: docs/extreme-classification.md has what fewer give."""


class Suggestion(NamedTuple):
    """What to run."""

    preset: str
    settings: list[str]
    command: str
    epochs: float
    text: str


def suggest(labels: int, rows: int) -> Suggestion:
    """The preset that does best on data of such a size, with a cohort and a number of rounds that see them all.

    >>> suggest(labels=2000, rows=113_888).settings
    ['clients.per_round=500', 'train.rounds=456']
    """
    preset = "yso-finna-en"
    per_round = min(4000, max(2, labels // 4))  # as large a part of the labels as in the preset, and no more clients
    step = 4  # the preset's clients.examples_per_step
    rounds = max(100, math.ceil(EPOCHS * rows / (per_round * step)))
    settings = [f"clients.per_round={per_round}", f"train.rounds={rounds}"]
    command = " ".join(
        [f"fedaws train {preset} -s data.name=xc -s data.root=DIR", *(f"-s {setting}" for setting in settings)]
    )
    epochs = round(rounds * per_round * step / rows, 1)
    why = (
        f"{rounds:,} rounds of {per_round:,} clients see {rows:,} rows {epochs:g} times; DIR holds train.txt, test.txt"
    )
    return Suggestion(preset, settings, command, epochs, f"{command}\n# {why}")
