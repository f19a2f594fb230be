r"""FedAwS with agnostic weights (the paper's footnote; Mohri et al. 2019): no class is left behind for the mean.

.. math:: \min_{\theta, W}\ \max_{\omega \in \Delta}\ \sum_c \omega_c R_c(\theta, w_c)

The server keeps a weight for each class, sends nothing of it, and ascends on the clients' losses after each round,
:math:`\omega_c \leftarrow \omega_c e^{\gamma R_c}`, with a little of the even weights, so that none is lost.
"""

from dataclasses import replace

import torch
from pydantic import Field
from torch import Tensor

from fedaws.config import Config, Section
from fedaws.core.method import Method, Weighting
from fedaws.core.methods import fedaws, options_of
from fedaws.types import ClassFacts, Memory


class Options(Section):
    """Settings of this method alone."""

    step: float = Field(0.1, gt=0, le=100, description="γ, the step of the ascent on the weights' logarithms.")
    mixing: float = Field(0.01, ge=0, lt=1, description="How much of the even weights is mixed in, each round.")


def method(cfg: Config, classes: ClassFacts | None) -> Method:
    """The paper's own, with weights that follow the losses."""
    options = options_of(cfg, Options)

    def learn(memory: Memory, classes: Tensor, losses: Tensor) -> Memory:
        log_weights = memory["log_weights"].index_add(0, classes, options.step * losses.to(torch.float32))
        shares = log_weights.softmax(0).mul(1 - options.mixing).add(options.mixing / len(log_weights))
        return {"log_weights": shares.log()}

    weighting = Weighting(
        init=lambda W: {"log_weights": torch.zeros(len(W), device=W.device)},
        weights=lambda memory, classes: memory["log_weights"][classes].softmax(0) * len(classes),
        learn=learn,
    )
    return replace(fedaws.method(cfg, classes), name="agnostic", role="agnostic weights", weighting=weighting)
