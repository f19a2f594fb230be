"""The file of a measured threshold: what `fedaws trials … --far … --json` printed."""

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field

from fedaws.evaluate.intervals import Figure, Threshold
from fedaws.files import checked, read_json


def read_threshold(path: Path) -> Threshold:
    """The threshold in what `fedaws trials … --json` printed."""
    found = checked(_Trials, read_json(path), str(path)).threshold
    far, frr = (Figure(rate.value, rate.low, rate.high) for rate in (found.far, found.frr))
    return Threshold(found.threshold, far, frr, found.people, found.ask)


class _Rate(BaseModel):
    value: Annotated[float, Field(ge=0, le=1)]
    low: Annotated[float, Field(ge=0, le=1)]
    high: Annotated[float, Field(ge=0, le=1)]


class _Measured(BaseModel):
    threshold: Annotated[float, Field(ge=-1, le=1)]
    far: _Rate
    frr: _Rate
    people: Annotated[int, Field(ge=1)]
    ask: Annotated[int, Field(ge=1)] | None = None


class _Trials(BaseModel):
    threshold: _Measured
