"""Thresholds and error rates from the strangers of a run itself: the people of its data who had no client."""

from collections.abc import Iterator
from contextlib import contextmanager

from fedaws.data.strangers import Part
from fedaws.errors import FedawsError
from fedaws.evaluate.comparisons import Comparisons
from fedaws.evaluate.intervals import Threshold, threshold_for
from fedaws.evaluate.strangers import compared
from fedaws.training.run import Run


def run_comparisons(run: Run, enroll: int | None = None, ask: int = 1) -> dict[Part, Comparisons]:
    """Comparisons of each part of the run's strangers; refused where it has none."""
    parts = run.strangers
    if not parts:
        raise FedawsError(
            "the run has no strangers of its own; train with data.strangers, or give people who took no part"
        )
    by = run.config.data.enroll if enroll is None else enroll
    return {part: compared(run.model, strangers.to(run.W.device), by, ask) for part, strangers in parts.items()}


def final(parts: dict[Part, Comparisons]) -> tuple[Part, Comparisons]:
    """Those by whom nothing was chosen, or, where there are no such, those there are."""
    part: Part = "test_strangers" if "test_strangers" in parts else "strangers"
    return part, parts[part]


def run_threshold(
    run: Run,
    *,
    far: float | None = None,
    frr: float | None = None,
    enroll: int | None = None,
    ask: int = 1,
    draws: int = 1000,
) -> Threshold:
    """The threshold for a wanted FAR or FRR from the strangers of the run.

    It is found by `strangers`, and its rates are those on `test_strangers`, where the run has both.
    """
    return threshold_among(run_comparisons(run, enroll, ask), far=far, frr=frr, draws=draws)


def threshold_among(
    parts: dict[Part, Comparisons],
    *,
    far: float | None = None,
    frr: float | None = None,
    draws: int = 1000,
    named: bool = True,
) -> Threshold:
    """The same, of comparisons that have been made; `named`: mistakes name the part of the strangers."""
    _, tested = final(parts)
    part: Part = "strangers" if "strangers" in parts else "test_strangers"
    with told_of(part if named else None):
        return threshold_for(parts[part], far=far, frr=frr, tested=tested, draws=draws)


@contextmanager
def told_of(part: Part | None) -> Iterator[None]:
    """Name the group of people that a mistake is about; None: there is only one."""
    try:
        yield
    except FedawsError as error:
        raise FedawsError(f"{part}: {error}" if part else str(error)) from None
