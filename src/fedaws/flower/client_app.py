"""A node: its own examples, θ and its own row; E local steps; nothing of anybody else.

Flower starts a process for every message, so what is imported here is paid for in every round.
"""

import time

_IMPORTING = [time.perf_counter()]  # since when; empty once told, as only the first message of a process waits for it

import os  # noqa: E402 - the imports are what is timed
from contextlib import suppress  # noqa: E402
from functools import lru_cache  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import TYPE_CHECKING  # noqa: E402

import torch  # noqa: E402
from flwr.app import ConfigRecord, Context, Message, RecordDict  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from fedaws.core.method import Method  # noqa: E402
from fedaws.core.methods import method_of  # noqa: E402
from fedaws.data.arrays import as_features  # noqa: E402
from fedaws.data.federated import FederatedData  # noqa: E402
from fedaws.data.sources.npz import read_npz  # noqa: E402
from fedaws.errors import FedawsError  # noqa: E402
from fedaws.flower import wire  # noqa: E402
from fedaws.models.build import build_encoder, evaluating, trainable  # noqa: E402
from fedaws.runners.serial import serial  # noqa: E402
from fedaws.runners.sums import ask_sums  # noqa: E402
from fedaws.types import Broadcast, Params, Sums  # noqa: E402

if TYPE_CHECKING:
    from fedaws.flower.settings import Dense, Settings

_NO_PEERS = "the server wants a secure sum; start this node with --node-config 'peers=\"FOLDER/peers.toml\"'"
_IN_THE_CLEAR = "the server asks for this node's change of θ in the clear; it gives secure sums alone (its peers file)"

app = ClientApp()
"""What `[tool.flwr.app.components]` names as `clientapp = "fedaws.flower.client_app:app"`."""


@app.train()
def train(message: Message, context: Context) -> Message:
    """The local steps of a round. A node's `--node-config` has `data`, the path of its examples, and its `class-id`."""
    return trained(message, *_own(message, context), peers=_peers(context))


@app.query("sums")
def tell_sums(message: Message, context: Context) -> Message:
    """The last question: how many examples, the sum of their embeddings and, if asked for, the second moment."""
    return summed(message, *_own_in_the_clear(message, context))


@app.query("enroll")
def enroll(message: Message, context: Context) -> Message:
    """A first row for a class that is new to the run, made here."""
    return enrolled(message, *_own_in_the_clear(message, context))


@app.query("open")
def open_shares(message: Message, context: Context) -> Message:
    """The second trip of a secure sum: what opens the sum of those that answered, and nothing of a single one."""
    return opened(message, _peers(context))


@app.query()
def who(message: Message, context: Context) -> Message:
    """Which client this node says it is; only asked where nodes are not authenticated."""
    own = ConfigRecord({"client-id": int(context.node_config["partition-id"])})
    return Message(RecordDict({"own": own}), reply_to=message)


def trained(
    message: Message, x: Tensor, encoder: nn.Module, method: Method | None = None, peers: Path | None = None
) -> Message:
    """The reply to a train message, with examples x [n, …], an encoder and perhaps a method of one's own.

    With the path of a `peers.toml` the node gives its part of a secure sum, and nothing else.
    """
    asked, started = wire.read_order(message.content), time.perf_counter()
    if (peers is None) == ("sum" in message.content):
        raise FedawsError(_NO_PEERS if peers is None else _IN_THE_CLEAR)
    theta = _theta(asked, x, encoder)
    method, hidden = method or method_of(asked.config), None
    if peers is not None:
        from fedaws.flower.hidden import Hidden  # noqa: PLC0415 - others need not wait for it

        hidden = Hidden(message.content, asked, method, peers)
    with evaluating(encoder):
        run_clients = serial(asked.config, method, _one_client(x, asked.client), encoder)
        if hidden is not None and hidden.home is not None:
            (update,) = hidden.home.train(run_clients, theta)
        elif asked.row is not None:
            (update,) = run_clients(Broadcast(torch.tensor([0]), theta, asked.row[None], asked.round_num))
        else:
            raise FedawsError("this node keeps its row, and tells of it inside secure sums alone; set peers")
    compute = time.perf_counter() - started
    told = len(x), float(update.loss), _startup(compute), compute
    if hidden is not None:
        return Message(hidden.reply(theta, update, told), reply_to=message)
    return Message(wire.reply(asked, update.delta, update.W[0], *told), reply_to=message)


