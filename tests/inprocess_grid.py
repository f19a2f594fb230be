"""A Grid without processes or sockets: the real apps, the real bytes, one after the other. For tests and trials."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, cast

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

_SERVER = 1  # Flower's node id of the SuperLink
_FAILED, _LOST = 2, 5  # Flower's codes of an exception in a ClientApp and of a node that is gone

Deliver = Callable[[Message, Callable[[Message], Message]], Message | None]
"""(what a node is sent, the honest client) → its reply; None if it never comes."""


@dataclass
class Node:
    """A SuperNode: how it is registered, and what it was started with."""

    name: str = ""
    public_key: bytes = b""
    config: dict[str, Any] = field(default_factory=dict)
    online: bool = True
    deliver: Deliver = lambda message, honest: honest(message)
    received: list[bytes] = field(default_factory=list)  # every object that was sent to it, as on the wire
    state: RecordDict = field(default_factory=RecordDict)


class InProcessGrid(Grid):
    """Nodes by their ids, and one ClientApp that all of them run."""

    def __init__(self, client_app: ClientApp, nodes: dict[int, Node], run_config: dict[str, Any]) -> None:
        self.nodes, self._app, self._run_config = nodes, client_app, run_config
        self._replies: dict[str, Message] = {}
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, _SERVER, 1

    def serve(self, server_app: ServerApp) -> None:
        """Run a ServerApp over this grid."""
        server_app(self, self._context(_SERVER, {}, RecordDict()))

    def get_nodes(self) -> list[NodeInfo]:
        """Those that are online."""
        online = {i: node for i, node in self.nodes.items() if node.online}
        return [NodeInfo(node_id=i, name=node.name, public_key=node.public_key) for i, node in online.items()]

    def get_node_ids(self) -> list[int]:
        return [node.node_id for node in self.get_nodes()]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Deliver at once, keep the replies."""
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = message.object_id
            ids.append(message.object_id)
            reply = self._delivered(message)
            if reply is not None:
                self._replies[message.object_id] = reply
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self._replies.pop(i) for i in message_ids if i in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        return self.pull_messages(self.push_messages(messages))

    def _delivered(self, message: Message) -> Message | None:
        node_id = message.metadata.dst_node_id
        node = self.nodes[node_id]
        if not node.online:
            return Message(Error(_LOST, "node is gone"), reply_to=message)
        arrived = _over_the_wire(message, node.received)

        def honest(received: Message) -> Message:
            try:
                context = self._context(node_id, node.config, node.state)
                return _over_the_wire(self._app(received, context), [])
            except Exception as error:  # as Flower does with whatever an app raises
                return Message(Error(_FAILED, f"{type(error).__name__}: {error}"), reply_to=received)

        return node.deliver(arrived, honest)

    def _context(self, node_id: int, node_config: dict[str, Any], state: RecordDict) -> Context:
        return Context(1, node_id, node_config, state, self._run_config)

    # What Flower's interface has beside, and nobody here calls.

    def set_run(self, run: Run) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Run:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError


def _over_the_wire(message: Message, record: list[bytes]) -> Message:
    """The message packed into bytes and unpacked again, as between two machines."""
    objects = {i: item.deflate() for i, item in get_all_nested_objects(message).items()}
    record.extend(objects.values())
    arrived = cast(Message, inflate_object_from_contents(message.object_id, objects))
    arrived.metadata.__dict__["_message_id"] = message.object_id
    return arrived
