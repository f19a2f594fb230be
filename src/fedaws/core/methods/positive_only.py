"""The paper's Baseline-1: FedAwS without a step of the server on W. The classes collapse."""

from functools import partial

from fedaws.config import Config
from fedaws.core import losses
from fedaws.core.method import Method
from fedaws.types import ClassFacts


def method(cfg: Config, _: ClassFacts | None) -> Method:
    """Own rows, nobody keeps them apart."""
    return Method("positive-only", "Baseline-1", "own", partial(losses.positive_hinge, margin=cfg.clients.margin))
