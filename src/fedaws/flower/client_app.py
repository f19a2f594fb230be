"""A node: its own examples, θ and its own row; E local steps; nothing of anybody else.

Flower starts a process for every message, so what is imported here is paid for in every round.
"""

import time

_IMPORTING = [time.perf_counter()]  # since when; empty once told, as only the first message of a process waits for it

import os  # noqa: E402 - the imports are what is timed
from contextlib import suppress  # noqa: E402
from functools import lru_cache  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import TYPE_CHECKING, Any  # noqa: E402

import torch  # noqa: E402
from flwr.app import ConfigRecord, Context, Message, RecordDict  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from fedaws.core.method import Method, SumSpread  # noqa: E402
from fedaws.core.methods import method_of  # noqa: E402
from fedaws.core.schedule import schedule  # noqa: E402
from fedaws.data.federated import FederatedData, as_features  # noqa: E402
from fedaws.data.sources.npz import read_npz  # noqa: E402
from fedaws.errors import FedawsError  # noqa: E402
from fedaws.flower import wire  # noqa: E402
from fedaws.models.build import build_encoder, evaluating, trainable  # noqa: E402
from fedaws.runners.at_home import at_home  # noqa: E402
from fedaws.runners.serial import serial  # noqa: E402
from fedaws.runners.sums import ask_sums  # noqa: E402
from fedaws.types import Broadcast, Params, Update  # noqa: E402

if TYPE_CHECKING:
    from fedaws.flower.settings import Dense, Settings
    from fedaws.privacy.sum_keeper import SumKeeper

_NO_PEERS = "the server wants a secure sum; start this node with --node-config 'peers=\"FOLDER/peers.toml\"'"
_IN_THE_CLEAR = "the server asks for this node's change of θ in the clear; it gives secure sums alone (its peers file)"

app = ClientApp()
"""What `[tool.flwr.app.components]` names as `clientapp = "fedaws.flower.client_app:app"`."""


@app.train()
def train(message: Message, context: Context) -> Message:
    """The local steps of a round. A node's `--node-config` has `data`, the path of its examples, and its `class-id`."""
    asked = wire.read_order(message.content)
    x = _own_examples(context, asked)
    encoder = build_encoder(asked.config.model, x.shape[1:], asked.config.seed)
    return _answered(message, asked, x, encoder, peers=_peers(context))


@app.query("sums")
def tell_sums(message: Message, context: Context) -> Message:
    """The last question: how many examples, the sum of their embeddings and, if asked for, the second moment."""
    asked = wire.read_sums_order(message.content)
    if _peers(context) is not None:
        raise FedawsError("the server asks for sums of this node's own; it gives secure sums alone (its peers file)")
    x = _own_examples(context, asked)
    return _summed(message, asked, x, build_encoder(asked.config.model, x.shape[1:], asked.config.seed))


@app.query("enroll")
def enroll(message: Message, context: Context) -> Message:
    """A first row for a class that is new to the run, made here."""
    asked = wire.read_enroll_order(message.content)
    x = _own_examples(context, asked)
    return _enrolled(message, asked, x, build_encoder(asked.config.model, x.shape[1:], asked.config.seed))


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
    return _answered(message, wire.read_order(message.content), x, encoder, method, peers)


def opened(message: Message, peers: Path | None) -> Message:
    """The reply to the second trip of a secure sum (`@app.query("open")`)."""
    from fedaws.flower import secure  # noqa: PLC0415 - others need not wait for it
    from fedaws.privacy.sum_keeper import SumKeeper  # noqa: PLC0415

    federation, number, letters = secure.read_open_order(message.content)
    if peers is None:
        raise FedawsError(_NO_PEERS)
    return Message(secure.opened_reply(number, SumKeeper(peers).open(federation, number, letters)), reply_to=message)


def summed(message: Message, x: Tensor, encoder: nn.Module) -> Message:
    """The reply to the last question (`@app.query("sums")`), with examples and an encoder of one's own."""
    return _summed(message, wire.read_sums_order(message.content), x, encoder)


