"""What crosses the edge, and what is refused there.

A node is sent three records: `arrays` (θ, the same for all, so Flower uploads it once a round), `config` (the round and
the run's settings, the same for all) and `own` (its client number, its class, its row w_i). It answers with `arrays`
(θ_i − θ), `own` (the numbers again, and the new row) and `metrics`. Rows travel as little-endian float32 bytes.

Private rows do not travel: a node is sent `means` in their place, the same for all.
"""

import io
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor

from fedaws.config import Config, DataConfig, ModelConfig, PrivacyConfig, SpreadConfig, TrainConfig, from_toml
from fedaws.errors import FedawsError
from fedaws.types import Params, Sums

ROUND: Final = "server-round"
EXAMPLES: Final = "num-examples"
_OWN: Final = frozenset({"client-id", "class-id", "round", "row"})
_METRICS: Final = frozenset({EXAMPLES, "loss", "startup-seconds", "compute-seconds"})
_ROW: Final = np.dtype("<f4")
Records = dict[str, ArrayRecord | ConfigRecord]
"""What all nodes of a round are sent alike, by the records' names."""

_LARGEST: Final = 1e9  # of a loss or a time: sums of these are finite, in float32 too


class Rejected(Exception):  # noqa: N818 - a reply that is dropped is no error of ours
    """A reply that must not touch θ or W, and why."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


@dataclass(frozen=True)
class Order:
    """What a node is asked: to train, to tell sums of its examples, or to make the first row of a new class."""

    config: Config
    round_num: int  # 0 for the first
    client: int
    class_id: int
    arrays: ArrayRecord  # θ, unread until the shapes are known
    row: Tensor | None = None  # [d], to train; None: it has its own, or needs none
    means: ArrayRecord | None = None  # of what all private rows tell
    gram: bool = False  # whether Σzzᵀ is wanted too


@dataclass(frozen=True)
class Limits:
    """What a reply may be at most."""

    clip_norm: float = 10.0  # a longer θ_i − θ is shortened to this,
    max_norm: float = 1000.0  # one beyond this refused
    max_examples: int = 1_000_000

    def __post_init__(self) -> None:
        if not 0 < self.clip_norm <= self.max_norm or self.max_examples < 1:
            raise FedawsError(
                f"clip-norm={self.clip_norm:g}, max-norm={self.max_norm:g}, max-examples={self.max_examples}; "
                "wanted 0 < clip-norm ≤ max-norm and at least one example"
            )


@dataclass(frozen=True)
class Expected:
    """What a reply must agree with, from the server's own books."""

    round_num: int
    client: int
    class_id: int
    theta: Params
    row_size: int
    limits: Limits


@dataclass(frozen=True)
class Reply:
    """A reply that passed."""

    delta: Params
    row: Tensor  # [d]
    num_examples: int
    loss: float
    norm: float  # of the change of θ before it was shortened
    startup_seconds: float  # what the node says of itself, for the log only
    compute_seconds: float


# --- from the server to a node --------------------------------------------------------------------------------------


def shared_config(cfg: Config, round_num: int, extra: Mapping[str, Any] | None = None) -> ConfigRecord:
    """The record that all nodes of a round are sent alike, with what they need to know of the run and no more.

    Where the server has its data is no business of theirs, nor how it pushes rows apart, unless they do so themselves.
    """
    private = cfg.privacy.rows == "private"
    spread = SpreadConfig(regularizer=cfg.spread.regularizer, whitening=cfg.spread.whitening)
    run = Config(
        seed=cfg.seed,
        method=cfg.method,
        data=DataConfig(augment=cfg.data.augment),
        model=ModelConfig(**cfg.model.model_dump() | {"start": None}),
        clients=cfg.clients,
        spread=spread if private else SpreadConfig(),
        privacy=PrivacyConfig(rows=cfg.privacy.rows),
        train=TrainConfig(**cfg.train.model_dump() | {"device": "auto"}),
        options=cfg.options,
    )
    return ConfigRecord({**(extra or {}), ROUND: round_num + 1, "run": run.to_toml()})


