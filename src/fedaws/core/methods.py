"""The methods that are compared: what differs between them, as data."""

from dataclasses import dataclass
from typing import Literal

from fedaws.config import Config


@dataclass(frozen=True)
class Method:
    """One row of a table.

    `rows` says what of W a client is sent: its `own` row, which it trains; its own row, `fixed` for good; or `all`
    of W, which is then averaged like θ (only the oracles and plain FedAvg do that).
    """

    role: str
    loss: Literal["positive-hinge", "softmax", "cosine-contrastive", "triplet"]
    rows: Literal["own", "fixed", "all"]
    spread: bool = False
    classes_per_client: int = 1


METHODS: dict[str, Method] = {
    "fedaws": Method("the paper's", "positive-hinge", "own", spread=True),
    "positive-only": Method("Baseline-1", "positive-hinge", "own"),
    "fixed": Method("Baseline-2", "positive-hinge", "fixed"),
    "softmax": Method("oracle", "softmax", "all"),
    "contrastive": Method("oracle", "cosine-contrastive", "all"),
    "triplet": Method("oracle", "triplet", "all"),
    "fedavg": Method("Section 3.1", "softmax", "all", classes_per_client=2),
}


def method_of(cfg: Config) -> Method:
    """The method that a configuration names."""
    return METHODS[cfg.method]
