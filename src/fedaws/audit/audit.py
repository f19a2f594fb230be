"""`audit`: the attacks on a run's own model, data and settings, gathered into one table."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any, get_args

import torch

from fedaws.audit.federation import dense_examples
from fedaws.audit.figures import Finding
from fedaws.audit.inversion import first_layer, inversion, optimised_inversion
from fedaws.audit.membership import membership_of_halves
from fedaws.audit.poisoning import poisoning
from fedaws.audit.row_inversion import another, row_inversion
from fedaws.audit.row_theft import row_theft
from fedaws.audit.sum_theft import Who, sum_theft
from fedaws.audit.unlearning import unlearning
from fedaws.core.methods import method_of
from fedaws.data import FederatedData, load_data
from fedaws.errors import FedawsError
from fedaws.hashing import hash64
from fedaws.training.run import Run


@dataclass(frozen=True)
class Findings:
    """What the attacks found."""

    name: str
    method: str
    lines: tuple[Finding, ...]

    def as_json(self) -> dict[str, Any]:
        """Plain numbers and texts."""
        return {"name": self.name, "method": self.method, "findings": [asdict(line) for line in self.lines]}


def audit(
    run: Run,
    data: FederatedData | None = None,
    attacks: Sequence[str] | None = None,
    *,
    rounds: Sequence[int] = (12, 60),
    seeds: Sequence[int] = (0,),
    told: Callable[[str], None] = lambda attack: None,
) -> Findings:
    """Attack a run and measure what each side learns.

    Parameters
    ----------
    run
        A trained model with its settings.
    data
        Its data, if they were given in Python.
    attacks
        Some of `ATTACKS`; by default all but `unlearning`, which trains the run many times.
    rounds
        How long the short federations of row theft are; of poisoning the first; of unlearning the rounds without those
        who left.
    seeds
        Of the short federations.
    told
        Called with the name of each attack before it begins.

    Returns
    -------
    Findings
        A line for each attack and setting: who does what, what they learn, the figure, its interval and chance.
    """
    unknown = [name for name in attacks or () if name not in ATTACKS]
    if unknown:
        raise FedawsError(f"no attack {unknown[0]!r}; there are {', '.join(ATTACKS)}")
    method = method_of(run.config)
    if method.rows in ("all", "secret") or method.classes_per_client > 1:
        raise FedawsError(
            f"method={run.config.method} has rows={method.rows} and {method.classes_per_client} classes a client; the "
            "audit is of methods whose clients have one row of their own"
        )
    data = data or run.data or load_data(run.config)
    dense_examples(data)
    lines: list[Finding] = []
    for name in attacks or [name for name in ATTACKS if name not in ON_DEMAND]:
        told(name)
        lines += ATTACKS[name](run, data, tuple(rounds), tuple(seeds))
    return Findings(run.config.name, run.config.method, tuple(lines))


Attack = Callable[[Run, FederatedData, tuple[int, ...], tuple[int, ...]], Iterator[Finding]]


def _row_theft(run: Run, data: FederatedData, rounds: tuple[int, ...], seeds: tuple[int, ...]) -> Iterator[Finding]:
    if method_of(run.config).own_spread:
        for count, who in product(rounds, get_args(Who)):
            yield sum_theft(run.config, data, who, count, seeds).finding()
        return
    for count in rounds:
        yield row_theft(run.config, data, "passive", count, seeds).finding()
        if method_of(run.config).trains_own_row:  # else nobody asks for the row that a node sends
            yield row_theft(run.config, data, "active", count, seeds).finding()


def _inversion(run: Run, data: FederatedData, rounds: tuple[int, ...], seeds: tuple[int, ...]) -> Iterator[Finding]:
    rng = torch.Generator().manual_seed(hash64(run.config.seed, "audit", 2))
    if first_layer(run.encoder)[1] is not None:
        for batch in (1, 4, 8, 32):
            yield inversion(run.model, run.config, data, rng, batch=batch).finding()
        for clients in (2, 5, 10, 20, 40):
            yield inversion(run.model, run.config, data, rng, clients=clients, batch=1, tries=10).finding()
    for batch in (1, 4):
        yield optimised_inversion(run.model, run.config, data, rng, batch=batch).finding()


def _membership(run: Run, data: FederatedData, rounds: tuple[int, ...], seeds: tuple[int, ...]) -> Iterator[Finding]:
    yield membership_of_halves(run.config, data).finding()


def _row_inversion(run: Run, data: FederatedData, rounds: tuple[int, ...], seeds: tuple[int, ...]) -> Iterator[Finding]:
    rng = torch.Generator().manual_seed(hash64(run.config.seed, "audit", 3))
    yield row_inversion(run.model, another(run.config, data), data, rng).finding()


def _poisoning(run: Run, data: FederatedData, rounds: tuple[int, ...], seeds: tuple[int, ...]) -> Iterator[Finding]:
    if method_of(run.config).trains_own_row:
        for result in poisoning(run.config, data, rounds=rounds[0], seeds=seeds):
            yield result.finding()
    else:  # nobody asks for its row
        for result in poisoning(run.config, data, ("pull",), rounds[0], seeds):
            yield result.finding()


def _unlearning(run: Run, data: FederatedData, rounds: tuple[int, ...], seeds: tuple[int, ...]) -> Iterator[Finding]:
    yield from unlearning(run.config, data, rounds)


ATTACKS: dict[str, Attack] = {
    "row-theft": _row_theft,
    "inversion": _inversion,
    "membership": _membership,
    "row-inversion": _row_inversion,
    "poisoning": _poisoning,
    "unlearning": _unlearning,
}
ON_DEMAND = frozenset({"unlearning"})
"""Those that are only made if they are named."""
