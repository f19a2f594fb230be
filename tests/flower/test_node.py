"""What a node does with an order."""

import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from torch import nn

from fedaws import Config
from fedaws.config import from_toml
from fedaws.data.batches import BatchPlan
from fedaws.data.federated import FederatedData
from fedaws.flower import wire
from fedaws.flower.client_app import _one_client, app, trained
from fedaws.models import build_encoder, trainable
from helpers import dense


def order_for(client: int, config: Config, encoder: nn.Module) -> Message:
    theta = {name: p.detach() for name, p in trainable(encoder).items()}
    row = torch.eye(config.model.embedding_dim)[0]
    content = wire.order({"arrays": wire.pack(theta), "config": wire.shared_config(config, 0)}, client, client, row)
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # as in a process of Flower's
    message = Message(content, 1, "train")
    message.metadata.__dict__["_message_id"] = "1"
    return message


def largest_use(client: int, config: Config) -> int:
    """Bytes that Python's and torch's own objects of an answer take; those of tensors are counted from their sizes."""
    data = _one_client(torch.zeros(5, 6), client)
    tensors = (data.x, data.y, data.starts, data.class_of)
    tracemalloc.start()
    encoder = build_encoder(config.model, (6,), 0)
    trained(order_for(client, config, encoder), torch.zeros(5, 6), encoder)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak + sum(dense(t).nbytes for t in tensors)


def test_a_nodes_memory_does_not_depend_on_its_number(tiny: Config) -> None:
    largest_use(0, tiny)  # imports and caches
    assert largest_use(1_000_000, tiny) <= 1.5 * largest_use(0, tiny)


def test_a_node_alone_draws_the_batches_that_it_has_in_a_simulation(tiny: Config) -> None:
    """Client 3 of 4 with ten examples each."""
    config = tiny.override(["clients.examples_per_step=4", "clients.local_steps=3"])
    x = torch.arange(40.0)[:, None]
    y = torch.arange(4).repeat_interleave(10)
    whole = FederatedData(x, y, torch.arange(0, 41, 10), torch.arange(4), 4, x, y)
    alone = _one_client(x[30:], 3)
    for round_num in range(5):
        simulated = BatchPlan(whole, config.clients, 7).draw(torch.tensor([3]), round_num)
        own = BatchPlan(alone, config.clients, 7).draw(torch.tensor([0]), round_num)
        assert torch.equal(own.numbers + 30, simulated.numbers)


def test_the_settings_of_a_run_are_read_once(tiny: Config, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are the same text in every message, and take longer than all else of it."""
    reads = list[str]()

    def counted(text: str, source: str) -> Config:
        reads.append(text)
        return from_toml(text, source)

    monkeypatch.setattr(wire, "from_toml", counted)
    wire._settings.cache_clear()
    np.savez(tmp_path / "data.npz", x=np.zeros((5, 6), np.float32))
    encoder = build_encoder(tiny.model, (6,), tiny.seed)
    context = Context(1, 1, {"data": str(tmp_path / "data.npz")}, RecordDict(), {})
    for client in (2, 3):
        assert app(order_for(client, tiny, encoder), context).has_content()
    assert len(reads) == 1
