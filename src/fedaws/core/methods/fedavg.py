"""Plain federated averaging (Section 3.1): clients of several classes, all of W sent and averaged like θ."""

from dataclasses import replace

from fedaws.config import Config
from fedaws.core.method import Method
from fedaws.core.methods import softmax
from fedaws.types import ClassFacts


def method(cfg: Config, classes: ClassFacts | None) -> Method:
    """Softmax, with two classes a client."""
    return replace(softmax.method(cfg, classes), name="fedavg", role="Section 3.1", classes_per_client=2)
