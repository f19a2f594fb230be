r"""FedAwS with agnostic weights (the paper's footnote; Mohri et al. 2019): no class is left behind for the mean.

.. math:: \min_{\theta, W}\ \max_{\omega \in \Delta}\ \sum_c \omega_c R_c(\theta, w_c)

The server keeps a weight for each class, sends nothing of it, and ascends on the clients' losses after each round,

.. math:: \omega_c \leftarrow \omega_c e^{\gamma (R_c - \bar R)}, \qquad \bar R \text{ the mean over the cohort,}

with a little of the even weights, so that none is lost. Mohri et al. project a plain gradient step onto the simplex;
exponentiated steps stay on it. Taking R̄ away changes nothing where all clients take part, and where some do, it keeps
those from gaining only because they were heard. ω weighs the clients' changes of θ; a client's own row takes its own
full step.
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
    mixing: float = Field(0.01, gt=0, lt=1, description="How much of the even weights is mixed in, each round.")


def method(cfg: Config, classes: ClassFacts | None) -> Method:
    """The paper's own, with weights that follow the losses."""
    options = options_of(cfg, Options)

    def learn(memory: Memory, classes: Tensor, losses: Tensor) -> Memory:
        heard, group, clients = classes.unique(return_inverse=True, return_counts=True)
        risks = losses.new_zeros(len(heard)).index_add_(0, group, losses) / clients  # R_c, over a class's clients
        ascent = options.step * (risks - risks.mean()).to(torch.float32)
        shares = memory["log_weights"].index_add(0, heard, ascent).softmax(0)
        return {"log_weights": shares.mul(1 - options.mixing).add(options.mixing / len(shares)).log()}

    weighting = Weighting(
        init=lambda W: {"log_weights": W.new_full((len(W),), 1 / len(W)).log()},
        weights=lambda memory, classes: memory["log_weights"][classes].softmax(0) * len(classes),
        learn=learn,
    )
    return replace(fedaws.method(cfg, classes), name="agnostic", role="agnostic weights", weighting=weighting)
