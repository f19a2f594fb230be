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
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import psutil
import torch
import uvicorn
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import ArrayRecord, Message
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.proto.fleet_pb2 import PullMessagesRequest
from flwr.proto.node_pb2 import Node as NodeId
from flwr.proto.node_pb2 import NodeInfo
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.serverapp import Grid
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER, FLWR_IN_MEMORY_DB_NAME
from flwr.supercore.date import now
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.main import create_app

from common import peak_mb
from fedaws import Config
from fedaws.flower import FedAwS, wire
from fedaws.flower.superlink import guard
from fedaws.flower.up import free_port
from fedaws.models import build_encoder, trainable


class Crowd(Grid):
    """Nodes that answer at once; `latency` seconds are what asking the SuperLink for all of them takes."""

    def __init__(self, nodes: int, latency: float = 0.0) -> None:
        self.nodes = [NodeInfo(node_id=100 + i, name=f"node-{i}") for i in range(nodes)]
        self.latency = latency
        self.asked_for_all = self.most_threads = 0
        self._waiting: dict[str, Message] = {}
        self._delta: ArrayRecord | None = None
        self.own_cpu: list[float] = []  # seconds of each made-up reply, which are not the server's
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
        started = time.thread_time()
        replies = [self._reply(self._waiting.pop(i)) for i in message_ids if i in self._waiting]
        self.own_cpu.append(time.thread_time() - started)
        return replies

    def _reply(self, message: Message) -> Message:
        asked = wire.read_order(message.content)
        if self._delta is None:
            theta = {name: torch.from_numpy(array.numpy().copy()) for name, array in asked.arrays.items()}
            self._delta = wire.pack({name: 1e-3 * torch.randn_like(tensor) for name, tensor in theta.items()})
        assert asked.row is not None
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
    empty = process.memory_info().rss
    strategy = FedAwS({node.name: i for i, node in enumerate(grid.nodes)}, config=cfg, poll=0.01, secret_rows=False)
    found = {"asking who is there": _seconds(lambda: strategy.members.identified(grid, ask=True))}
    found["bytes a registered node"] = (process.memory_info().rss - empty) / nodes
    before = peak_mb(reset=True)
    strategy.start(grid, theta, num_rounds=1, timeout=600)
    found["bytes a reply"] = 2**20 * (peak_mb() - before) / per_round
    grid.own_cpu.clear()
    started, cpu = time.perf_counter(), time.process_time()
    strategy.start(grid, theta, num_rounds=1 + rounds, timeout=600)
    found["a round"] = (time.perf_counter() - started) / rounds
    found["of it the server's CPU"] = (time.process_time() - cpu - sum(grid.own_cpu)) / rounds
    return found | {"good replies of the last round": strategy.last["replies"]}, grid


def _seconds(act: Callable[[], object]) -> float:
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


@contextmanager
def _state(kind: str, folder: Path) -> Iterator[Any]:
    database = FLWR_IN_MEMORY_DB_NAME if kind == "in memory" else str(folder / "state.db")
    manager, objects = NoOpFederationManager(), ObjectStoreFactory(database)
    yield LinkStateFactory(database, manager, objects).state()


def flowers_state(kind: str, nodes: int, looks: int = 500) -> dict[str, float]:
    """CPU milliseconds of what a SuperLink's state does, with so many nodes registered; HTTP and TLS come on top."""
    with tempfile.TemporaryDirectory() as folder, _state(kind, Path(folder)) as state:
        ids = [state.create_node("", "", f"key {i}".encode(), 30.0) for i in range(nodes)]
        for node_id in ids:
            state.activate_node(node_id, 3600.0)
        found = dict[str, float]()
        acts: dict[str, Callable[[int], object]] = {
            "look for a message": lambda i: state.get_message_ins(ids[i % nodes], 1),
            "sign of life": lambda i: state.acknowledge_node_heartbeat(ids[i % nodes], 3600.0),
        }
        for name, act in acts.items():
            started = time.process_time()
            for i in range(looks):
                act(i)
            found[name] = 1000 * (time.process_time() - started) / looks
        started = time.process_time()
        state.get_node_info(node_ids=ids)
        return found | {"all nodes": 1000 * (time.process_time() - started)}


def a_request(looks: int = 200) -> float:
    """CPU milliseconds of a whole SuperLink for one look of a node: HTTP, signature, guard, state in memory; no TLS."""
    guard()
    app = create_app()
    key = ec.generate_private_key(ec.SECP384R1())
    public, stamp = public_key_to_bytes(key.public_key()), now().isoformat()
    node_id = app.state.linkstate_factory.state().create_node("", "", public, 30.0)
    signed = {
        "content-type": PROTOBUF_MEDIA_TYPE,
        FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(public).decode(),
        TIMESTAMP_HEADER: stamp,
        FLEET_HTTP_SIGNATURE_HEADER: b64encode(sign_message(key, stamp.encode())).decode(),
    }
    body = PullMessagesRequest(node=NodeId(node_id=node_id)).SerializeToString()
    server = uvicorn.Server(uvicorn.Config(app, "127.0.0.1", free_port(), log_level="warning", ws="none"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    with closing(HTTPConnection("127.0.0.1", server.config.port)) as connection:
        for look in range(looks + 20):
            if look == 20:  # the first ones warm up
                started = time.process_time() - time.thread_time()
            connection.request("POST", "/v1/fleet/pull-messages", body, signed)
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200, answer.status
        spent = time.process_time() - time.thread_time() - started  # without this thread, which is the node
    server.should_exit = True
    thread.join()
    return 1000 * spent / looks


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
    if options.state:
        print(f"a look of a node, the whole SuperLink, CPU ms: {a_request():.3g}")
    for kind in ("in memory", "SQLite") if options.state else ():
        print(f"Flower's state {kind}, {options.state:,} nodes, CPU ms: " + _told(flowers_state(kind, options.state)))


def _told(found: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:,.3g}" for name, value in found.items())


if __name__ == "__main__":
    main()
