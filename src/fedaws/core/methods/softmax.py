"""The oracle of the paper's tables: every client gets all of W and trains by softmax cross-entropy."""

from functools import partial

from fedaws.config import Config
from fedaws.core import losses
from fedaws.core.method import Method
from fedaws.types import ClassFacts


def method(cfg: Config, _: ClassFacts | None) -> Method:
    """Everybody sees everybody's row."""
    scale = cfg.clients.scale if cfg.model.normalize else 1.0
    return Method("softmax", "oracle", "all", partial(losses.softmax_cross_entropy, scale=scale))