def order(
    shared: Records, client: int, class_id: int, row: Tensor | None = None, gram: bool | None = None
) -> RecordDict:
    """What one node is sent: a RecordDict of its own around the shared records, `arrays` and `config` among them.

    To train, its row, unless it keeps that itself; for sums, whether Σzzᵀ is among them; to enrol, neither.
    """
    own = ConfigRecord({"client-id": client, "class-id": class_id})
    if row is not None:
        own["row"] = row_bytes(row)
    if gram is not None:
        own["gram"] = gram
    return RecordDict({**shared, "own": own})


def read_order(content: RecordDict) -> Order:
    """An order to train, on the node."""
    asked, row = read_question(content), content.config_records["own"].get("row")
    if asked.config.privacy.rows == "private":
        if row is not None:
            raise FedawsError("the server's message has a row where this node keeps its own; is it of another version?")
        return replace(asked, means=content.array_records.get("means"))
    if not isinstance(row, bytes) or len(row) % _ROW.itemsize:
        raise FedawsError("the server's message has no row, or one of the wrong type")
    return replace(asked, row=_row(row))


def read_sums_order(content: RecordDict) -> Order:
    """A question after the last round: how many examples, and the sums of their embeddings under this θ."""
    asked, gram = read_question(content), content.config_records["own"].get("gram")
    if type(gram) is not bool:
        raise FedawsError("the server's message does not say which sums it wants; is it of another version?")
    return replace(asked, gram=gram)


def read_question(content: RecordDict) -> Order:
    """What every order has; a message of another make is refused, and the server is told."""
    try:
        config, own = content.config_records["config"], content.config_records["own"]
        run = config["run"]
        numbers = [config[ROUND], own["client-id"], own["class-id"]]
        arrays = content.array_records["arrays"]
    except KeyError as error:
        raise FedawsError(f"the server's message has no {error}; is it of another version?") from None
    if not isinstance(run, str):
        raise FedawsError("the server's message has settings of the wrong type")
    round_num, client, class_id = (_number(value) for value in numbers)
    return Order(_settings(run), round_num - 1, client, class_id, arrays)


@lru_cache(maxsize=1)  # the same in every message of a run
def _settings(run: str) -> Config:
    return from_toml(run, "the server's message")


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**31:
        raise FedawsError(f"the server's message has the number {value!r:.40}; wanted 0 … 2³¹ − 1")
    return value


def _row(data: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(data, _ROW).astype(np.float32))


# --- from a node to the server --------------------------------------------------------------------------------------


def reply(
    asked: Order, delta: Params, row: Tensor, num_examples: int, loss: float, startup: float, compute: float
) -> RecordDict:
    """A node's answer."""
    metrics = MetricRecord(
        {EXAMPLES: num_examples, "loss": loss, "startup-seconds": startup, "compute-seconds": compute}
    )
    return RecordDict({"arrays": pack(delta), "own": _own(asked, row), "metrics": metrics})


def read_reply(content: RecordDict, expected: Expected) -> Reply:
    """The answer, if every part of it is what it must be; raises :class:`Rejected` otherwise, and nothing else."""
    only(content, "arrays", "metrics", "own")
    own, metrics = content.config_records["own"], content.metric_records["metrics"]
    keys(own, _OWN)
    keys(metrics, _METRICS)
    check_place(own, expected)
    examples = _examples(metrics[EXAMPLES], expected.limits)
    loss, *seconds = (_measure(metrics[key]) for key in ("loss", "startup-seconds", "compute-seconds"))
    delta, norm = _clipped(unpack(content.array_records["arrays"], expected.theta), expected.limits)
    row = read_row(own["row"], expected)
    return Reply(delta, row, examples, loss, norm, *seconds)


def enroll_reply(asked: Order, row: Tensor) -> RecordDict:
    """A newcomer's answer: the row that it made at home, and nothing else."""
    return RecordDict({"own": _own(asked, row)})


