r"""Class embeddings from class features, the paper's future work: w_c = h_φ(f_c), with φ on the server.

A client still gets and moves nothing but its own row. What it makes of the row, (w_c' − w_c)/η, stands for −∇R_c and
goes on through h's Jacobian J_c,

.. math:: \varphi \leftarrow \varphi + \gamma \Big(\frac{1}{|C^t|} \sum_{c \in C^t} J_c^T \frac{w_c' - w_c}{\eta}
          - \frac{\lambda}{C} \nabla_\varphi\, reg_{sp}(h_\varphi)\Big)

so that it is a step on the mean risk plus λ/C of eq. (6) over all pairs. All rows are made anew, also those of classes
that have no client: a class that nobody has examples of gets a row that works. h is a linear map or a perceptron of one
hidden layer, at unit length. The paper only names the idea; all of this is our reading of it.
"""

from functools import partial

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedaws.config import Config, Section
from fedaws.core.local import leaves_of
from fedaws.core.method import Method, Spread, When, positive_loss
from fedaws.core.methods import options_of, wanted_fact
from fedaws.core.spreadout import spreadout_gradient
from fedaws.hashing import hash64
from fedaws.types import ClassFacts, Memory


class Options(Section):
    """Settings of this method alone."""

    hidden: int = Field(0, ge=0, le=100_000, description="Width of h's hidden layer; 0: a linear map.")
    step: float = Field(0.5, gt=0, le=1e6, description="γ, the step on φ.")
    weight: float = Field(0.1, ge=0, le=1e6, description="λ of eq. (6), over the number of classes.")


def method(cfg: Config, classes: ClassFacts | None) -> Method:
    """FedAwS's clients; the server trains φ instead of W."""
    options, features = options_of(cfg, Options), wanted_fact(classes, "features")
    loss = positive_loss(cfg)
    made = partial(Method, "class-features", "rows from class features", "own", loss, needs=frozenset({"features"}))
    if features is None:
        return made(Spread(lambda W, _, __, ___, memory: memory))
    first = {k: v.to(features.device) for k, v in _first_parameters(cfg, options, features.shape[1]).items()}

    def step(W: Tensor, heard: Tensor, when: When, _: torch.Generator, memory: Memory) -> Memory:
        leaves = leaves_of(memory)
        with torch.enable_grad():
            rows = make_rows(leaves, features)
        direction = spreadout_gradient(rows.detach(), cfg.spread.margin)[0] * (-options.weight / len(W))
        if when.lr > 0:  # at 0 no client has moved its row
            direction[heard] += (W[heard] - rows.detach()[heard]) / (when.lr * len(heard))
        gradients = torch.autograd.grad(rows, [*leaves.values()], direction)
        lr = options.step * when.factor
        moved = {k: v + lr * g for (k, v), g in zip(memory.items(), gradients, strict=True)}
        W.copy_(make_rows(moved, features))
        return moved

    return made(
        Spread(step, lambda W: {k: v.to(W) for k, v in first.items()}), start=lambda _: make_rows(first, features)
    )


def make_rows(params: Memory, features: Tensor) -> Tensor:
    """h_φ of all classes' features, unit rows [C, d]."""
    hidden = features.to(params["last"].dtype)
    if "first" in params:
        hidden = F.relu(hidden @ params["first"].T)
    return F.normalize(hidden @ params["last"].T, dim=1)


def _first_parameters(cfg: Config, options: Options, width: int) -> Memory:
    rng = torch.Generator().manual_seed(hash64(cfg.seed, "class features"))
    dim = cfg.model.embedding_dim
    if not options.hidden:
        return {"last": torch.randn(dim, width, generator=rng) * width**-0.5}
    first = torch.randn(options.hidden, width, generator=rng) * (2 / width) ** 0.5
    return {"first": first, "last": torch.randn(dim, options.hidden, generator=rng) * options.hidden**-0.5}
