"""A node as one process that stays: no Python is started for a message, and no port is opened.

Flower's own SuperNode starts a Python for every message, and it runs whatever app the server sends. This one asks the
SuperLink for messages over the same authenticated routes and answers them by an app *of its own*: the server can ask
questions, but not run code here. A reply that the SuperLink did not take is sent again.
"""

import importlib
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple, TypeVar

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectPushError,
    pull_and_inflate_object_from_tree,
    push_objects,
)
from flwr.supercore.run import RunNotRunningException
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.fleet_http_connection import http_request_response

from fedaws.errors import FedawsError
from fedaws.files import read_bytes
from fedaws.flower.wire import printable
from fedaws.privacy.sum_keeper import PEERS_FILE

_LOG = logging.getLogger("flwr")
_QUICK = 0.2  # seconds between two looks just after a message; they grow by a tenth of the time since
_ATTEMPTS = 5  # to get a message's content, and to send a reply
_TROUBLE = (httpx.HTTPStatusError, ObjectPullError, ObjectPushError)  # of the SuperLink's: its database is locked, say

Anything = TypeVar("Anything")

OWN_APP = "fedaws.flower.client_app:app"


class Link(NamedTuple):
    """What Flower's connection to a SuperLink gives a node, in its order."""

    node_id: int
    receive: Callable[[], tuple[Message, Any] | None]
    send: Callable[[Message, Any, float], tuple[set[str], str]]
    get_run: Callable[..., Any]
    get_fab: Callable[..., Any]
    pull_object: Callable[[int, str], bytes]
    push_object: Callable[[int, str, str, bytes], None]
    confirm: Callable[[int, str], None]


@dataclass
class Node:
    """An app, what it was started with, and the way to the SuperLink."""

    app: ClientApp
    config: dict[str, Any]
    link: Link
    poll: float = 3.0  # seconds between two looks at most
    sleep: Callable[[float], None] = time.sleep
    _run: tuple[int, RecordDict] = field(default_factory=lambda: (0, RecordDict()))  # and what the app keeps over it

    def serve(self, lost: Event) -> None:
        """Answer message after message until the connection is lost."""
        last = time.monotonic()
        while not lost.is_set():
            began = time.monotonic()
            if self.answer_next():
                last = time.monotonic()
                continue
            idle, took = time.monotonic() - last, time.monotonic() - began  # a slow SuperLink is asked less often
            self.sleep(min(self.poll, max(_QUICK, idle / 10, 4 * took)))

    def answer_next(self) -> bool:
        """Answer a message if there is one; whether there was."""
        try:
            found = self.link.receive()
            if found is None:
                return False
            message = self._retried(lambda: self._pulled(*found))
            started = time.monotonic()
            reply = self._answered(message)
            seconds = time.monotonic() - started
            reply.metadata.__dict__["_message_id"] = reply.object_id
            self._retried(lambda: self._push(reply, seconds))  # to the SuperLink, the same reply twice is one
        except RunNotRunningException:
            _LOG.info("the run has ended; nothing is wanted of this node")
        except _TROUBLE as error:
            _LOG.warning("a message or its reply is lost: %s", printable(str(error))[:200])
        else:
            return True
        return False

    def _retried(self, action: Callable[[], Anything]) -> Anything:
        """Flower gives up on a SuperLink that answers 500, which it does when its database is locked."""
        for attempt in range(1, _ATTEMPTS):
            try:
                return action()
            except _TROUBLE as error:
                _LOG.warning("the SuperLink is in trouble, trying again: %s", printable(str(error))[:200])
                self.sleep(2.0**attempt - 1)
        return action()

    def _pulled(self, head: Message, tree: Any) -> Message:
        """The message itself, of which only the head has come."""
        run_id = head.metadata.run_id
        message = pull_and_inflate_object_from_tree(
            tree,
            lambda object_id: self.link.pull_object(run_id, object_id),
            lambda object_id: self.link.confirm(run_id, object_id),
            return_type=Message,
        )
        message.metadata.__dict__["_message_id"] = tree.object_id  # which is not inside the object that it names
        _LOG.info("received a %s message of run %d", message.metadata.message_type, run_id)
        return message

    def _answered(self, message: Message) -> Message:
        """The app's reply, or what went wrong in it, as Flower tells it."""
        run_id = message.metadata.run_id
        if run_id != self._run[0]:
            self._run = run_id, RecordDict()
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run_id, self.link.node_id, 0
        context = Context(run_id, self.link.node_id, dict(self.config), self._run[1], {})
        try:
            reply = self.app(message, context)
        except Exception as error:  # the node goes on, whatever happened
            _LOG.error("%s", error, exc_info=None if isinstance(error, FedawsError) else error)
            reason = f"{type(error)}:<'{error}'>"
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)
        self._run = run_id, context.state
        return reply

    def _push(self, reply: Message, seconds: float) -> None:
        run_id, objects = reply.metadata.run_id, get_all_nested_objects(reply)
        wanted, session = self.link.send(reply, get_object_tree(reply), seconds)

        def push(object_id: str, content: bytes) -> None:
            self.link.push_object(run_id, session, object_id, content)

        push_objects(objects, push, object_ids_to_push=wanted)


