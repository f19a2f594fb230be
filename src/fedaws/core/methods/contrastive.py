"""An oracle: the cosine contrastive loss, eq. (11), whose negative part spreadout stands in for."""

from functools import partial

from fedaws.config import Config
from fedaws.core import losses
from fedaws.core.method import Method
from fedaws.types import ClassFacts


def method(cfg: Config, _: ClassFacts | None) -> Method:
    """Everybody sees everybody's row."""
    loss = partial(losses.cosine_contrastive, margin=cfg.spread.margin, positive_margin=cfg.clients.margin)
    return Method("contrastive", "oracle", "all", loss)
