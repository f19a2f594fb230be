"""The file of a gallery: people, their names and numbers; packed, and checked when it is read."""

import hashlib
import json
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from fedaws.device.errors import DeviceError

Vector = NDArray[np.float32]
LONGEST_NAME = 200
"""Characters."""
LARGEST = 1 << 30
"""Bytes of a file."""
MOST_PEOPLE = 100_000
MOST_EXAMPLES = 1_000_000_000
"""Of a person."""
DIGEST = re.compile(r"[0-9a-f]{16,64}")
"""Of a model."""

_FORMAT = "fedaws-gallery-1"
_LONGEST_HEADER = 1 << 25
_LATEST = 1 << 40  # seconds since 1970
_TURNING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")  # text that reads in another order


@dataclass(frozen=True)
class Person:
    """An enrolled person; the vector does not show."""

    name: str
    vector: Vector = field(repr=False, compare=False)  # [d] of unit length
    count: int  # examples
    length: float  # of the mean of their unit embeddings: 1 if all are the same
    enrolled: int  # seconds since 1970
    changed: int
    threshold: float | None = None  # their own
    ask: int | None = None  # examples at once that it was measured with, if that is known


def checked_name(name: str) -> str:
    r"""A name in its composed form: any text of up to 200 characters without control characters.

    >>> checked_name("Zoe\u0308") == "Zo\u00eb"
    True
    """
    if not isinstance(name, str) or not name.strip() or name != name.strip():
        raise DeviceError(f"{name!r:.80} is no name; wanted text that neither begins nor ends with a space")
    composed = unicodedata.normalize("NFC", name)
    if len(composed) > LONGEST_NAME:
        raise DeviceError(f"a name has {len(composed):,} characters; wanted at most {LONGEST_NAME}")
    if any(unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") or c in _TURNING for c in composed):
        raise DeviceError(f"the name {name!a} has control characters; leave them out")
    return composed


def checked_threshold(value: float | None) -> float | None:
    """A cosine, or none."""
    if value is not None and not -1 <= value <= 1:
        raise DeviceError(f"threshold={value}; wanted −1 … 1, a cosine")
    return None if value is None else float(value)


def stacked(people: Mapping[str, Person], dim: int) -> Vector:
    """Everybody's vector, [people, d]."""
    rows = [person.vector for person in people.values()]
    return np.stack(rows) if rows else np.empty((0, dim), np.float32)


def packed(people: Mapping[str, Person], digest: str, dim: int) -> bytes:
    """A file of these people."""
    vectors = stacked(people, dim)
    listed = [
        [
            each.name,
            each.count,
            each.length,
            each.enrolled,
            each.changed,
            each.threshold,
            *([each.ask] if each.ask else []),
        ]
        for each in people.values()
    ]
    facts = json.dumps({"digest": digest, "dim": dim, "people": listed})
    return save({"vectors": vectors}, {"format": _FORMAT, "facts": facts, "sha256": _checksum(facts, vectors)})


def unpacked(content: bytes, path: Path, digest: str, dim: int) -> dict[str, Person]:
    """Name → person, of a file that was made with this model."""
    facts, vectors = read_facts(content, path)
    made_with, made_dim, listed = facts["digest"], facts["dim"], facts["people"]
    if (made_with, made_dim) != (digest, dim):
        raise DeviceError(
            f"{path} was made with another model or preprocessing ({made_with[:12]}…, this is {digest[:12]}…); "
            "embeddings of two models cannot be compared: enrol again, in a new gallery"
        )
    try:
        if vectors.shape != (len(listed), dim) or len(listed) > MOST_PEOPLE:
            raise ValueError(f"vectors of shape {vectors.shape} for {len(listed)} people")
        people = [_person(entry, vector) for entry, vector in zip(listed, vectors, strict=True)]
    except (TypeError, ValueError) as error:
        raise _damaged(path, str(error)) from None
    named = {person.name: person for person in people}
    if len(named) != len(people):
        raise _damaged(path, "two people of one name")
    return named


def read_facts(content: bytes, path: Path) -> tuple[dict[str, Any], Vector]:
    """What a file says of its model and its people, and their vectors; its checksum is right."""
    try:
        return _parts(content)
    except Exception as error:  # json, safetensors and NumPy meet damaged bytes with any of a dozen exceptions
        why = " ".join(str(error).split())[:120] or type(error).__name__
        raise _damaged(path, why) from None


def _parts(content: bytes) -> tuple[dict[str, Any], Vector]:
    """The facts and the vectors, whose checksum is right."""
    size = int.from_bytes(content[:8], "little")
    if not 2 <= size <= min(_LONGEST_HEADER, len(content) - 8):
        raise ValueError(f"{len(content):,} bytes cannot hold its header")
    header = json.loads(content[8 : 8 + size])
    about = header["__metadata__"]
    if about["format"] != _FORMAT or header.keys() != {"__metadata__", "vectors"}:
        raise ValueError(f"format {about['format']!r:.40}, wanted {_FORMAT!r}")
    vectors = load(content)["vectors"]
    if vectors.dtype != np.float32 or vectors.ndim != 2:
        raise ValueError(f"vectors of {vectors.dtype} {vectors.shape}")
    text = about["facts"]
    if _checksum(text, vectors) != about["sha256"]:
        raise ValueError("its checksum is wrong")
    facts = json.loads(text)
    if not isinstance(facts, dict) or type(facts["dim"]) is not int or not isinstance(facts["people"], list):
        raise ValueError("its facts make no sense")
    if not isinstance(facts["digest"], str) or not DIGEST.fullmatch(facts["digest"]):
        raise ValueError("no digest of a model")
    return facts, vectors


def _person(entry: Any, vector: Vector) -> Person:
    name, count, length, enrolled, changed, threshold, *asked = entry
    (ask,) = asked or [None]
    numbers = isinstance(length, int | float) and (threshold is None or isinstance(threshold, int | float))
    whole = all(type(value) is int for value in (count, enrolled, changed, 1 if ask is None else ask))
    if not numbers or not whole or not isinstance(name, str) or checked_name(name) != name:
        raise ValueError("a person with a wrong name or wrong numbers")
    if not (0 < length <= 1 and 0 < count <= MOST_EXAMPLES and all(0 <= t < _LATEST for t in (enrolled, changed))):
        raise ValueError(f"numbers of {name!r:.60} that cannot be")
    with np.errstate(over="ignore", invalid="ignore"):
        if not abs(float(np.linalg.norm(vector)) - 1) < 1e-3:
            raise ValueError(f"the vector of {name!r:.60} has not the length 1")
    return Person(name, vector, count, float(length), enrolled, changed, checked_threshold(threshold), ask)


def _checksum(facts: str, vectors: Vector) -> str:
    return hashlib.sha256(facts.encode() + vectors.astype("<f4").tobytes()).hexdigest()


def _damaged(path: Path, reason: str) -> DeviceError:
    return DeviceError(f"{path} is no sound gallery: {reason}; restore a copy of it, or enrol again in a new one")
