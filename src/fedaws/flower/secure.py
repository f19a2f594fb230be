"""Secure sums over Flower: what is added up, and the messages of the two trips, checked at the edge.

First trip: a train message as ever, with one more record `sum`, the same for all: the federation, the sum's number, the
cohort's names, the threshold and the bounds. The answer has `arrays` with one masked vector of 32-bit numbers in place
of θ_i − θ, and `own` with the node's shares for every node of the cohort; no metrics, and a row only if the method's
rows are in the clear. Of private rows a second masked vector tells, whose sum over everybody alone can be known; the
record says for that in which run it is, and when each node was last counted. Second trip (`query.open`): the names of
those whose vectors arrived and their shares for this node; the answer has what opens their sum. The cryptography is in
:mod:`fedaws.privacy.secure_sums`.
"""

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, MessageType, RecordDict
from torch import Tensor

from fedaws.config import Config, PrivacyConfig
from fedaws.core.method import Method
from fedaws.errors import FedawsError
from fedaws.flower import wire
from fedaws.flower.wire import Expected, Limits, Rejected
from fedaws.privacy import secure_sums
from fedaws.privacy.mechanism import Uniform, from_the_system
from fedaws.privacy.noise_shares import TAIL, NoiseShares, discrete_gaussian, noise_shares
from fedaws.privacy.secure_sums import Entry, Layout, Masked, Numbers, Round, decode, encode, joint_digest
from fedaws.privacy.sum_keeper import threshold_of
from fedaws.types import Params

OPEN: Final = f"{MessageType.QUERY}.open"
"""The type of the second trip's question."""
_THETA: Final = "theta/"
_WEIGHT, _LOSS, _STARTUP, _COMPUTE = "weight", "loss", "startup-seconds", "compute-seconds"
_BOUNDS: Final = {_WEIGHT: 1.0, _LOSS: 100.0, _STARTUP: 3600.0, _COMPUTE: 3600.0}
_SUM: Final = frozenset(
    {"federation", "number", "cohort", "heard", "run", "threshold", "double", "clip-norm", "max-examples", "noise"}
)
_MOST_NODES: Final = 10_000


def check_method(cfg: Config, method: Method) -> None:
    """Refuse what needs to know more than sums."""
    wants = {
        f"method={cfg.method} weighs clients by their losses": method.weighting is not None,
        "train.last_step and train.enroll ask each node for sums of its own": (
            cfg.train.last_step != "none" or cfg.train.enroll > 0 or method.last_step is not None
        ),
        "model.start_rows=means asks each node for sums of its own": cfg.model.start_rows == "means",
        "clients.weighting=examples needs a node's number of examples beside its row": (
            cfg.clients.weighting == "examples" and method.trains_own_row
        ),
    }
    for what, so in wants.items():
        if so:
            raise FedawsError(f"{what}, which privacy.secure_sums hides; set one of them otherwise")
    per_round, least = cfg.clients.per_round, cfg.privacy.min_cohort
    if per_round != "all" and per_round < least:
        raise FedawsError(
            f"clients.per_round={per_round} is below privacy.min_cohort={least}, and nodes refuse sums of fewer; "
            "raise per_round"
        )


def check_private(cfg: Config, classes: list[int]) -> None:
    """Refuse what private rows cannot do: nodes tell of them in secure sums over everybody alone."""
    wants = {
        "sums that show no single node; set privacy.secure_sums=true": cfg.privacy.secure_sums,
        "everybody in every round, as sums over some tell of each; set clients.per_round=all": (
            cfg.clients.per_round == "all"
        ),
        "a class of its own for each node; some have the same": len(set(classes)) == len(classes),
        "rows of unit length; set model.normalize=true": cfg.model.normalize,
    }
    for what, so in wants.items():
        if not so:
            raise FedawsError(f"privacy.rows=private needs {what}")


# --- what is added up -----------------------------------------------------------------------------------------------


def layout_of(theta: Params, limits: Limits, extra: Iterable[Entry] = (), shares: NoiseShares | None = None) -> Layout:
    """The vector: θ's change, the weight, what is measured, and whatever else a method adds up; with noise in shares
    there is room for it.
    """
    bound = limits.clip_norm if shares is None else shares.bound
    changes = [Entry(_THETA + name, tuple(t.shape), bound) for name, t in theta.items()]
    return [*changes, *(Entry(name, (), bound) for name, bound in _BOUNDS.items()), *extra]


@dataclass(frozen=True)
class Part:
    """What one node adds to the sum; `extra` are the method's own, by their names."""

    delta: Params
    num_examples: int
    loss: float
    startup: float
    compute: float
    extra: Mapping[str, Tensor]


