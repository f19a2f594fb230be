"""What a private run has spent, in its folder before anybody can see what it was spent on; it only ever grows."""

import json
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError
from torch import Tensor

from fedaws.errors import FedawsError
from fedaws.files import checked, read_json, write_text
from fedaws.record.files import read_tensors, write_tensors

LEDGER = "privacy.json"
PARTICIPATIONS = "participations.safetensors"


class Terms(BaseModel):
    """What a release costs: all that the accounting goes by but the number of releases."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    noise: float  # multiplier of the clip
    clip: float
    delta: float
    people: NonNegativeInt
    cohorts: str  # how they are made


class _Spent(Terms):
    releases: NonNegativeInt
    left_out: NonNegativeInt  # changes that were not finite, and counted as zero


class _Counted(BaseModel):
    releases: NonNegativeInt


class Ledger:
    """How often θ was released with noise, on which terms; where clients have a limit, also how often each took part.

    A round that is run again after a crash has other noise: it is one more release, and counts as one. Without a limit
    nothing is kept of who took part: that this is a secret is what sampling promises.
    """

    def __init__(self, folder: Path | None, terms: Terms, limited: bool = False) -> None:
        self._folder = folder
        self._terms = terms
        self.releases = 0
        self.left_out = 0
        self.participations = torch.zeros(terms.people, dtype=torch.int32) if limited else None

    def open(self, begun: bool) -> None:
        """Start with nothing spent, written down; or, of a run that was begun, go on from what is written there."""
        if self._folder is None:
            return
        path = self._folder / LEDGER
        if begun:
            self._go_on(path)
        elif path.exists() and _read(path).releases:
            raise FedawsError(f"{path} is of a run that has spent already; choose another folder")
        self._write()

    def check(self, rounds_done: int) -> None:
        """Refuse a ledger that is older than the checkpoint."""
        if self._folder is not None and self.releases < rounds_done:
            raise FedawsError(
                f"{self._folder / LEDGER} tells of {self.releases} releases, the checkpoint of {rounds_done} rounds; "
                "bring back the newest one or start anew elsewhere"
            )

    def spend(self, cohort: Tensor, left_out: int = 0) -> None:
        """Count one release of what these clients did, on disk when this returns."""
        self.releases += 1
        self.left_out += left_out
        if self.participations is not None:
            self.participations[cohort.cpu()] += 1
        self._write()

    def _write(self) -> None:
        if self._folder is None:
            return
        if self.participations is not None:
            tensors = {"participations": self.participations}
            write_tensors(self._folder / PARTICIPATIONS, tensors, {"releases": self.releases})
        spent = _Spent(**self._terms.model_dump(), releases=self.releases, left_out=self.left_out)
        write_text(self._folder / LEDGER, json.dumps(spent.model_dump()) + "\n")

    def _go_on(self, path: Path) -> None:
        if not path.exists():
            raise FedawsError(
                f"{path} is missing, so nobody knows what this run has spent; bring it back or start anew elsewhere"
            )
        spent = _read(path)
        for key, ours in self._terms.model_dump().items():
            theirs = getattr(spent, key)
            if ours != theirs:
                raise FedawsError(
                    f"{path} is of releases with {key}={theirs}, now it is {ours}: they cannot be priced together; "
                    "resume with the settings, data and packages that it was begun with"
                )
        self.releases = spent.releases
        self.left_out = spent.left_out
        if self.participations is not None:
            self._read_counts(path.with_name(PARTICIPATIONS))

    def _read_counts(self, path: Path) -> None:
        assert self.participations is not None
        tensors, text = read_tensors(path)
        counts = tensors.get("participations")
        clients = len(self.participations)
        if counts is None or counts.shape != (clients,) or counts.dtype != torch.int32 or bool((counts < 0).any()):
            raise FedawsError(f"{path} has no counts of {clients} clients; bring it back or start anew elsewhere")
        try:
            releases = _Counted.model_validate_json(text).releases
        except ValidationError:
            releases = -1
        # It is written first: after a crash between the two it may be one ahead, of a release that nobody saw.
        if releases not in (self.releases, self.releases + 1) or int(counts.max()) > releases:
            raise FedawsError(
                f"{path} is not of the {self.releases} releases that {LEDGER} tells of; bring back the newest of both "
                "or start anew elsewhere"
            )
        self.releases = releases
        self.participations = counts


def _read(path: Path) -> _Spent:
    return checked(_Spent, read_json(path), str(path))
