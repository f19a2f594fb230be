"""The paper's Baseline-1: FedAwS without a step of the server on W. The classes collapse."""

from fedaws.config import Config
from fedaws.core.method import Method, positive_loss
from fedaws.types import ClassFacts


def method(cfg: Config, _: ClassFacts | None) -> Method:
    """Own rows, nobody keeps them apart."""
    return Method("positive-only", "Baseline-1", "own", positive_loss(cfg))