def noise_terms(
    record: ConfigRecord, limits: Limits, theta: Params, factor: float
) -> tuple[Limits, NoiseShares | None]:
    """How far a change of θ may go in this round, and what noise each node adds to its own; None: none.

    With noise the clip goes with the schedule's `factor`, as the step does, and as in a simulation.
    """
    noise: Any = record["noise"]
    if not noise:
        return limits, None
    clip, clients = limits.clip_norm * factor, len(_list(record["cohort"]))
    threshold: Any = record["threshold"]
    shares = noise_shares(noise, clip, clients, threshold, sum(t.numel() for t in theta.values()))
    return Limits(clip, limits.max_norm, limits.max_examples), shares


def with_noise(numbers: Numbers, layout: Layout, shares: NoiseShares, uniform: Uniform = from_the_system) -> Numbers:
    """The vector with this node's share of the noise in θ's change."""
    count = sum(entry.size for entry in layout if entry.name.startswith(_THETA))  # these come first
    noise = discrete_gaussian(count, shares.deviation, uniform)
    noisy = numbers.copy()
    noisy[:count] += (noise & 0xFFFFFFFF).astype(np.uint32)
    return noisy


def encoded(part: Part, layout: Layout, cfg: Config, limits: Limits, clients: int) -> Numbers:
    """ω_i times each number, as the vector; θ's change is first shortened to the norm that one client may have."""
    weight = min(1.0, part.num_examples / limits.max_examples) if cfg.clients.weighting == "examples" else 1.0
    norm = math.sqrt(sum(float(d.double().square().sum()) for d in part.delta.values()))
    share = weight * min(1.0, limits.clip_norm / max(norm, 1e-30))
    values = {_THETA + name: change.detach().cpu().double().numpy() * share for name, change in part.delta.items()}
    measured = {_WEIGHT: 1.0, _LOSS: part.loss, _STARTUP: part.startup, _COMPUTE: part.compute}
    values |= {name: np.asarray(weight * value) for name, value in measured.items()}
    values |= {name: t.detach().cpu().double().numpy() * weight for name, t in part.extra.items()}
    return encode(values, layout, clients)


@dataclass(frozen=True)
class Mean:
    """What the server learns of a round: means over those that answered."""

    weight: float  # the sum of the weights
    delta: Params
    norm: float
    loss: float
    startup: float
    compute: float
    extra: dict[str, Tensor]


def decoded(
    total: Numbers,
    layout: Layout,
    theta: Params,
    clients: int,
    answered: int,
    limits: Limits,
    shares: NoiseShares | None = None,
) -> Mean:
    """Weighted means from the sum; refused if no honest clients can have it: some node was told or did otherwise."""
    sums = decode(total, layout, clients)
    weight = float(sums.pop(_WEIGHT))
    slack = 1 + 1e-3
    if not 0 < weight <= answered * slack:
        raise Rejected("norm", f"the weights of {answered} nodes add up to {weight:.3g}; the sum is spoilt")
    means = {name: torch.from_numpy(np.asarray(value / weight)) for name, value in sums.items()}
    delta = {name: means.pop(_THETA + name).to(t.dtype) for name, t in theta.items()}
    norm = math.sqrt(sum(float(d.double().square().sum()) for d in delta.values()))
    unit, numbers = secure_sums.step(layout[0].bound, clients), sum(t.numel() for t in theta.values())
    room = math.sqrt(numbers) * unit * answered  # for rounding
    if shares is not None:  # about √p long; some deviations of that more
        room += shares.deviation * unit * math.sqrt(answered) * (math.sqrt(numbers) + TAIL)
    if norm > limits.clip_norm * slack + room / weight:
        raise Rejected("norm", f"the mean change of {answered} nodes has norm {norm:.3g}; the sum is spoilt")
    loss, startup, compute = (float(means.pop(name)) for name in (_LOSS, _STARTUP, _COMPUTE))
    return Mean(weight, delta, norm, loss, startup, compute, {name: t.float() for name, t in means.items()})


# --- the first trip -------------------------------------------------------------------------------------------------


