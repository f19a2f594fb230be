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


_FEWEST = 100  # rounds: rows of W and the schedule want some


def suggest(labels: int, rows: int) -> Suggestion:
    """The preset that did best on data of such a size, with a cohort and a number of rounds that see all of them.

    >>> suggest(labels=2000, rows=113_888).settings
    ['clients.per_round=500', 'train.rounds=456', 'train.evaluate_every=45', 'train.checkpoint_every=45']
    """
    few = labels <= 1000
    preset = "delicious" if few else "yso-finna-en"
    per_round = min(50, labels) if few else min(4000, labels // 4)  # the part of the labels that the preset has
    step = 4  # clients.examples_per_step of both
    per_round = min(
        per_round, max(10, math.ceil(EPOCHS * rows / (_FEWEST * step)))
    )  # small sets: fewer clients a round
    rounds = max(_FEWEST, math.ceil(EPOCHS * rows / (per_round * step)))
    settings = [f"clients.per_round={per_round}", f"train.rounds={rounds}"]
    settings += [f"train.{key}_every={max(1, rounds // 10)}" for key in ("evaluate", "checkpoint")]
    if labels <= 10:  # the presets push ten neighbours away
        settings.append("spread.neighbors=auto")
    words = [f"fedaws train {preset} -s data.name=xc -s data.root=DIR", *(f"-s {setting}" for setting in settings)]
    command = " ".join(words)
    epochs = round(rounds * per_round * step / rows, 1)
    why = (
        f"{rounds:,} rounds of {per_round:,} clients see {rows:,} rows {epochs:g} times; DIR has train.txt and test.txt"
    )
    return Suggestion(preset, settings, command, epochs, f"{command}\n# {why}")