def opened(message: Message, peers: Path | None) -> Message:
    """The reply to the second trip of a secure sum (`@app.query("open")`)."""
    from fedaws.flower.hidden import open_sum  # noqa: PLC0415

    if peers is None:
        raise FedawsError(_NO_PEERS)
    return Message(open_sum(message.content, peers), reply_to=message)


def summed(message: Message, x: Tensor, encoder: nn.Module) -> Message:
    """The reply to the last question (`@app.query("sums")`), with examples and an encoder of one's own."""
    asked = wire.read_sums_order(message.content)
    return Message(wire.sums_reply(_sums(asked, x, encoder)), reply_to=message)


def enrolled(message: Message, x: Tensor, encoder: nn.Module) -> Message:
    """The reply to a newcomer's question (`@app.query("enroll")`), with examples and an encoder of one's own.

    It is the direction of the mean of the node's unit embeddings.
    """
    asked = wire.read_question(message.content)
    row = torch.nn.functional.normalize(_sums(asked, x, encoder).sums[0], dim=0)
    return Message(wire.enroll_reply(asked, row), reply_to=message)


def _sums(asked: wire.Order, x: Tensor, encoder: nn.Module) -> Sums:
    theta = _theta(asked, x, encoder)
    with evaluating(encoder):
        return ask_sums(encoder, _one_client(x, asked.client))(theta, asked.gram)


def _theta(asked: wire.Order, x: Tensor, encoder: nn.Module) -> Params:
    try:
        return wire.unpack(asked.arrays, {name: p.detach() for name, p in trainable(encoder).items()})
    except wire.Rejected as error:
        shape = tuple(x.shape[1:])
        raise FedawsError(
            f"the server's θ is not for this node's encoder, nor examples of shape {shape}: {error}"
        ) from None


def _startup(since: float) -> float:
    """Seconds that this process took to its first message, which came so long ago; 0 for the later ones."""
    if not _IMPORTING:
        return 0.0
    imports, age = time.perf_counter() - _IMPORTING.pop(), 0.0
    with suppress(OSError, AttributeError, ValueError):  # only Linux tells when a process began
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return max(0.0, max(imports, age) - since)


def _one_client(x: Tensor, client: int) -> FederatedData:
    """A federation of this client and its class alone, whose batches are drawn from its number, as simulated."""
    y = torch.zeros(len(x), dtype=torch.int64)
    starts = torch.tensor([0, len(x)])
    return FederatedData(x, y, starts, torch.tensor([0]), 1, x[:0], y[:0], first_client=client)


def _peers(context: Context) -> Path | None:
    """The file that says with whom this node gives secure sums; a node that has one gives nothing else."""
    path = context.node_config.get("peers")
    return None if path is None else Path(os.path.expanduser(str(path)))


def _own_in_the_clear(message: Message, context: Context) -> tuple[Tensor, nn.Module]:
    if _peers(context) is not None:
        raise FedawsError("the server asks for what is of this node alone; it gives secure sums alone (its peers file)")
    return _own(message, context)


def _own(message: Message, context: Context) -> tuple[Tensor, nn.Module]:
    """The node's examples and the encoder for them, once it is known that the question is for its class.

    The examples are the array x of the .npz file that it was started with; in a simulation, its part of the data.
    """
    asked, config = wire.read_question(message.content), context.node_config
    own_class = config.get("class-id")
    if own_class is not None and str(own_class) != str(asked.class_id):
        raise FedawsError(f"this node has class {own_class}, the server takes it for class {asked.class_id}")
    if "data" in config:
        file = Path(os.path.expanduser(str(config["data"])))
        x = as_features(read_npz(file, ["x"], "file of examples", "save them by numpy.savez(FILE, x=…)")["x"])
    else:
        x = _simulated(context, asked.client)
    return x, build_encoder(asked.config.model, x.shape[1:], asked.config.seed)


def _simulated(context: Context, client: int) -> Tensor:
    from fedaws.flower.settings import run_settings  # noqa: PLC0415 - a real node has no use for these

    settings = run_settings(context.run_config)
    if not settings.trust_claims:
        raise FedawsError("this node has no examples; start it with --node-config 'data=\"FILE.npz\"'")
    data = _loaded(settings)
    return data.x[int(data.starts[client]) : int(data.starts[client + 1])]


@lru_cache(maxsize=1)  # a simulation's process is many clients, one after the other
def _loaded(settings: "Settings") -> "Dense":
    from fedaws.flower.settings import load_dense  # noqa: PLC0415

    return load_dense(settings.loaded())