def new_number(last: int) -> int:
    """The next sum's: by the clock, so that a server that has forgotten the last one does not use it twice."""
    return max(last + 1, time.time_ns() // 1000)


def sum_record(
    federation: str,
    number: int,
    heard: Mapping[str, int],
    run: str,
    privacy: PrivacyConfig,
    limits: Limits,
    noise: float = 0.0,
) -> ConfigRecord:
    """The record that all nodes of the cohort are sent alike.

    `noise` is that of the sum, times `clip-norm`, which the nodes add in shares. `heard` says by their names after how
    many rounds each node's private row was last counted; 0: never.
    """
    cohort = sorted(heard)
    return ConfigRecord(
        {
            "federation": federation,
            "number": number,
            "cohort": cohort,
            "heard": [heard[name] for name in cohort],
            "run": run,
            "threshold": threshold_of(privacy.threshold, len(cohort)),
            "double": privacy.double_masks,
            "clip-norm": limits.clip_norm,
            "max-examples": limits.max_examples,
            "noise": noise,
        }
    )


def read_sum(content: RecordDict) -> tuple[ConfigRecord, Limits]:
    """The record and its bounds, on the node."""
    record = content.config_records.get("sum")
    if record is None or set(record) != _SUM:
        raise FedawsError(f"the server's sum has {sorted(record or ())!s:.80}; is it of another version?")
    kinds = {"federation": str, "number": int, "cohort": list, "heard": list, "run": str}
    kinds |= {"threshold": int, "double": bool}
    kinds |= {"clip-norm": float, "max-examples": int, "noise": float}
    wrong = [key for key, kind in kinds.items() if type(record[key]) is not kind]
    if wrong or not all(type(name) is str for name in _list(record["cohort"])):
        raise FedawsError(f"the server's sum has a {(wrong or ['cohort'])[0]} of the wrong type")
    heard = _list(record["heard"])
    if len(heard) != len(_list(record["cohort"])) or not all(type(n) is int and 0 <= n < 2**31 for n in heard):
        raise FedawsError("the server's sum does not say of each node when it was last counted")
    clip: Any = record["clip-norm"]
    most: Any = record["max-examples"]
    noise: Any = record["noise"]
    if not 0 <= noise < math.inf:
        raise FedawsError(f"the server's sum has noise={noise:g}; wanted a number of 0 or more")
    return record, Limits(clip, clip, most)


def heard_of(record: ConfigRecord) -> dict[str, int]:
    """By the cohort's names: after how many rounds the server has last counted each node's row."""
    return dict(zip(_list(record["cohort"]), _list(record["heard"]), strict=True))


def about_sum(content: RecordDict, record: ConfigRecord, *layouts: Layout) -> Round:
    """What all nodes must have alike: the record, and digests of θ, the settings and the vectors' parts."""
    values: dict[str, Any] = dict(record)
    config = content.config_records["config"]
    sent = [content.array_records[name] for name in ("arrays", "means") if name in content.array_records]
    numbers = [piece for arrays in sent for piece in _told(arrays)]
    point = joint_digest([*numbers, str(config[wire.ROUND]).encode()])
    training = {key: config[key] for key in config if key != wire.ROUND}
    bounds = {key: record[key] for key in ("clip-norm", "max-examples", "noise") if record[key]}
    settings = joint_digest([*_items(training), *_items(bounds)])
    told = joint_digest([*numbers, *_items(config), *_items(record), repr([list(part) for part in layouts]).encode()])
    cohort = tuple(_list(values["cohort"]))
    head = values["federation"], values["number"], cohort, values["threshold"], values["double"]
    return Round(*head, told, point, settings)


def rows_layout(method: Method, dim: int) -> Layout:
    """The second vector, of private rows: by how much what each tells has changed, in numbers of at most 2."""
    told = {} if method.own_spread is None else method.own_spread.unknown(dim)
    return [Entry(name, tuple(t.shape), 2.0) for name, t in told.items()]


def rows_encoded(changes: Params, layout: Layout, clients: int) -> Numbers:
    """One node's part of it."""
    return encode({name: change.detach().cpu().double().numpy() for name, change in changes.items()}, layout, clients)


def rows_decoded(total: Numbers, layout: Layout, clients: int) -> Params:
    """The changes added up over everybody."""
    return {name: torch.from_numpy(np.asarray(value)) for name, value in decode(total, layout, clients).items()}


def _told(arrays: ArrayRecord) -> Iterable[bytes]:
    for name in sorted(arrays):
        array = arrays[name]
        yield from (name.encode(), array.dtype.encode(), str(tuple(array.shape)).encode(), array.data)


def _items(record: Mapping[str, Any]) -> Iterable[bytes]:
    return (f"{key}={record[key]!r}".encode() for key in sorted(record))


def masked_reply(asked: wire.Order, masked: Masked, about: Round, row: Tensor | None) -> RecordDict:
    """A node's answer: its vectors behind masks, its shares in the cohort's order, and a row only if that is clear."""
    numbers = {"client-id": asked.client, "class-id": asked.class_id, "round": asked.round_num + 1}
    letters = [masked.letters[name] for name in about.cohort]
    own = ConfigRecord({**numbers, "number": about.number, "letters": letters})
    if row is not None:
        own["row"] = wire.row_bytes(row)
    vectors = {"sum": masked.vector} | ({} if masked.whole is None else {"rows": masked.whole})
    return RecordDict({"arrays": wire.pack({name: torch.from_numpy(v) for name, v in vectors.items()}), "own": own})


@dataclass(frozen=True)
class MaskedReply:
    """One that passed."""

    masked: Masked
    row: Tensor | None


def read_masked(
    content: RecordDict, expected: Expected, about: Round, layout: Layout, rows: Layout, with_row: bool
) -> MaskedReply:
    """The answer, if every part is what it must be; raises :class:`Rejected` otherwise, and nothing else."""
    wire.only(content, "arrays", "own")
    own = content.config_records["own"]
    keys = {"client-id", "class-id", "round", "number", "letters"}
    wire.keys(own, frozenset(keys | ({"row"} if with_row else set())))
    wire.check_place(own, expected)
    if type(own["number"]) is not int or own["number"] != about.number:
        raise Rejected("round", f"it answers sum {own['number']!r:.40}, wanted {about.number}")
    letters = _bytes_list(own["letters"], [secure_sums.letter_size(about)] * len(about.cohort))
    arrays = content.array_records["arrays"]
    layouts = {"sum": layout} | ({"rows": rows} if rows and "rows" in arrays else {})  # of its row a node may be silent
    like = {name: torch.empty(secure_sums.length(part), dtype=torch.uint32) for name, part in layouts.items()}
    vectors = {name: vector.numpy() for name, vector in wire.unpack(arrays, like).items()}
    row = wire.read_row(own["row"], expected) if with_row else None
    shares = dict(zip(about.cohort, letters, strict=True))
    return MaskedReply(Masked(vectors["sum"], shares, vectors.get("rows")), row)


# --- the second trip ------------------------------------------------------------------------------------------------


def open_order(about: Round, letters: Mapping[str, bytes]) -> RecordDict:
    """What one node is asked: to open its shares from these."""
    own = ConfigRecord({"federation": about.run, "number": about.number})
    own["names"], own["letters"] = list(letters), list(letters.values())
    return RecordDict({"own": own})


def read_open_order(content: RecordDict) -> tuple[str, int, dict[str, bytes]]:
    """The same, on the node."""
    own = content.config_records.get("own")
    if own is None or set(own) != {"federation", "number", "names", "letters"}:
        raise FedawsError("the server's message does not say which shares to open; is it of another version?")
    names, letters = _list(own["names"]), _list(own["letters"])
    sound = all(type(n) is str for n in names) and all(type(letter) is bytes for letter in letters)
    if not sound or len(set(names)) != len(letters) or len(names) != len(letters):
        raise FedawsError("the server's message has names and shares that do not go together")
    if type(own["federation"]) is not str or type(own["number"]) is not int:
        raise FedawsError("the server's message has a federation or number of the wrong type")
    return own["federation"], own["number"], dict(zip(names, letters, strict=True))


def opened_reply(number: int, opened: Mapping[str, bytes]) -> RecordDict:
    """A node's answer, in the order of the question."""
    return RecordDict({"own": ConfigRecord({"number": number, "shares": list(opened.values())})})


def read_opened(content: RecordDict, about: Round, survivors: list[str]) -> dict[str, bytes]:
    """The answer, by the vectors' senders; raises :class:`Rejected` otherwise, and nothing else."""
    wire.only(content, "own")
    own = content.config_records["own"]
    wire.keys(own, frozenset({"number", "shares"}))
    if type(own["number"]) is not int or own["number"] != about.number:
        raise Rejected("round", f"it opens sum {own['number']!r:.40}, wanted {about.number}")
    sizes = [secure_sums.opened_size(about, name, survivors) for name in survivors]
    return dict(zip(survivors, _bytes_list(own["shares"], sizes), strict=True))


def _bytes_list(value: Any, sizes: list[int]) -> list[bytes]:
    if type(value) is not list or [len(v) if type(v) is bytes else -1 for v in value[:_MOST_NODES]] != sizes:
        raise Rejected("shape", f"its shares are not {len(sizes)} texts of the sizes that belong to the cohort")
    return value


def _list(value: Any) -> list[Any]:
    return value if type(value) is list and len(value) <= _MOST_NODES else []
