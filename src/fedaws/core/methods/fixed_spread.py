r"""Fixed rows that are good ones: FedETF (Li et al. 2023) and SphereFed (Dong et al. 2022) in positive-only form.

Up to d + 1 classes have the regular simplex; beyond, random rows are spread by what `[spread]` says before the first
round. Nobody trains them. (FedETF's clients have a softmax over all classes, and both papers' several classes each.)
"""

from pydantic import Field
from torch import Tensor

from fedaws.config import Config, Section
from fedaws.core import spreadout
from fedaws.core.method import Method, positive_loss
from fedaws.core.methods import options_of
from fedaws.core.start import simplex, spread_first
from fedaws.types import ClassFacts


class Options(Section):
    """Settings of this method alone."""

    steps: int = Field(200, ge=1, le=100_000, description="Steps of spreading before round 0, where C > d + 1.")


def method(cfg: Config, _: ClassFacts | None) -> Method:
    """Baseline-2 with the best rows there are."""
    options = options_of(cfg, Options)

    def start(rows: Tensor) -> Tensor:
        if len(rows) <= rows.shape[1] + 1:
            return simplex(rows)
        return spread_first(rows, spreadout.make_spread(cfg), options.steps, cfg.class_lr)

    loss = positive_loss(cfg)
    return Method("fixed-spread", "Baseline-2, rows spread once", "fixed", loss, start=start)