def run_node(
    folder: Path,
    superlink: str,
    *,
    app: str = OWN_APP,
    class_id: int | None = None,
    data: Path | None = None,
    key: Path | None = None,
    poll: float = 3.0,
) -> None:
    """Serve with the files in a node's folder (key, ca.crt, data.npz, peers.toml for secure sums) until told to end."""
    folder = folder.expanduser().absolute()
    config: dict[str, Any] = {"data": str((data or folder / "data.npz").expanduser().absolute())}
    if class_id is not None:
        config["class-id"] = class_id
    if (folder / PEERS_FILE).exists():
        config["peers"] = str(folder / PEERS_FILE)
    own_app, own_key = load_app(app, folder), read_key((key or folder / "key").expanduser())
    certificate, keys = read_bytes(folder / "ca.crt"), (own_key, own_key.public_key())
    with suppress(KeyboardInterrupt):
        while True:
            with _ended_politely() as lost, http_request_response(superlink, False, certificate, keys) as found:
                link = Link(*found)
                _LOG.info("SuperNode ID: %d", link.node_id)
                Node(own_app, config, link, poll).serve(lost)
            _LOG.warning("connecting to %s anew", superlink)
    _LOG.info("the node has ended")


def load_app(name: str, folder: Path) -> ClientApp:
    """The app that a node answers with: MODULE:NAME, of a package or of a file in the node's folder."""
    module, _, attribute = name.partition(":")
    sys.path.append(str(folder))
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise FedawsError(f"--app {name!r:.80}: {error}; wanted MODULE:NAME, as in {OWN_APP}") from None
    if not isinstance(found, ClientApp):
        raise FedawsError(f"--app {name!r:.80} is a {type(found).__name__}; wanted a ClientApp")
    return found


def read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """A node's private key."""
    content = read_bytes(path)
    try:
        key = load_ssh_private_key(content, None)
    except Exception:  # of many kinds, and none of them says more
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise FedawsError(f"{path} is no private key of a node; wanted one by ssh-keygen -t ecdsa -b 384, unencrypted")
    return key


@contextmanager
def _ended_politely() -> Iterator[Event]:
    """A node that is told to end says so to the SuperLink, and may then come back at once.

    The event is set if a thread dies: that of Flower's signs of life ends at the first error that it does not know, and
    without these a node is never asked again.
    """
    lost = Event()

    def note(args: threading.ExceptHookArgs) -> None:
        _LOG.warning("lost: %s", printable(str(args.exc_value))[:200])
        lost.set()

    old_stop, old_hook = signal.signal(signal.SIGTERM, signal.default_int_handler), threading.excepthook
    threading.excepthook = note
    try:
        yield lost
    finally:
        signal.signal(signal.SIGTERM, old_stop)
        threading.excepthook = old_hook
