"""Who is who: which registered node is which client, and of which class.

A node is known by the name and the key under which it was registered with the SuperLink, never by what it says.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import tomli_w
from pydantic import BaseModel, ConfigDict, Field

from fedaws.data.strangers import Part
from fedaws.errors import FedawsError
from fedaws.files import checked, read_toml, write_text

_LOG = logging.getLogger("flwr")
_LARGEST = 1 << 29  # bytes of federation.toml: a node takes some 300


class NodeInfo(Protocol):
    """What Flower tells of a connected node."""

    node_id: int
    name: str
    public_key: bytes


@dataclass(frozen=True)
class Member:
    """A client, by the name it is registered under."""

    client: int  # its number, from which its batches are drawn
    class_id: int  # its row of W
    name: str
    public_key: str | None = None  # as in its .pub file; None: the name is enough, as the SuperLink holds its key
    removed: bool = False  # it keeps its number, and is sent nothing any more; with its last node a class's row goes
    class_name: str | None = None  # what the server calls its class; no node is told
    sums_key: str | None = None  # its X25519 public key for secure sums, in hex, for the files of other nodes


class _Node(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    class_id: Annotated[int, Field(ge=0, strict=True, alias="class")]
    public_key: str
    removed: bool = False
    class_name: Annotated[str, Field(min_length=1, max_length=1000)] | None = None
    sums_key: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None


class _File(BaseModel):
    """federation.toml."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    example_shape: tuple[Annotated[int, Field(ge=1, strict=True)], ...]
    example_dtype: Literal["float32", "uint8"] = "float32"
    test: str | None = None  # an .npz with x and y, beside this file; without it nothing but the loss is measured
    strangers: str | None = None  # the same of people without a node, to choose by
    test_strangers: str | None = None  # and of others, for the final figure
    sums: Annotated[str, Field(pattern="^[0-9a-f]{32}$")] | None = None  # the name under which nodes give secure sums
    nodes: dict[str, _Node]


@dataclass(frozen=True)
class Federation:
    """The members in the order of their client numbers."""

    members: tuple[Member, ...]
    path: Path | None = None
    example_shape: tuple[int, ...] = ()
    example_dtype: str = "float32"
    test: Path | None = None
    sums: str | None = None
    stamp: tuple[int, ...] | None = None  # of the file as it was read
    apart: Mapping[Part, Path] = field(default_factory=dict)  # the files of people who have no node
    _known: dict[str, tuple[Member, bytes | None]] = field(init=False, repr=False, compare=False)  # with their keys

    def __post_init__(self) -> None:
        if not self.active:
            raise FedawsError(f"{self.path or 'class_of'} has no nodes; give each registered node's class")
        known = {m.name: (m, _spoken(m.public_key) if m.public_key else None) for m in self.members}
        object.__setattr__(self, "_known", known)
        seen = sorted({m.class_id for m in self.members})
        gap = next((number for number, class_id in enumerate(seen) if number != class_id), None)
        if gap is not None:
            raise FedawsError(f"{self.path or 'class_of'} has no node of class {gap}; number classes from 0 on")
        named = {(m.class_id, m.class_name) for m in self.members if m.class_name}
        if any(len({pair[part] for pair in named}) < len(named) for part in (0, 1)):
            raise FedawsError(f"{self.path}: a class has two names, or two have one; give each class_name to one class")

    @cached_property
    def active(self) -> tuple[Member, ...]:
        """Those that are asked to train."""
        return tuple(m for m in self.members if not m.removed)

    @cached_property
    def gone(self) -> frozenset[int]:
        """The classes whose nodes have all been removed."""
        return frozenset(m.class_id for m in self.members) - {m.class_id for m in self.active}

    @cached_property
    def num_classes(self) -> int:
        """Rows of W."""
        return 1 + max(m.class_id for m in self.members)

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """What the rows of W are called; a class without a name has its number.

        >>> Federation((Member(0, 0, "node-0", class_name="Ada"), Member(1, 1, "node-1"))).class_names
        ('Ada', '1')
        """
        names = {m.class_id: m.class_name for m in self.members if m.class_name}
        return tuple(names.get(c, str(c)) for c in range(self.num_classes)) if names else None

    def member(self, node: NodeInfo) -> Member | None:
        """Who this node is registered as; None for a stranger, one removed, and a known name with another key."""
        member, key = self._known.get(node.name, (None, None))
        if member is None or member.removed or (key is not None and key != bytes(node.public_key)):
            return None
        return member

    def refreshed(self) -> "Federation":
        """What the file says now: new nodes at its end, new keys, removals; known nodes stay what they are.

        Numbers and classes are what the rows of W and the clients' batches go by, so a change of them is not followed.
        """
        if self.path is None or _stamp(self.path) == self.stamp:
            return self
        try:
            found = read_federation(self.path)
        except FedawsError as error:  # half-written, or mistyped by somebody at work on it
            _LOG.warning("%s; going on with the nodes known so far", error)
            return self
        if not found.continues([(m.name, m.class_id) for m in self.members]):
            _LOG.warning("%s moves, drops or reclassifies known nodes; going on with those known so far", self.path)
            return self
        return found

    def continues(self, known: Sequence[tuple[str, int]]) -> bool:
        """Whether the first members are these names with these classes.

        >>> from_classes({"ada": 0, "grace": 1}).continues([("ada", 0)])
        True
        """
        return [(m.name, m.class_id) for m in self.members[: len(known)]] == list(known)


