"""What a private run has spent, in its folder before anybody can see what it was spent on; it only ever grows."""

import json
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict, NonNegativeInt
from torch import Tensor

from fedaws.errors import FedawsError
from fedaws.files import checked, read_json, write_text
from fedaws.record.files import read_tensors, write_tensors

LEDGER = "privacy.json"
PARTICIPATIONS = "participations.safetensors"


class _Spent(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    releases: NonNegativeInt


class Ledger:
    """How often θ was released with noise; where clients have a limit, also how often each took part.

    A round that is run again after a crash has other noise: it is one more release, and counts as one. Without a limit
    nothing is kept of who took part: that this is a secret is what sampling promises.
    """

    def __init__(self, folder: Path | None, clients: int | None = None) -> None:
        self._folder = folder
        self.releases = 0
        self.participations = None if clients is None else torch.zeros(clients, dtype=torch.int32)

    def open(self, rounds_done: int) -> None:
        """Go on from what is written down; refused if that is less than the checkpoint's rounds."""
        path = None if self._folder is None else self._folder / LEDGER
        if path is None or (not path.exists() and rounds_done == 0):
            return
        if not path.exists():
            raise FedawsError(
                f"{path} is missing, so nobody knows what {rounds_done} rounds have spent; bring it back or start anew"
            )
        self.releases = checked(_Spent, read_json(path), str(path)).releases
        if self.releases < rounds_done:
            raise FedawsError(
                f"{path} tells of {self.releases} releases, the checkpoint of {rounds_done} rounds; bring back the "
                "newest one or start anew"
            )
        if self.participations is not None:
            self.participations = _read_counts(path.with_name(PARTICIPATIONS), len(self.participations))

    def spend(self, cohort: Tensor) -> None:
        """Count one release of what these clients did, on disk when this returns."""
        self.releases += 1
        if self.participations is not None:
            self.participations[cohort.cpu()] += 1
        if self._folder is None:
            return
        facts = {"releases": self.releases}
        if self.participations is not None:
            write_tensors(self._folder / PARTICIPATIONS, {"participations": self.participations}, facts)
        write_text(self._folder / LEDGER, json.dumps(facts) + "\n")


def _read_counts(path: Path, clients: int) -> Tensor:
    counts = read_tensors(path)[0].get("participations")
    if counts is None or counts.shape != (clients,) or counts.dtype != torch.int32 or bool((counts < 0).any()):
        raise FedawsError(f"{path} has no counts of {clients} clients; bring it back or start anew")
    return counts
