"""A node's part in secure sums: its key, whom it knows, what it has answered already, and what it refuses.

The rules are the node's own. They stand in its `peers.toml`, which comes from whoever set the federation up and not
from the server; beside it lie the private key and a note of the last round, which a restart does not forget.
"""

import math
import os
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from pydantic import BaseModel, ConfigDict, Field

from fedaws.errors import FedawsError
from fedaws.files import checked, read_bytes, read_json, read_toml, write_text, writing
from fedaws.privacy import secure_sums
from fedaws.privacy.secure_sums import Masked, Numbers, Round, joint_digest

KEY_FILE, STATE_FILE = "sums.key", "sums.json"
PEERS_FILE = "peers.toml"
ROW_FILES = "row-*.safetensors"
_AHEAD = 3_600_000_000  # microseconds that a number may be ahead of this node's clock
_REMEMBERED = 1000  # opened sums

Key = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
"""An X25519 public key, in hex."""


class Peers(BaseModel):
    """`peers.toml`: whom a node gives sums with, and on what terms."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    federation: Annotated[str, Field(pattern="^[0-9a-f]{32}$")]  # a sum for another one is refused
    name: str  # the node's own
    min_cohort: Annotated[int, Field(ge=2)]  # a sum of fewer is refused
    threshold: Annotated[float, Field(gt=0, le=1)]  # of a cohort, that must agree to open a sum
    double_masks: bool  # a sum without them is refused
    rows: Literal["clear", "private"] = "clear"  # `private`: this node's row never leaves it, whatever the server says
    noise: Annotated[float, Field(ge=0, allow_inf_nan=False)] = (
        0.0  # of a sum, times the clip: one with less is refused
    )
    clip: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None  # a longer change is never asked for
    most_sums: Annotated[int, Field(ge=0)] = 0  # that this node gives in all, so that its ε holds; 0: any number
    settings: Annotated[str, Field(pattern="^(first|any|[0-9a-f]{64})$")] = "first"
    """How this node trains: as in its first sum for good, as the server likes, or by the settings of this digest."""
    peers: dict[str, Key]


class _State(BaseModel):
    """The last round that this node has answered, and what it has opened so far."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: str
    number: int
    cohort: tuple[str, ...]
    threshold: int
    double: bool
    told: str
    point: str = ""
    settings: str = ""
    opened: bool = False
    given: int = 1  # sums so far
    before: dict[str, tuple[str, str]] = {}  # by the point: digests of the cohort and of those in the opened sum

    @classmethod
    def of(cls, about: Round, last: "_State | None") -> "_State":
        """A round that is being answered; without masks of the nodes' own, their vectors alone can be its sum."""
        values = {k: v.hex() if isinstance(v, bytes) else v for k, v in asdict(about).items()}
        given, before = (1, {}) if last is None else (last.given + 1, last.before)
        state = cls(**values, given=given, before=before)
        return state if about.double else state.with_opened([]).model_copy(update={"opened": False})

    @property
    def about(self) -> Round:
        told, point, settings = (bytes.fromhex(part) for part in (self.told, self.point, self.settings))
        return Round(self.run, self.number, self.cohort, self.threshold, self.double, told, point, settings)

    def with_opened(self, survivors: Iterable[str]) -> "_State":
        """The same, once these are summed; the newest of such notes are kept."""
        before = self.before | {self.point: (_digest(self.cohort), _digest(survivors))}
        oldest = max(0, len(before) - _REMEMBERED)
        return self.model_copy(update={"opened": True, "before": dict(islice(before.items(), oldest, None))})


def _digest(names: Iterable[str]) -> str:
    return joint_digest(name.encode() for name in sorted(names)).hex()