def _own(asked: Order, row: Tensor) -> ConfigRecord:
    numbers = {"client-id": asked.client, "class-id": asked.class_id, "round": asked.round_num + 1}
    return ConfigRecord({**numbers, "row": row_bytes(row)})


def read_enrolled(content: RecordDict, expected: Expected) -> Tensor:
    """The newcomer's row; raises :class:`Rejected` if it is none, and nothing else."""
    only(content, "own")
    own = content.config_records["own"]
    keys(own, _OWN)
    check_place(own, expected)
    return read_row(own["row"], expected)


def sums_reply(sums: Sums) -> RecordDict:
    """A node's answer to the last question: n, Σz and, if it was asked for, Σzzᵀ; nothing else."""
    arrays = {"sum": sums.sums[0]} | ({} if sums.gram is None else {"gram": sums.gram})
    return RecordDict({"arrays": pack(arrays), "metrics": MetricRecord({EXAMPLES: int(sums.counts[0])})})


def read_sums(content: RecordDict, size: int, gram: bool, limits: Limits) -> Sums:
    """The answer, if unit embeddings can have such sums; raises :class:`Rejected` otherwise, and nothing else."""
    only(content, "arrays", "metrics")
    metrics = content.metric_records["metrics"]
    keys(metrics, frozenset({EXAMPLES}))
    count = _examples(metrics[EXAMPLES], limits)
    like = {"sum": torch.zeros(size)} | ({"gram": torch.zeros(size, size)} if gram else {})
    arrays = unpack(content.array_records["arrays"], like)
    if not all(bool(array.isfinite().all()) for array in arrays.values()):
        raise Rejected("not-finite", "NaN or infinite values in its sums")
    length = float(arrays["sum"].double().norm())
    slack = 1e-3 * count
    if length > count + slack:
        raise Rejected("norm", f"the sum of its {count} unit embeddings has norm {length:.3g}")
    if gram:
        second = arrays["gram"].double()
        trace = float(second.trace())
        if trace > count + slack or trace < -slack or float((second - second.T).abs().max()) > slack:
            raise Rejected("norm", f"the second moment of its {count} unit embeddings has trace {trace:.3g}")
        if float(torch.linalg.eigvalsh(second).min()) < -slack:
            raise Rejected("norm", "its second moment has a negative eigenvalue")
    return Sums(torch.tensor([count]), arrays["sum"][None], arrays.get("gram"))


def only(content: RecordDict, *wanted: str) -> None:
    """Refuse all but these records, each of its own kind."""
    kinds = {"arrays": ArrayRecord, "metrics": MetricRecord, "own": ConfigRecord}
    if set(content) != set(wanted) or not all(isinstance(content[name], kinds[name]) for name in wanted):
        raise Rejected("records", f"has {sorted(map(str, content))!s:.80}; wanted {', '.join(wanted)}")


def keys(record: ConfigRecord | MetricRecord, wanted: frozenset[str]) -> None:
    """Refuse a record of other keys."""
    if set(record) != wanted:
        raise Rejected("records", f"has the keys {sorted(record)!s:.80}; wanted {sorted(wanted)}")


def check_place(own: ConfigRecord, expected: Expected) -> None:
    """Refuse an answer for another round, client or class."""
    for key, wanted in (
        ("client-id", expected.client),
        ("class-id", expected.class_id),
        ("round", expected.round_num + 1),
    ):
        if type(own[key]) is not int or own[key] != wanted:
            raise Rejected("round" if key == "round" else "class", f"{key} is {own[key]!r:.40}, wanted {wanted}")


def _examples(value: Any, limits: Limits) -> int:
    if type(value) is not int or not 1 <= value <= limits.max_examples:
        raise Rejected("examples", f"{value!r:.40} examples, wanted 1 … {limits.max_examples}")
    return value


def _measure(value: Any) -> float:
    if type(value) is not float or not 0 <= value <= _LARGEST:  # one inf among the losses would end the run
        raise Rejected("not-finite", f"{value!r:.40} among its metrics; wanted numbers from 0 to {_LARGEST:g}")
    return value


