r"""What a row says of its person to whoever has it and θ: examples that pass for theirs, found by ascent on

.. math:: \max_x \cos(g_\theta(x), w_i)

and shown to another model, trained apart from this one, at the threshold where it errs equally both ways.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedaws.audit.federation import dense_examples, federated, short
from fedaws.audit.figures import Figure, Finding, share
from fedaws.config import Config
from fedaws.core.local import embed
from fedaws.data.federated import FederatedData, as_input
from fedaws.errors import FedawsError
from fedaws.evaluate import Model


@dataclass(frozen=True)
class RowInversion:
    """Rows turned into examples that another model accepts."""

    accepted: Figure  # as that person; chance: random examples
    as_somebody_else: float  # share of the wrong persons that they are accepted as
    threshold: float
    equal_error: float  # of the other model

    def finding(self) -> Finding:
        """As a line of the table."""
        learns = f"an example that another model accepts (as somebody else {100 * self.as_somebody_else:.1f} %)"
        return Finding(
            "row-inversion", "whoever has a row", "looks for an example with that embedding", learns, self.accepted
        )


def row_inversion(
    model: Model, other: Model, data: FederatedData, rng: torch.Generator, *, tries: int = 10, steps: int = 300
) -> RowInversion:
    """Invert every row of the model, `tries` times each, and show what comes out to the other model."""
    if not isinstance(data.x_test, Tensor) or not isinstance(data.y_test, Tensor):
        raise FedawsError("row inversion needs dense examples of one label; leave it out")
    x = as_input(dense_examples(data))
    span = (float(x.min()), float(x.max()))
    threshold, rate = equal_error(_scores(other, data.x_test), data.y_test)
    classes = torch.arange(len(model.W)).repeat(tries)
    found = inverted(model, classes, x.shape[1:], span, rng, steps)
    noise = span[0] + (span[1] - span[0]) * torch.rand(len(classes), *x.shape[1:], generator=rng)
    scores, by_chance = _scores(other, found) >= threshold, _scores(other, noise) >= threshold
    own = scores[torch.arange(len(classes)), classes]
    wrong = (int(scores.sum()) - int(own.sum())) / (scores.numel() - len(own))
    chance = float(by_chance[torch.arange(len(classes)), classes].float().mean())
    return RowInversion(share(int(own.sum()), len(own), chance), wrong, threshold, rate)


def inverted(
    model: Model, classes: Tensor, shape: torch.Size, span: tuple[float, float], rng: torch.Generator, steps: int
) -> Tensor:
    """An example within the span for each of the classes, whose embedding points along the class's row."""
    low, high = span
    inner = (0.5 * torch.randn(len(classes), *shape, generator=rng)).requires_grad_()
    optimizer = torch.optim.Adam([inner], lr=0.05)
    rows = model.W[classes]
    for _ in range(steps):
        x = low + (high - low) * torch.sigmoid(inner)
        cosine = F.cosine_similarity(embed(model.encoder, model.theta, x, model.normalize), rows)
        optimizer.zero_grad()
        (1 - cosine).sum().backward(inputs=[inner])
        optimizer.step()
    return (low + (high - low) * torch.sigmoid(inner)).detach()


def equal_error(scores: Tensor, labels: Tensor) -> tuple[float, float]:
    """The threshold at which right and wrong claims are taken for each other equally often, and how often.

    >>> equal_error(torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([0, 1]))
    (0.800000011920929, 0.0)
    """
    own = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, labels[:, None], True)
    right, wrong = np.sort(scores[own].numpy()), np.sort(scores[~own].numpy())
    rejected = np.arange(len(right)) / len(right)  # of the right claims, at a threshold of each of them
    accepted = 1 - np.searchsorted(wrong, right) / len(wrong)
    at = int(np.argmin(np.abs(rejected - accepted)))
    return float(right[at]), float((rejected[at] + accepted[at]) / 2)


def another(cfg: Config, data: FederatedData, rounds: int | None = None) -> Model:
    """A model of the same settings from another seed."""
    return federated(short(cfg, rounds or cfg.train.rounds, cfg.seed + 1000), data)


def _scores(model: Model, x: Tensor) -> Tensor:
    return F.normalize(model.embed(x), dim=1) @ F.normalize(model.W, dim=1).T