def enrolled(message: Message, x: Tensor, encoder: nn.Module) -> Message:
    """The reply to a newcomer's question (`@app.query("enroll")`), with examples and an encoder of one's own."""
    return _enrolled(message, wire.read_enroll_order(message.content), x, encoder)


def _answered(
    message: Message,
    asked: wire.Order,
    x: Tensor,
    encoder: nn.Module,
    method: Method | None = None,
    peers: Path | None = None,
) -> Message:
    if (peers is None) == ("sum" in message.content):
        raise FedawsError(_NO_PEERS if peers is None else _IN_THE_CLEAR)
    started = time.perf_counter()
    theta = _theta(asked, x, encoder)
    method = method or method_of(asked.config)
    hidden = None if peers is None else _Hidden(message.content, asked, method, peers)
    with evaluating(encoder):
        run_clients = serial(asked.config, method, _one_client(x, asked.client), encoder)
        if hidden is not None and hidden.home is not None:
            run_clients = at_home(run_clients, asked.config.train, hidden.home.spread)
            sent = hidden.home.broadcast(theta)
        elif asked.row is not None:
            sent = Broadcast(torch.tensor([0]), theta, asked.row[None], asked.round_num)
        else:
            raise FedawsError("this node keeps its row, and tells of it inside secure sums alone; set peers")
        (update,) = run_clients(sent)
    compute = time.perf_counter() - started
    told = len(x), float(update.loss), _startup(compute), compute
    if hidden is not None:
        return Message(hidden.reply(theta, update, told), reply_to=message)
    return Message(wire.reply(asked, update.delta, update.W[0], *told), reply_to=message)


class _Hidden:
    """A node's part of a secure sum: all numbers behind masks, but for a row that is in the clear by its method."""

    def __init__(self, content: RecordDict, asked: wire.Order, method: Method, peers: Path) -> None:
        from fedaws.flower import secure  # noqa: PLC0415 - others need not wait for it
        from fedaws.privacy.sum_keeper import SumKeeper  # noqa: PLC0415

        self.content, self.asked, self.method, self.keeper = content, asked, method, SumKeeper(peers)
        rows = "clear" if method.own_spread is None else "private"
        if self.keeper.peers.rows != rows:
            raise FedawsError(
                f"the server wants rows={rows}, and this node gives rows={self.keeper.peers.rows} alone ({peers})"
            )
        self.record, self.limits = secure.read_sum(content)
        noise: Any = self.record["noise"]
        self.keeper.check_noise(noise, self.limits.clip_norm)
        if noise and (rows == "private" or asked.config.clients.weighting == "examples"):
            raise FedawsError(
                "noise in shares is for sums of changes of θ that weigh the same; the server wants others"
            )
        self.home = None if method.own_spread is None else _Home(asked, method.own_spread, self.record, self.keeper)

    def reply(self, theta: Params, update: Update, told: tuple[int, float, float, float]) -> RecordDict:
        from fedaws.flower import secure  # noqa: PLC0415

        cfg, clients = self.asked.config, len(secure.heard_of(self.record))
        factor = schedule(cfg.train, self.asked.round_num)
        limits, shares = secure.noise_terms(self.record, self.limits, theta, factor)
        layout = secure.layout_of(theta, limits, shares=shares)
        rows = secure.rows_layout(self.method, cfg.model.embedding_dim)
        about = secure.about_sum(self.content, self.record, layout, rows)
        part = secure.Part(update.delta, *(told if shares is None else (told[0], 0.0, 0.0, 0.0)), extra={})
        numbers = secure.encoded(part, layout, cfg, limits, clients)
        if shares is not None:  # loss and times have no noise, so they are not told
            numbers = secure.with_noise(numbers, layout, shares)
        row = update.W[0] if self.method.sends_row else None
        home = self.home
        if home is None:
            return secure.masked_reply(self.asked, self.keeper.mask(numbers, about), about, row)
        tells = home.untold is None
        whole = secure.rows_encoded(update.sums or {}, rows, clients) if tells else None
        masked = self.keeper.mask(numbers, about, whole, lambda: home.keep(update.W[0] if tells else None))
        return secure.masked_reply(self.asked, masked, about, row)


