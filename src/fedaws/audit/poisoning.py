r"""What one node can spoil: it has a few examples of a victim, and wants the victim's examples to be taken for its own.

- *capture*: the row that it sends is the victim's template, the mean embedding of these examples;
- *pull*: its change of θ draws these examples to its own row, made as long as the server lets it be;
- *both* at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedaws.audit.federation import Tamper, dense_examples, federated, one_row_each, short
from fedaws.audit.figures import Figure, Finding, share
from fedaws.config import Config
from fedaws.core.local import embed, example_losses, local_update, own_gradient
from fedaws.core.methods import method_of
from fedaws.data.federated import FederatedData, as_input
from fedaws.errors import FedawsError
from fedaws.evaluate import Model
from fedaws.models import build_encoder
from fedaws.types import Broadcast, Params, Update

Kind = Literal["capture", "pull", "both"]


@dataclass(frozen=True)
class Poisoning:
    """What becomes of the victim."""

    kind: Kind
    nodes: int
    victim: Figure  # share of the victim's test examples that are still taken for theirs; chance: without the attack
    everybody: float  # precision over all classes under attack,
    honest: float  # and without
    defence: str

    def finding(self) -> Finding:
        """As a line of the table."""
        does = {
            "capture": "sends the victim's template as its row",
            "pull": "draws the victim's examples to its row by θ",
            "both": "sends the victim's template and draws θ to it",
        }[self.kind]
        learns = f"the victim's precision (no attack: {100 * self.victim.chance:.0f} %)"
        return Finding("poisoning", f"one node of {self.nodes}", f"{does} ({self.defence})", learns, self.victim)


def poisoning(
    cfg: Config,
    data: FederatedData,
    kinds: Sequence[Kind] = ("capture", "pull", "both"),
    rounds: int = 12,
    seeds: Sequence[int] = (0, 1, 2),
    *,
    clip: float = 10.0,
    examples: int = 5,
) -> tuple[Poisoning, ...]:
    """Run short federations with and without the attack, each with another victim and attacker.

    `clip` is the longest change of θ that the server takes, and the attacker's is as long; what else the server does
    against it says `[defence]`.
    """
    one_row_each(method_of(cfg), data)
    if not isinstance(data.y_test, Tensor) or not isinstance(data.x_test, Tensor):
        raise FedawsError("poisoning needs test examples of one label; leave it out")
    x, y = data.x_test, data.y_test
    count = data.num_classes
    victims = [(seed, 3 * seed % count, (3 * seed + count // 2) % count) for seed in seeds]
    before = [_right(federated(short(cfg, rounds, seed), data), x, y, victim) for seed, victim, _ in victims]
    tested = sum(int((y == victim).sum()) for _, victim, _ in victims)
    results = []
    for kind in kinds:
        after = []
        for seed, victim, node in victims:
            run = short(cfg, rounds, seed)
            tamper = _tamper(run, data, kind, victim, clip, examples)
            after.append(_right(federated(run, data, node, tamper), x, y, victim))
        figure = share(sum(r for r, _ in after), tested, sum(r for r, _ in before) / tested)
        everybody, honest = (sum(p for _, p in each) / len(each) for each in (after, before))
        results.append(Poisoning(kind, data.num_classes, figure, everybody, honest, defence_of(cfg, clip)))
    return tuple(results)


def defence_of(cfg: Config, clip: float) -> str:
    """What the server does, in a few words."""
    guard = cfg.defence
    parts = [f"clip {'median' if guard.clip == 'median' else f'{clip:g}'}"]
    parts += [f"row step {guard.row_step:g}"] if guard.row_step else []
    parts += [f"anchors {guard.anchor:g}"] if guard.anchor else []
    parts += [f"apart {guard.apart:g}"] if guard.apart < 1 else []
    return ", ".join(parts)


def _tamper(cfg: Config, data: FederatedData, kind: Kind, victim: int, clip: float, examples: int) -> Tamper:
    method, encoder = method_of(cfg), build_encoder(cfg.model, data.x.shape[1:], cfg.seed)
    gradient = own_gradient(example_losses(encoder, cfg, method, data.num_classes))
    start = int(data.starts[victim])
    x = as_input(dense_examples(data)[start : start + examples])
    step = (x, torch.zeros(len(x), dtype=torch.int64), torch.full((len(x),), 1 / len(x)))

    def answer(given: Broadcast, honest: Update) -> Update:
        template = _template(encoder, given.theta, x)
        row = honest.W[0] if kind == "pull" else template
        delta = honest.delta
        if kind != "capture":
            drawn = local_update(gradient, cfg, method, given.theta, row, [step] * cfg.clients.local_steps, 1.0)[0]
            delta = as_long_as(drawn, clip) if _length(drawn) > 0 else delta
        return replace(honest, W=row[None], delta=delta)

    return answer


def _template(encoder: nn.Module, theta: Params, x: Tensor) -> Tensor:
    with torch.no_grad():
        return F.normalize(embed(encoder, theta, x).mean(0), dim=0)


def as_long_as(delta: Params, length: float) -> Params:
    """The same direction at this length over all of θ.

    >>> as_long_as({"a": torch.tensor([3.0]), "b": torch.tensor([4.0])}, 10.0)
    {'a': tensor([6.]), 'b': tensor([8.])}
    """
    scale = length / _length(delta)
    return {name: change * scale for name, change in delta.items()}


def _length(delta: Params) -> float:
    return float(torch.stack([change.norm() for change in delta.values()]).norm())


def _right(model: Model, x: Tensor, y: Tensor, victim: int) -> tuple[int, float]:
    """The victim's examples that are taken for theirs, and the precision over everybody."""
    right = model.rank(model.embed(x), 1).classes.squeeze(1) == y
    return int(right[y == victim].sum()), float(right.float().mean())
