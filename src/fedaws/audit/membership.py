r"""Whether a person took part, asked of θ alone: the examples of people who trained lie closer together, also examples
that were never trained on.

The attack's error rates bound any differential privacy from below: a mechanism with (ε, δ) has

.. math:: \mathrm{TPR} \le e^\varepsilon\,\mathrm{FPR} + \delta, \qquad
          \mathrm{TNR} \le e^\varepsilon\,\mathrm{FNR} + \delta
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedaws.audit.federation import dense_examples, federated, protection_of, short
from fedaws.audit.figures import Figure, Finding, at_least, at_most, auc
from fedaws.config import Config
from fedaws.core.methods import method_of
from fedaws.data.federated import FederatedData, as_input, from_arrays
from fedaws.errors import FedawsError
from fedaws.evaluate import Model
from fedaws.hashing import hash64
from fedaws.models import build_encoder
from fedaws.privacy.accountant import epsilon
from fedaws.types import ClassFacts

_AT_ONCE = 100  # examples of a person that are looked at


@dataclass(frozen=True)
class Membership:
    """How well members are told from others."""

    auc: Figure  # over pairs of a member and another; chance: under an encoder that was never trained
    epsilon: float  # any (ε, δ) of the training is at least this, at 95 % confidence
    delta: float
    people: int
    promised: float | None = None  # the accountant's ε of a private training, at this δ

    def finding(self) -> Finding:
        """As a line of the table."""
        does = f"asks whether a person took part, by how close unseen examples lie (AUC, {self.people} people)"
        bound = f"membership; ε is at least {self.epsilon:.2f}"
        promise = "" if self.promised is None else f", by the accountant at most {self.promised:.2f}"
        return Finding("membership", "whoever has θ", does, f"{bound}{promise}", self.auc)


def membership(
    model: Model, members: Sequence[Tensor], others: Sequence[Tensor], untrained: Model, delta: float = 1e-5
) -> Membership:
    """Measure on people who took part and people who did not, each by examples that nobody trained on."""
    inside, outside = ([compactness(model, x) for x in people] for people in (members, others))
    before = auc([compactness(untrained, x) for x in members], [compactness(untrained, x) for x in others])
    figure = replace(auc(inside, outside), chance=before.value)
    return Membership(figure, epsilon_at_least(inside, outside, delta), delta, len(inside) + len(outside))


def compactness(model: Model, x: Tensor) -> float:
    r"""The mean cosine of two examples of one person: (‖Σ g‖² − n) / (n² − n)."""
    z = torch.nn.functional.normalize(model.embed(x[:_AT_ONCE]), dim=1)
    count = len(z)
    return (float(z.sum(0).square().sum()) - count) / (count * count - count)


def epsilon_at_least(inside: Sequence[float], outside: Sequence[float], delta: float = 1e-5) -> float:
    r"""A lower bound on ε from scores: every other person chooses the threshold, the rest are counted.

    .. math:: \varepsilon \ge \ln\frac{\mathrm{TPR}_{low} - \delta}{\mathrm{FPR}_{high}}

    and the same of the error rates the other way round; the rates by Clopper and Pearson at 97.5 % each.

    >>> round(epsilon_at_least([1.0] * 200, [0.0] * 200), 2)  # ln((0.025^(1/100)) / (1 − 0.025^(1/100)))
    3.28
    """
    threshold = _best_threshold(inside[::2], outside[::2])
    caught, n = sum(s >= threshold for s in inside[1::2]), len(inside[1::2])
    wrong, m = sum(s >= threshold for s in outside[1::2]), len(outside[1::2])
    if not n or not m:
        return 0.0
    rates = [(at_least(caught, n), at_most(wrong, m)), (at_least(m - wrong, m), at_most(n - caught, n))]
    # Two bounds from one set of counts share their confidence: the larger is chosen beforehand, by the first half.
    low, high = rates[0] if _tail(inside[::2], outside[::2], threshold) else rates[1]
    return max(0.0, math.log((low - delta) / high)) if low > delta else 0.0


def _best_threshold(inside: Sequence[float], outside: Sequence[float]) -> float:
    """Where members and others are told apart best."""
    return max((*inside, *outside), key=lambda t: sum(s >= t for s in inside) / len(inside) - _share(outside, t))


def _share(scores: Sequence[float], threshold: float) -> float:
    return sum(s >= threshold for s in scores) / len(scores)


def _tail(inside: Sequence[float], outside: Sequence[float], threshold: float) -> bool:
    """Whether false alarms are rarer than misses."""
    return _share(outside, threshold) <= 1 - _share(inside, threshold)


# --- by training anew ------------------------------------------------------------------------------------------------


def membership_of_halves(cfg: Config, data: FederatedData, splits: int = 4, rounds: int | None = None) -> Membership:
    """Train the run's settings on half of the classes, the other half being the people who took no part; of several
    random halves all scores together, each after its model's mean.
    """
    if data.num_classes < 4 or not isinstance(data.y_test, Tensor) or not isinstance(data.x_test, Tensor):
        raise FedawsError(
            f"membership needs at least 4 classes and one label an example, got {data.num_classes}; leave it out"
        )
    inside: list[float] = []
    outside: list[float] = []
    before: tuple[list[float], list[float]] = ([], [])
    for split in range(splits):
        rng = torch.Generator().manual_seed(hash64(cfg.seed, "audit", split))
        order = torch.randperm(data.num_classes, generator=rng)
        taking, rest = order[: len(order) // 2], order[len(order) // 2 :]
        run = short(cfg, rounds or cfg.train.rounds, cfg.seed + split).with_(data={"num_classes": None})
        half = only(data, taking)
        model = federated(run, half)
        encoder = build_encoder(run.model, data.x.shape[1:], run.seed)
        untrained = Model(encoder, {k: p.detach() for k, p in encoder.named_parameters()}, model.W, model.normalize)
        for scored, (one, two) in ((model, (inside, outside)), (untrained, before)):
            scores = {c: compactness(scored, as_input(data.x_test[data.y_test == c])) for c in order.tolist()}
            centre = sum(scores.values()) / len(scores)
            one += [scores[c] - centre for c in taking.tolist()]
            two += [scores[c] - centre for c in rest.tolist()]
    figure = replace(auc(inside, outside), chance=auc(*before).value)
    private = protection_of(run, method_of(run, half.class_facts or ClassFacts()), half, encoder)
    delta = 1e-5 if private is None else private.delta
    promised = None if private is None else epsilon(private.noise, delta, run.train.rounds, private.cohorts)
    return Membership(figure, epsilon_at_least(inside, outside, delta), delta, len(inside) + len(outside), promised)


def only(data: FederatedData, classes: Tensor) -> FederatedData:
    """The federation of some of the classes, numbered anew."""
    place = torch.full((data.num_classes,), -1)
    place[classes] = torch.arange(len(classes))
    assert isinstance(data.y_test, Tensor)
    assert isinstance(data.x_test, Tensor)
    train, test = place[data.y] >= 0, place[data.y_test] >= 0
    x = dense_examples(data)
    return from_arrays(x[train], place[data.y[train]], data.x_test[test], place[data.y_test[test]])