def from_classes(class_of: Mapping[str, int]) -> Federation:
    """A federation from node names and their classes.

    >>> from_classes({"ada": 0, "grace": 1}).members[1].class_id
    1
    """
    return Federation(tuple(Member(i, c, name) for i, (name, c) in enumerate(class_of.items())))


def read_federation(path: Path) -> Federation:
    """The federation in a TOML file."""
    stamp = _stamp(path)  # before it is read: what is written meanwhile is seen the next time
    file = checked(_File, read_toml(path, _LARGEST), str(path))
    nodes = enumerate(file.nodes.items())
    members = (Member(i, n.class_id, name, n.public_key, n.removed, n.class_name, n.sums_key) for i, (name, n) in nodes)
    test = None if file.test is None else path.parent / file.test
    parts: dict[Part, str | None] = {"strangers": file.strangers, "test_strangers": file.test_strangers}
    apart = {part: path.parent / name for part, name in parts.items() if name is not None}
    return Federation(tuple(members), path, file.example_shape, file.example_dtype, test, file.sums, stamp, apart)


def _stamp(path: Path) -> tuple[int, ...] | None:
    """What changes with a file; None if there is none. Ten thousand nodes take seconds to read."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def write_federation(
    path: Path,
    members: Iterable[Member],
    example_shape: tuple[int, ...],
    example_dtype: str,
    test: str | None,
    sums: str | None = None,
    apart: Mapping[Part, str] | None = None,
) -> None:
    """The same, written."""
    tree: dict[str, Any] = {"example_shape": list(example_shape), "example_dtype": example_dtype}
    if test is not None:
        tree["test"] = test
    if sums is not None:
        tree["sums"] = sums
    tree.update((str(part), name) for part, name in (apart or {}).items())
    keys = ("public_key", "removed", "class_name", "sums_key")
    tree["nodes"] = {m.name: {"class": m.class_id} | {k: v for k in keys if (v := getattr(m, k))} for m in members}
    note = (
        "# Which node is which class, by the name and key it is registered with. New nodes are added at the end;\n"
        "# one that leaves stays here, with removed = true.\n"
    )
    write_text(path, note + tomli_w.dumps(tree))


def _spoken(public_key: str) -> bytes:
    """A key as the SuperLink tells it (PEM), from the line of a .pub file."""
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - the client needs none of this

    try:
        key = serialization.load_ssh_public_key(public_key.encode())
    except Exception:
        raise FedawsError(f"{public_key!r:.60} is not a public key; wanted the line of a .pub file") from None
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
