"""A short federation with a node that does what it likes: what the attacks run in."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from fedaws.config import Config
from fedaws.core.algorithm import run_round
from fedaws.core.method import Method
from fedaws.core.methods import method_of
from fedaws.data.federated import FederatedData
from fedaws.errors import FedawsError
from fedaws.evaluate import Model
from fedaws.hashing import hash64
from fedaws.models import build_encoder, evaluating, table_names, trainable
from fedaws.runners import make_runner
from fedaws.training.protection import Protection, noise_on_rows, protect
from fedaws.training.train import initial_state
from fedaws.types import Broadcast, ClassFacts, RunClients, ServerState, Update

Tamper = Callable[[Broadcast, Update], Update]
"""What a node makes of what it was sent and of the honest answer to it; both are of this node alone."""


def short(cfg: Config, rounds: int, seed: int) -> Config:
    """The run's own settings for a federation of so many rounds, with everybody in each."""
    train = {"runner": "auto", "rounds": rounds, "warmup": 0, "device": "cpu"}
    clients = {"per_round": "all", "join": (), "leave": ()}
    return cfg.with_(seed=seed, train=train, clients=clients, privacy={"participations": None})


def rounds_of(
    cfg: Config,
    data: FederatedData,
    node: int | None = None,
    tamper: Tamper | None = None,
    mislead: Callable[[Broadcast], Broadcast] = lambda sent: sent,
) -> Iterator[tuple[ServerState, nn.Module]]:
    """The server's state before the first round and after each, where `node` answers by `tamper`.

    `mislead` is what a lying server makes of what clients are to be sent.
    """
    method = method_of(cfg, data.class_facts or ClassFacts())
    encoder = build_encoder(cfg.model, data.x.shape[1:], cfg.seed)
    private = protection_of(cfg, method, data, encoder)
    with evaluating(encoder):
        asked = _with_node(make_runner(cfg, method, data, encoder), node, tamper)
        state = initial_state(cfg, data, encoder, method)
        guard = noise_on_rows(cfg, len(data.available)) if private is None else private.guard
        yield state, encoder
        for round_num in range(cfg.train.rounds):
            rng = torch.Generator().manual_seed(hash64(cfg.seed, "round", round_num))
            state = run_round(
                state,
                data.available,
                lambda sent: asked(mislead(sent)),
                cfg,
                rng,
                data.num_examples,
                method=method,
                guard=guard,
            )
            yield state, encoder


def protection_of(cfg: Config, method: Method, data: FederatedData, encoder: nn.Module) -> Protection | None:
    """The noise of a private run, in a short federation too; nothing of it is written down."""
    theta, tables = trainable(encoder), table_names(encoder)
    return protect(cfg, method, len(data.available), theta, tables, None, lambda _: None)


def federated(cfg: Config, data: FederatedData, node: int | None = None, tamper: Tamper | None = None) -> Model:
    """The model after the last round."""
    *_, (state, encoder) = rounds_of(cfg, data, node, tamper)
    return Model(encoder, state.averaged, state.W, cfg.model.normalize, state.bias, cfg.model.crowding)


def _with_node(run_clients: RunClients, node: int | None, tamper: Tamper | None) -> RunClients:
    if node is None or tamper is None:
        return run_clients

    def run(sent: Broadcast) -> Iterable[Update]:
        mine = sent.cohort == node
        yield from run_clients(_part(sent, ~mine))
        given = _part(sent, mine)
        for honest in run_clients(given):
            yield tamper(given, honest)

    return run


def _part(sent: Broadcast, at: Tensor) -> Broadcast:
    """What some of the clients were sent."""
    weights, heard = (None if part is None else part[at] for part in (sent.weights, sent.heard))
    return replace(sent, cohort=sent.cohort[at], W=sent.W[at], weights=weights, heard=heard)


def one_row_each(method: Method, data: FederatedData) -> None:
    """Refuse what the attacks on rows do not know: clients of several classes, several clients of a class."""
    if method.classes_per_client > 1 or data.class_of.ndim > 1 or len(data.class_of) != data.num_classes:
        raise FedawsError(
            f"{len(data.class_of)} clients of {data.num_classes} classes; the audit wants one client a class: set "
            "data.clients_per_class=1 and a method of one class a client"
        )


def dense_examples(data: FederatedData) -> Tensor:
    """The training examples as a tensor; refused where they are sparse."""
    if not isinstance(data.x, Tensor):
        raise FedawsError("the audit needs dense examples; these are sparse: leave this attack out")
    return data.x
