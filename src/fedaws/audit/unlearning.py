r"""Whether some rounds without a person make θ forget them, by the attack of `membership.py`.

People are parted at random: some never take part (the *others*), some take part to the end, some *leave*. The attack
asks how compact somebody's unseen examples are; its AUC is over pairs of a leaver and another. It is measured under θ
before they leave, after so many further rounds of those who stay, and under a θ that was trained anew without them:
what perfect unlearning would give. All scores of a model are taken after the mean of its others.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedaws.audit.federation import short
from fedaws.audit.figures import Figure, Finding, auc, mean
from fedaws.audit.membership import compactness, only
from fedaws.config import Config
from fedaws.data.federated import FederatedData, as_input
from fedaws.errors import FedawsError
from fedaws.evaluate import Model
from fedaws.hashing import hash64
from fedaws.training.session import Reporter
from fedaws.training.train import train
from fedaws.types import Params

BEFORE, ANEW, STAY = "before they leave", "trained anew without them", "those who stay, before"
_QUIET = Reporter(on_warning=lambda message: None)

Leads = dict[str, tuple[list[float], list[float]]]
"""By what θ had been through: how much more compact the people in question are than the others, and the others."""


@dataclass(frozen=True)
class Forgetting:
    """What is left of somebody in a θ."""

    auc: Figure  # over pairs of one who has left and another
    lead: Figure  # by how much their examples are closer together than others' (cosine)


def leads(cfg: Config, data: FederatedData, split: int = 0, rounds: Sequence[int] = (10, 50, 150)) -> Leads:
    """One random parting of the people: a third never takes part, a fifth of the rest leaves (at least one)."""
    count = data.num_classes
    if count < 6 or not isinstance(data.y_test, Tensor) or not isinstance(data.x_test, Tensor):
        raise FedawsError(f"unlearning needs at least 6 classes and one label an example, got {count}; leave it out")
    rng = torch.Generator().manual_seed(hash64(cfg.seed, "audit", split))
    order = torch.randperm(count, generator=rng)
    others, taking = order[: count // 3], order[count // 3 :]
    leavers, stayers = taking[: max(1, len(taking) // 5)], taking[max(1, len(taking) // 5) :]
    cfg = short(cfg, cfg.train.rounds, cfg.seed + split).with_(data={"num_classes": None})
    known, fewer = only(data, taking), only(data, stayers)
    first = _trained(cfg, known)
    found = {
        BEFORE: _lead(first, data, leavers, others),
        STAY: _lead(first, data, stayers, others),
        ANEW: _lead(_trained(cfg, fewer), data, leavers, others),
    }
    for more in rounds:
        after = cfg.with_(train={"rounds": more}, model={"start_rows": "means"})
        found[f"after {more} rounds"] = _lead(_trained(after, fewer, first.theta), data, leavers, others)
    return found


def unlearning(cfg: Config, data: FederatedData, rounds: Sequence[int], splits: int = 4) -> list[Finding]:
    """Lines of the audit's table: before they leave, and after so many rounds; chance is a θ trained anew."""
    found = forgetting([leads(cfg, data, split, rounds) for split in range(splits)])
    anew = found[ANEW].auc.value
    return [
        Finding(
            "unlearning",
            "whoever has θ",
            f"asks whether somebody who has left took part: {line} without them" if line != BEFORE else
            "asks whether somebody took part who is about to leave",
            "membership; chance: trained anew without them",
            replace(figures.auc, chance=anew),
        )
        for line, figures in found.items()
        if line not in (ANEW, STAY)
    ]  # fmt: skip


def forgetting(parts: Sequence[Leads]) -> dict[str, Forgetting]:
    """The figures of several partings together, with intervals over people."""
    return {
        name: Forgetting(
            auc([s for part in parts for s in part[name][0]], [s for part in parts for s in part[name][1]]),
            mean([s for part in parts for s in part[name][0]]),
        )
        for name in parts[0]
    }


def _trained(cfg: Config, data: FederatedData, start: Params | None = None) -> Model:
    return train(data, config=cfg, start=start, reporter=_QUIET).model


def _lead(model: Model, data: FederatedData, people: Tensor, others: Tensor) -> tuple[list[float], list[float]]:
    assert isinstance(data.x_test, Tensor)
    x, y = data.x_test, data.y_test
    inside, outside = ([compactness(model, as_input(x[y == c])) for c in who.tolist()] for who in (people, others))
    centre = sum(outside) / len(outside)
    return [score - centre for score in inside], [score - centre for score in outside]