def threshold_of(part: float, count: int) -> int:
    """How many of a cohort that is: always more than half.

    >>> threshold_of(0.6, 5), threshold_of(0.1, 4)
    (3, 3)
    """
    return max(count // 2 + 1, math.ceil(round(part * count, 9)))


def make_key(folder: Path) -> str:
    """Write a new private key, for nobody else's eyes from its first byte on; the public half."""
    key, path = X25519PrivateKey.generate(), folder / KEY_FILE
    with writing(path), open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(key.private_bytes_raw())
    return key.public_key().public_bytes_raw().hex()


def delete_secrets(folder: Path) -> list[Path]:
    """Delete what a node that leaves must not leave behind: its private key, notes and rows. Returns what was there."""
    found = [path for name in (KEY_FILE, STATE_FILE, ROW_FILES) for path in sorted(folder.glob(name))]
    for path in found:
        with writing(path):
            path.unlink()
    return found


def write_peers(folder: Path, peers: Peers) -> None:
    """A node's `peers.toml`."""
    note = "# With whom this node gives sums, and on what terms. Whoever can change this file can undo them.\n"
    write_text(folder / PEERS_FILE, note + tomli_w.dumps(peers.model_dump(exclude_none=True)))


class SumKeeper:
    """Keeps a node's key, and refuses what would tell more than the sum of many."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.peers = checked(Peers, read_toml(path), str(path))
        self._key = _read_key(path.with_name(KEY_FILE))
        self._public = {name: bytes.fromhex(key) for name, key in self.peers.peers.items()}
        if self._public.get(self.peers.name) != self._key.public_key().public_bytes_raw():
            raise FedawsError(f"{path} has another key for {self.peers.name} than {KEY_FILE} beside it")

    def check_noise(self, noise: float, clip: float) -> None:
        """Refuse a server that lowers the noise of sums, or raises how far one node may move them."""
        rules = self.peers
        if noise < rules.noise * (1 - 1e-9):
            raise FedawsError(f"the server wants noise={noise:g} × the clip; this node gives {rules.noise:g} or more")
        if rules.clip is not None and clip > rules.clip * (1 + 1e-9):
            raise FedawsError(f"the server wants changes of up to {clip:g}; this node cuts its own to {rules.clip:g}")

    def mask(
        self, x: Numbers, about: Round, whole: Numbers | None = None, note: Callable[[], None] = lambda: None
    ) -> Masked:
        """This node's answer to the first trip, once and no more; `note` is called once it is sure to be given."""
        rules, count = self.peers, len(about.cohort)
        strangers = set(about.cohort) - rules.peers.keys()
        if about.run != rules.federation:
            raise FedawsError(f"a sum for another federation, {about.run!r:.40}; this node is of {rules.federation}")
        if strangers:
            raise FedawsError(f"a cohort with {min(strangers)!r:.40}, which is not in {self.path}; give its key there")
        if rules.name not in about.cohort:
            raise FedawsError(f"a sum of a cohort without this node, {rules.name!r:.40}")
        if count < rules.min_cohort:
            raise FedawsError(f"a sum of {count} nodes; this node gives its part to {rules.min_cohort} or more")
        if about.threshold < threshold_of(rules.threshold, count):
            raise FedawsError(
                f"a sum that {about.threshold} of {count} can open; this node wants "
                f"{threshold_of(rules.threshold, count)} or more"
            )
        if rules.double_masks and not about.double:
            raise FedawsError("a sum without masks of each node's own; this node wants them (double_masks)")
        with self._locked():
            last = self._last()
            self._check_turn(about, last)
            note()
            self._write(_State.of(about, last))  # before the answer: a crash loses one
        return secure_sums.mask(x, about, rules.name, self._key, self._public, whole)

    def _check_turn(self, about: Round, last: _State | None) -> None:
        """Refuse a number answered or far ahead, other settings, and other nodes at a θ at which some were summed."""
        if last is not None and about.number <= last.number:
            raise FedawsError(f"sum {about.number} after sum {last.number}; a number is answered once, and none before")
        # A number is the server's clock in microseconds. To answer one of next year would be to answer none until then.
        if about.number > time.time_ns() // 1000 + _AHEAD:
            raise FedawsError(f"sum {about.number} is more than an hour ahead of this node's clock; set the clocks")
        if last is not None and last.given >= self.peers.most_sums > 0:
            raise FedawsError(
                f"this node has given {last.given} sums, as many as its ε allows; for more write most_sums into "
                f"{self.path}"
            )
        settings, wanted = about.settings.hex(), self.peers.settings
        if wanted == "first" and last is not None:
            wanted = last.settings
        if wanted not in ("any", "first", settings):
            raise FedawsError(
                f"the server has changed how this node is to train, from settings {wanted:.12}… to {settings:.12}…; "
                f'if that is meant, write settings = "{settings}" into {self.path}'
            )
        summed = None if last is None else last.before.get(about.point.hex())
        if summed is not None and summed[0] != _digest(about.cohort):
            raise FedawsError(
                "a second sum at the same θ and round over other nodes; their difference could tell a single one"
            )

    def open(self, run: str, number: int, letters: Mapping[str, bytes]) -> dict[str, bytes]:
        """This node's answer to the second trip, once and no more: what lifts the masks of the letters' senders."""
        rules = self.peers
        with self._locked():
            last = self._last()
            if last is None or (run, number) != (last.run, last.number):
                raise FedawsError(f"shares of sum {number}, which is not the last that this node took part in")
            if last.opened:
                raise FedawsError(f"shares of sum {number} were opened already; a second time could tell a single node")
            if rules.name not in letters or not letters.keys() <= set(last.cohort):
                raise FedawsError(f"sum {number} without this node, or with nodes that are not of its cohort")
            needed = max(last.threshold, rules.min_cohort)
            if len(letters) < needed:
                raise FedawsError(f"a sum of {len(letters)} nodes; this node opens one of {needed} or more")
            summed = last.before.get(last.point)
            if summed is not None and last.double and summed[1] != _digest(letters):
                raise FedawsError(
                    f"sum {number} of other nodes than were summed at this θ and round before; "
                    "their difference could tell a single one"
                )
            shares = secure_sums.open_letters(letters, last.about, rules.name, self._key, self._public)
            self._write(last.with_opened(letters))  # only what can be opened, and before anybody is told of it
        return shares

    def _locked(self) -> AbstractContextManager[Any]:
        """Flower may start a second process for a node beside a slow one."""
        from filelock import FileLock  # noqa: PLC0415 - a tenth of a second that others need not wait for

        return FileLock(self.path.with_name(f".{STATE_FILE}.lock"), timeout=60)

    def _last(self) -> _State | None:
        path = self.path.with_name(STATE_FILE)
        return checked(_State, read_json(path), str(path)) if path.exists() else None

    def _write(self, state: _State) -> None:
        write_text(self.path.with_name(STATE_FILE), state.model_dump_json() + "\n")


def _read_key(path: Path) -> X25519PrivateKey:
    content = read_bytes(path, 32)
    if len(content) != 32:
        raise FedawsError(f"{path} has {len(content)} bytes; wanted the 32 of an X25519 key")
    if os.name == "posix" and stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise FedawsError(f"others can read {path}; first: chmod 600 {path}")
    return X25519PrivateKey.from_private_bytes(content)
