"""The server's side of Flower with many registered nodes; results in flower.md.

    python benchmarks/flower_size.py                            # 10,000 nodes, 1,000 a round: a minute or two
    python benchmarks/flower_size.py --nodes 100000 --rounds 3
    python benchmarks/flower_size.py --state 2000               # and what a look costs in Flower's own state

The nodes are made up: each answers at once with a change of θ of the right shape, packed into Flower's objects and
unpacked from them. All that is ours is real: who is who, the cohort, the orders, the mailbox and its threads, the
checks of replies, the average, the spreading.
"""

import argparse
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import torch
from flwr.app import ArrayRecord, Message
from flwr.proto.node_pb2 import NodeInfo
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.serverapp import Grid
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.federation import NoOpFederationManager

from fedaws import Config
from fedaws.flower import FedAwS, wire
from fedaws.models import build_encoder, trainable


class Crowd(Grid):
    """Nodes that answer at once; `latency` seconds are what asking the SuperLink for all of them takes."""

    def __init__(self, nodes: int, latency: float = 0.0) -> None:
        self.nodes = [NodeInfo(node_id=100 + i, name=f"node-{i}") for i in range(nodes)]
        self.latency = latency
        self.asked_for_all = self.most_threads = 0
        self._waiting: dict[str, Message] = {}
        self._delta: ArrayRecord | None = None
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1

    def get_nodes(self) -> list[NodeInfo]:
        self.asked_for_all += 1
        time.sleep(self.latency)
        return self.nodes

    def get_node_ids(self) -> list[int]:
        return [node.node_id for node in self.get_nodes()]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = message.object_id
            self._waiting[message.object_id] = message
            ids.append(message.object_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        self.most_threads = max(self.most_threads, threading.active_count())
        return [self._reply(self._waiting.pop(i)) for i in message_ids if i in self._waiting]

    def _reply(self, message: Message) -> Message:
        asked = wire.read_order(message.content)
        if self._delta is None:
            theta = {name: torch.from_numpy(array.numpy().copy()) for name, array in asked.arrays.items()}
            self._delta = wire.pack({name: 1e-3 * torch.randn_like(tensor) for name, tensor in theta.items()})
        content = wire.reply(asked, {}, asked.row, 10, 0.5, 0.0, 0.0)
        content["arrays"] = self._delta
        reply = Message(content, reply_to=message)
        objects = {i: item.deflate() for i, item in get_all_nested_objects(reply).items()}
        arrived = inflate_object_from_contents(reply.object_id, objects)
        assert isinstance(arrived, Message)
        return arrived

    # What Flower's interface has beside, and nobody here calls.

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    run: Any = None

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError


def config(per_round: int) -> Config:
    settings = [f"clients.per_round={per_round}", "spread.regularizer=moments", "model.embedding_dim=32", "seed=1"]
    return Config().override(settings)


def serve(nodes: int, per_round: int, rounds: int, latency: float = 0.0) -> tuple[dict[str, float], Crowd]:
    """Figures of a run of so many rounds: seconds and bytes."""
    cfg, grid, process = config(per_round), Crowd(nodes, latency), psutil.Process()
    encoder = build_encoder(cfg.model, (64,), 0)
    theta = wire.pack({name: p.detach() for name, p in trainable(encoder).items()})
    empty, started = process.memory_info().rss, time.perf_counter()
    strategy = FedAwS({node.name: i for i, node in enumerate(grid.nodes)}, config=cfg, poll=0.01, secret_rows=False)
    strategy.start(grid, theta, num_rounds=1, timeout=600)
    first = time.perf_counter() - started
    held = process.memory_info().rss - empty
    started, cpu = time.perf_counter(), time.process_time()
    strategy.start(grid, theta, num_rounds=1 + rounds, timeout=600)
    found = {"first round": first, "a later round": (time.perf_counter() - started) / rounds}
    found["of it CPU"] = (time.process_time() - cpu) / rounds
    found |= {"bytes a node": held / nodes, "bytes of W a node": strategy.state.W.nbytes / nodes}  # type: ignore[union-attr]
    return found | {"good replies of the last round": strategy.last["replies"]}, grid


@contextmanager
def _state(kind: str, folder: Path) -> Iterator[Any]:
    database = FLWR_IN_MEMORY_DB_NAME if kind == "in memory" else str(folder / "state.db")
    manager, objects = NoOpFederationManager(), ObjectStoreFactory(database)
    yield LinkStateFactory(database, manager, objects).state()


def flowers_state(kind: str, nodes: int, looks: int = 500) -> dict[str, float]:
    """Milliseconds of what a SuperLink's state does for a node, with so many registered; HTTP and TLS come on top."""
    with tempfile.TemporaryDirectory() as folder, _state(kind, Path(folder)) as state:
        ids = [state.create_node("", "", f"key {i}".encode(), 30.0) for i in range(nodes)]
        for node_id in ids:
            state.activate_node(node_id, 3600.0)
        found = {}
        for name, act in {
            "look for a message": lambda i: state.get_message_ins(ids[i % nodes], 1),
            "sign of life": lambda i: state.acknowledge_node_heartbeat(ids[i % nodes], 3600.0),
        }.items():
            started = time.perf_counter()
            for i in range(looks):
                act(i)
            found[name] = 1000 * (time.perf_counter() - started) / looks
        started = time.perf_counter()
        state.get_node_info(node_ids=ids)
        return found | {"all nodes": 1000 * (time.perf_counter() - started)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--per-round", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--state", type=int, default=0, metavar="NODES", help="also Flower's own state with so many")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found, grid = serve(options.nodes, options.per_round, options.rounds)
    print(f"{options.nodes:,} nodes, {options.per_round:,} a round: " + _told(found), end=", ")
    print(f"threads {grid.most_threads}")
    for kind in ("in memory", "SQLite") if options.state else ():
        print(f"Flower's state {kind}, {options.state:,} nodes, ms: " + _told(flowers_state(kind, options.state)))


def _told(found: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:,.3g}" for name, value in found.items())


if __name__ == "__main__":
    main()
