r"""What the server reads off an update: the examples themselves.

*Exactly*, where the encoder begins with a linear layer that has a bias. A hidden unit that one example alone passes has

.. math:: \Delta W_u / \Delta b_u = \frac{\delta_u x}{\delta_u} = x

(Geiping et al. 2020, proposition 3.1). What two units agree on is taken for an example; the truth is not needed.

*By optimisation*, for any encoder: examples are looked for whose gradient points where the update does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedaws.audit.federation import dense_examples
from fedaws.audit.figures import Figure, Finding, mean, share
from fedaws.config import Config
from fedaws.core.local import Batch, ExampleLosses, example_losses, local_update, own_gradient
from fedaws.core.method import Method
from fedaws.core.methods import method_of
from fedaws.data.federated import FederatedData, as_input
from fedaws.evaluate import Model
from fedaws.types import Params

_AGREE = 1e-3  # two units' candidates are one example if they differ by less
_RIGHT = 1e-2  # an example is recovered if it is known to one per cent

Way = Literal["exact", "optimised"]


@dataclass(frozen=True)
class Inversion:
    """Examples that the server reads off updates."""

    way: Way
    clients: int  # whose updates are added up
    batch: int  # examples of a step
    steps: int
    fresh: bool  # whether each step has other examples
    recovered: Figure  # share of the examples, by the client
    any_client: Figure | None  # share of single clients that lose at least one
    right: float  # share of what the attack gives out that is an example

    def finding(self) -> Finding:
        """As a line of the table."""
        whom = "one client's update" if self.clients == 1 else f"the sum of {self.clients} clients' updates"
        steps = "" if self.steps == 1 else f", {self.steps} steps on {'fresh' if self.fresh else 'the same'} batches"
        how = {"exact": "inverts", "optimised": "matches the gradient of"}[self.way]
        some = f"; {100 * self.any_client.value:.0f} % of the clients lose one" if self.any_client else ""
        within = {"exact": "to 1 %", "optimised": "nearer than any other of its class"}[self.way]
        does = f"{how} {whom}, {self.batch} example{'s' * (self.batch > 1)} a step{steps}"
        return Finding("inversion", "the server", does, f"examples {within}{some}", self.recovered)


def inversion(
    model: Model,
    cfg: Config,
    data: FederatedData,
    rng: torch.Generator,
    *,
    clients: int = 1,
    batch: int = 8,
    steps: int = 1,
    fresh: bool = False,
    tries: int = 30,
) -> Inversion:
    """Exact inversion of simulated updates on the model's own θ, each the sum of some clients'."""
    method = method_of(cfg)
    shares, outputs, hits = [], 0, 0
    for _ in range(tries):
        truth, delta = _summed(model, cfg, method, data, rng, clients, batch, steps, fresh)
        found = exact(delta, model.encoder)
        near = _relative(truth, found) < _RIGHT
        shares.append(float(near.any(1).float().mean()))
        outputs += len(found)
        hits += int(near.any(0).sum())
    lost = share(sum(s > 0 for s in shares), tries, 0.0) if clients == 1 else None
    return Inversion("exact", clients, batch, steps, fresh, mean(shares, 0.0), lost, hits / max(1, outputs))


def exact(delta: Params, encoder: nn.Module) -> Tensor:
    """The examples that a change of θ shows by its first layer's ratios, [n, features]; none without a bias.

    >>> layer = nn.Linear(2, 2)
    >>> exact({"weight": torch.tensor([[0.2, 0.4], [-0.5, -1.0]]), "bias": torch.tensor([0.1, -0.25])}, layer)
    tensor([[2., 4.]])
    """
    weight, bias = first_layer(encoder)
    if weight is None or bias is None:
        return torch.empty(0, 0)
    change, by = delta[weight], delta[bias]
    moved = by.abs() > 1e-6 * by.abs().max()
    candidates = change[moved] / by[moved, None]
    agree = _relative(candidates, candidates).fill_diagonal_(torch.inf) < _AGREE
    return _distinct(candidates[agree.any(1)])


def first_layer(encoder: nn.Module) -> tuple[str | None, str | None]:
    """The names of weight and bias of the linear layer that sees the examples; None for what it has not."""
    for name, module in encoder.named_modules():
        if isinstance(module, nn.Linear):
            stem = f"{name}." if name else ""
            return f"{stem}weight", None if module.bias is None else f"{stem}bias"
        if next(module.children(), None) is None and next(module.parameters(), None) is not None:
            return None, None  # another layer with weights comes first
    return None, None


def _distinct(rows: Tensor) -> Tensor:
    """One of each that agree."""
    kept: list[Tensor] = []
    for row in rows:
        if not kept or bool((_relative(torch.stack(kept), row[None]) > _AGREE).all()):
            kept.append(row)
    return torch.stack(kept) if kept else rows[:0]


def _relative(rows: Tensor, others: Tensor) -> Tensor:
    """‖a − b‖ / ‖a‖ of all pairs, [n, m]."""
    if not others.numel():
        return torch.empty(len(rows), 0)
    # Not by inner products, which lose the digits where two are nearly the same.
    distances = torch.cdist(rows, others, compute_mode="donot_use_mm_for_euclid_dist")
    lengths: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return distances / lengths.clamp_min(1e-9)


# --- updates --------------------------------------------------------------------------------------------------------


def update_of(model: Model, cfg: Config, method: Method, w: Tensor, batches: Sequence[Tensor], classes: int) -> Params:
    """θ_i − θ of a client with row w that takes a step on each batch."""
    gradient = own_gradient(example_losses(model.encoder, cfg, method, classes))
    several = cfg.with_(clients={"local_steps": len(batches)})
    steps: list[Batch] = [
        (x, torch.zeros(len(x), dtype=torch.int64), torch.full((len(x),), 1 / len(x))) for x in batches
    ]
    theta = {name: model.theta[name] for name, p in model.encoder.named_parameters() if p.requires_grad}
    return local_update(gradient, several, method, theta, w, steps, 1.0)[0]


def _summed(
    model: Model,
    cfg: Config,
    method: Method,
    data: FederatedData,
    rng: torch.Generator,
    clients: int,
    batch: int,
    steps: int,
    fresh: bool,
) -> tuple[Tensor, Params]:
    """The examples of some clients, flat, and the sum of their changes."""
    truth, total = [], Params()
    for _ in range(clients):
        one = int(data.available[int(torch.randint(len(data.available), (1,), generator=rng))])
        mine = as_input(dense_examples(data)[int(data.starts[one]) : int(data.starts[one + 1])])
        order = torch.randperm(len(mine), generator=rng)
        batches = [mine[order[s * batch : (s + 1) * batch] if fresh else order[:batch]] for s in range(steps)]
        batches = [part for part in batches if len(part)]
        delta = update_of(model, cfg, method, model.W[int(data.class_of[one])], batches, data.num_classes)
        truth += batches if fresh else batches[:1]
        total = {name: total[name] + change if total else change for name, change in delta.items()}
    return torch.cat(truth).flatten(1), total


# --- by optimisation ------------------------------------------------------------------------------------------------


def optimised_inversion(
    model: Model,
    cfg: Config,
    data: FederatedData,
    rng: torch.Generator,
    *,
    batch: int = 1,
    tries: int = 10,
    steps: int = 300,
) -> Inversion:
    """Gradient matching on one-step updates of single clients.

    An example counts as recovered if what was found points nearer to it than to any other example of its client; chance
    is the batch's share of these.
    """
    method, shares, chances = method_of(cfg), [], []
    loss_of = example_losses(model.encoder, cfg, method, data.num_classes)
    x = dense_examples(data)
    low, high = float(as_input(x).min()), float(as_input(x).max())
    for _ in range(tries):
        one = int(data.available[int(torch.randint(len(data.available), (1,), generator=rng))])
        mine = as_input(x[int(data.starts[one]) : int(data.starts[one + 1])])
        order, w = torch.randperm(len(mine), generator=rng), model.W[int(data.class_of[one])]
        taken = order[:batch]
        delta = update_of(model, cfg, method, w, [mine[taken]], data.num_classes)
        found = matched(delta, model.theta, loss_of, w, mine[taken].shape, (low, high), rng, steps)
        # By direction: an encoder without biases is blind to an example's length.
        nearest = (F.normalize(found.flatten(1), dim=1) @ F.normalize(mine.flatten(1), dim=1).T).argmax(1)
        shares.append(len(set(nearest.tolist()) & set(taken.tolist())) / len(taken))
        chances.append(len(taken) / len(mine))
    lost = share(sum(s > 0 for s in shares), tries)
    recovered = mean(shares, sum(chances) / tries)
    return Inversion("optimised", 1, batch, 1, False, recovered, lost, recovered.value)


def matched(
    delta: Params,
    theta: Params,
    loss_of: ExampleLosses,
    w: Tensor,
    shape: torch.Size,
    span: tuple[float, float],
    rng: torch.Generator,
    steps: int,
) -> Tensor:
    r"""Examples of this shape whose gradient points against the change of θ:

    .. math:: \max_x \cos\big(-\Delta\theta,\ \nabla_\theta R(x)\big)
    """
    low, high = span
    wanted = torch.cat([-delta[name].flatten() for name in delta])
    if not bool(wanted.any()):  # an update of zeros says nothing
        return low + (high - low) * torch.rand(shape, generator=rng)
    inner = torch.randn(shape, generator=rng).requires_grad_()
    optimizer = torch.optim.Adam([inner], lr=0.1)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    leaves = {name: theta[name].detach().requires_grad_() for name in delta}
    y = torch.zeros(len(inner), dtype=torch.int64)
    for _ in range(steps):
        x = low + (high - low) * torch.sigmoid(inner)
        risk = loss_of(leaves, w, x, y).mean()
        gradient = torch.autograd.grad(risk, list(leaves.values()), create_graph=True)
        cosine = F.cosine_similarity(torch.cat([g.flatten() for g in gradient]), wanted, dim=0)
        optimizer.zero_grad()
        (1 - cosine).backward(inputs=[inner])
        optimizer.step()
        falling.step()
    return (low + (high - low) * torch.sigmoid(inner)).detach()