class _Home:
    """The row of a node that keeps it: as the server last counted it, and whether it may be told of in this round."""

    def __init__(self, asked: wire.Order, spread: SumSpread, record: ConfigRecord, keeper: "SumKeeper") -> None:
        from fedaws.flower import secure  # noqa: PLC0415
        from fedaws.privacy.row_keeper import RowKeeper, untold  # noqa: PLC0415

        self.spread, self.round_num, self._heard = spread, asked.round_num, secure.heard_of(record)
        rules, dim = keeper.peers, asked.config.model.embedding_dim
        if rules.name not in self._heard:
            raise FedawsError(f"a sum of a cohort without this node, {rules.name!r:.40}")
        self.means = _means(asked, spread, dim)
        self.heard = self._heard[rules.name]
        self._keeper = RowKeeper(keeper.path.parent, str(record["run"]))
        self._counted = self._keeper.counted(self.heard, asked.round_num + 1, dim)
        self.untold = untold(self._heard, rules.peers, self._counted.names, rules.min_cohort)

    def broadcast(self, theta: Params) -> Broadcast:
        """What it trains on."""
        row, heard = self._counted.row[None], torch.tensor([self.heard])
        return Broadcast(torch.tensor([0]), theta, row, self.round_num, means=self.means, heard=heard)

    def keep(self, row: Tensor | None) -> None:
        """Write down the row that is about to be told of."""
        told = None if row is None else self._counted._replace(row=row, names=frozenset(self._heard))
        self._keeper.keep(self.heard, self.round_num + 1, told)


def _means(asked: wire.Order, spread: SumSpread, dim: int) -> Params:
    """What all rows tell in the mean, if there can be such rows: by other means a row could be made to tell more."""
    if asked.means is None:
        raise FedawsError("the server's message has no means of the rows; is it of another version?")
    try:
        means = wire.unpack(asked.means, spread.unknown(dim))
    except wire.Rejected as error:
        raise FedawsError(f"the server's means of the rows are not for this node: {error}") from None
    why = spread.unsound(means)
    if why is not None:
        raise FedawsError(f"the server's means can be of no rows: {why}")
    return means


def _summed(message: Message, asked: wire.SumsOrder, x: Tensor, encoder: nn.Module) -> Message:
    theta = _theta(asked, x, encoder)
    with evaluating(encoder):
        sums = ask_sums(encoder, _one_client(x, asked.client))(theta, asked.gram)
    return Message(wire.sums_reply(sums), reply_to=message)


def _enrolled(message: Message, asked: wire.EnrollOrder, x: Tensor, encoder: nn.Module) -> Message:
    """The direction of the mean of the node's unit embeddings."""
    theta = _theta(asked, x, encoder)
    with evaluating(encoder):
        sums = ask_sums(encoder, _one_client(x, asked.client))(theta, False)
    return Message(wire.enroll_reply(asked, torch.nn.functional.normalize(sums.sums[0], dim=0)), reply_to=message)


def _theta(asked: wire.Order | wire.SumsOrder | wire.EnrollOrder, x: Tensor, encoder: nn.Module) -> Params:
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


def _own_examples(context: Context, asked: wire.Order | wire.SumsOrder | wire.EnrollOrder) -> Tensor:
    """The node's examples, once it is known that the question is for its class."""
    own_class = context.node_config.get("class-id")
    if own_class is not None and str(own_class) != str(asked.class_id):
        raise FedawsError(f"this node has class {own_class}, the server takes it for class {asked.class_id}")
    return _examples(context, asked.client)


def _examples(context: Context, client: int) -> Tensor:
    """The node's own: the array x of the .npz file it was started with; in a simulation, its part of the data."""
    path = context.node_config.get("data")
    if path is None:
        return _simulated(context, client)
    file = Path(os.path.expanduser(str(path)))
    return as_features(read_npz(file, ["x"], "file of examples", "save them by numpy.savez(FILE, x=…)")["x"])


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
