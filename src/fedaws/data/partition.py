"""Which examples are held out, and which client has which of the others."""

from typing import Literal

import torch
from torch import Tensor

from fedaws.errors import FedawsError
from fedaws.hashing import hash64
from fedaws.sparse import starts_of

TestedOn = Literal["test", "held-out", "training"]


def what_is_tested(has_test: bool, validation: float) -> TestedOn:
    """What `tested_on` says; refuses two test sets."""
    if has_test and validation:
        raise FedawsError(
            f"validation={validation} tests on a part of the training examples, but there is a test set too; "
            "leave one of them out"
        )
    if validation:
        return "held-out"
    return "test" if has_test else "training"


def hold_out(count: int, validation: float, seed: int, labels: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The numbers of the examples that stay, and of those held out for tuning; with labels, a part of every class.

    Of a class one example always stays.

    >>> kept, held = hold_out(7, 0.4, seed=0, labels=torch.tensor([0, 0, 0, 0, 0, 1, 1]))
    >>> sorted(held.tolist())[-1] >= 5, len(held)  # two of five, one of two
    (True, 3)
    """
    held = round(validation * count) if validation < 1 else int(validation)
    if not 0 < held < count:
        raise FedawsError(f"validation={validation} holds out {held} of {count} training examples; wanted some of both")
    order = torch.randperm(count, generator=torch.Generator().manual_seed(hash64(seed, "validation")))
    if labels is None:
        return order[held:].sort().values, order[:held].sort().values
    order = order[torch.argsort(labels[order], stable=True)]
    counts = torch.bincount(labels)
    rank = torch.arange(count) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    of_class = torch.minimum((counts * held / count).round().long(), counts - 1)
    away = rank < of_class[labels[order]]
    if not bool(away.any()):
        raise FedawsError(f"validation={validation} holds out no example of any class; raise it")
    return order[~away].sort().values, order[away].sort().values


def deal_out(
    labels: Tensor, classes: int, clients_per_class: int, classes_per_client: int, seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The order that sorts examples by client, where each client's begin, and its class, or its classes.

    >>> deal_out(torch.tensor([2, 0, 1]), classes=3, clients_per_class=1, classes_per_client=2, seed=0)[2].tolist()
    [[0, 1], [1, 2], [2, 0]]
    """
    client = _assign_clients(labels, classes, clients_per_class, classes_per_client, seed)
    counts = torch.bincount(client, minlength=classes * clients_per_class)
    first = torch.arange(classes).repeat_interleave(clients_per_class)
    class_of = first if classes_per_client == 1 else (first[:, None] + torch.arange(classes_per_client)) % classes
    return torch.argsort(client, stable=True), starts_of(counts), class_of


def _assign_clients(labels: Tensor, classes: int, clients_per_class: int, classes_per_client: int, seed: int) -> Tensor:
    """The client of each example.

    Client c · clients_per_class + j has class c; with several classes per client also the next ones, and each class is
    dealt out evenly to those that have it.
    """
    if clients_per_class < 1 or not 1 <= classes_per_client <= classes:
        raise FedawsError(
            f"got clients_per_class={clients_per_class} and classes_per_client={classes_per_client}; "
            f"wanted at least 1 of both, and no more classes than there are ({classes})"
        )
    shares = clients_per_class * classes_per_client
    if shares == 1:
        return labels
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(hash64(seed, "clients")))
    by_class = shuffled[torch.argsort(labels[shuffled], stable=True)]
    counts = torch.bincount(labels, minlength=classes)
    rank = torch.arange(len(labels)) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    share = torch.empty_like(labels)
    share[by_class] = rank % shares
    first_class = (labels - share // clients_per_class) % classes
    return first_class * clients_per_class + share % clients_per_class
