"""The paper's Baseline-2: random rows that nobody trains."""

from functools import partial

from fedaws.config import Config
from fedaws.core import losses
from fedaws.core.method import Method
from fedaws.types import ClassFacts


def method(cfg: Config, _: ClassFacts | None) -> Method:
    """A fixed row each."""
    return Method("fixed", "Baseline-2", "fixed", partial(losses.positive_hinge, margin=cfg.clients.margin))