def _clipped(delta: Params, limits: Limits) -> tuple[Params, float]:
    """θ_i − θ, shortened to the norm that one client may move the average by, and the norm it had."""
    norm = math.sqrt(sum(float(d.double().square().sum()) for d in delta.values()))
    if not math.isfinite(norm):
        raise Rejected("not-finite", "NaN or infinite values in its arrays")
    if norm > limits.max_norm:
        raise Rejected("norm", f"its change of θ has norm {norm:.3g}, wanted at most {limits.max_norm:g}")
    if norm <= limits.clip_norm:
        return delta, norm
    return {k: d * (limits.clip_norm / norm) for k, d in delta.items()}, norm


def read_row(data: Any, expected: Expected) -> Tensor:
    """A row, of the right size and length."""
    if not isinstance(data, bytes) or len(data) != expected.row_size * _ROW.itemsize:
        raise Rejected("shape", f"its row is not {expected.row_size} float32 numbers")
    row = _row(data)
    norm = float(row.double().norm())
    if not math.isfinite(norm):
        raise Rejected("not-finite", "NaN or infinite values in its row")
    if abs(norm - 1) > 1e-3:
        raise Rejected("norm", f"its row has norm {norm:.3g}")
    return row


# --- tensors --------------------------------------------------------------------------------------------------------


def row_bytes(row: Tensor) -> bytes:
    """Little-endian float32."""
    return row.detach().cpu().numpy().astype(_ROW).tobytes()


def pack(params: Params) -> ArrayRecord:
    """Named tensors as Flower carries them."""
    return ArrayRecord({name: Array(t.detach().cpu().contiguous().numpy()) for name, t in params.items()})


def unpack(record: ArrayRecord, like: Params) -> Params:
    """The tensors in a record, refused unless they have the names, shapes and types of `like`."""
    if set(record) != set(like):
        raise Rejected("records", f"its arrays are named {sorted(record)!s:.80}; wanted {sorted(like)!s:.200}")
    return {name: _read_array(record[name], t, name) for name, t in like.items()}


def _read_array(array: Array, like: Tensor, name: str) -> Tensor:
    """An array out of its own bytes, whose header must be the one that NumPy writes.

    It is compared, not parsed: a stranger's header could ask for any amount of memory, or of time.
    """
    shape = tuple(like.shape)
    dtype = np.dtype(str(like.dtype).removeprefix("torch."))
    if array.stype != "numpy.ndarray":
        raise Rejected("dtype", f"{name!r} is packed as {array.stype!r:.40}")
    if array.dtype != str(dtype):
        raise Rejected("dtype", f"{name!r} is {array.dtype!r:.40}, wanted {dtype}")
    if tuple(array.shape) != shape:
        raise Rejected("shape", f"{name!r} has shape {array.shape!s:.40}, wanted {shape}")
    for fortran in (False, True):
        header = _header(shape, dtype.str, fortran)
        if array.data.startswith(header) and len(array.data) == len(header) + like.numel() * dtype.itemsize:
            values = np.frombuffer(array.data, dtype, offset=len(header))
            return torch.from_numpy(np.array(values.reshape(shape, order="F" if fortran else "C"), order="C"))
    raise Rejected("bytes", f"{name!r} is not NumPy's file of {dtype} {shape}")


@lru_cache(maxsize=1000)
def _header(shape: tuple[int, ...], dtype: str, fortran: bool) -> bytes:
    """What NumPy writes before the numbers of such an array."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": dtype, "fortran_order": fortran, "shape": shape})
    return buffer.getvalue()


# --- words ----------------------------------------------------------------------------------------------------------


def printable(text: str) -> str:
    r"""A stranger's words for a log: on one line, and without what a terminal would obey.

    >>> printable("all\nis \x1b[2Jwell")
    'all is \\x1b[2Jwell'
    """
    words = " ".join(text.split())
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in words)
