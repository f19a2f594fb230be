"""The paper's Baseline-2: random rows that nobody trains."""

from fedaws.config import Config
from fedaws.core.method import Method, positive_loss
from fedaws.types import ClassFacts


def method(cfg: Config, _: ClassFacts | None) -> Method:
    """A fixed row each."""
    return Method("fixed", "Baseline-2", "fixed", positive_loss(cfg))
