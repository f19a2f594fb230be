r"""Who is enrolled: name → a unit vector, in one file that is always whole.

A person is the direction of the mean of their unit embeddings,

.. math:: w = \frac{\sum_i z_i}{\lVert \sum_i z_i \rVert}, \qquad score(x) = w \cdot z(x)

so enrolling is adding and removing is deleting. The file (safetensors, no pickle) says which model it belongs to:
embeddings of two models cannot be compared.
"""

import hashlib
import json
import re
import time
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from safetensors.numpy import load, save

from fedaws.device import store
from fedaws.device.errors import DeviceError

Vector = NDArray[np.float32]
MIN_COHESION = 0.0
"""The least mean cosine of an example with the others of its person. What is right differs by model: where examples are
short and noisy (single spoken digits) 0.2 refused a third of all honest sets of five, and 0 one in forty."""
LONGEST_NAME = 200
"""Characters."""

_FORMAT = "fedaws-gallery-1"
_LARGEST = 1 << 30  # bytes of a file
_LONGEST_HEADER = 1 << 25
_MOST_PEOPLE = 100_000
_MOST_EXAMPLES = 1_000_000_000
_LATEST = 1 << 40  # seconds since 1970
_SHORTEST = 1e-6  # below it an embedding has no direction
_DIGEST = re.compile(r"[0-9a-f]{16,64}")
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


class Gallery:
    """The enrolled people of one file and one model.

    Every change is on the disk when its method returns; changes of other processes are seen at the next question.

    >>> import tempfile
    >>> gallery = Gallery(Path(tempfile.mkdtemp()) / "people.safetensors", digest="0" * 64, dim=2)
    >>> gallery.enroll("Ada", [[1.0, 0.0], [0.8, 0.6]]).count
    2
    >>> gallery.verify("Ada", [1.0, 0.1], threshold=0.9), gallery.identify([-1.0, 0.0], threshold=0.9)
    (True, None)
    """

    def __init__(self, path: str | Path, digest: str, dim: int, threshold: float | None = None) -> None:
        if not _DIGEST.fullmatch(digest):
            raise DeviceError(f"digest={digest!r:.80}; wanted 16 to 64 hexadecimal digits")
        self.path, self.digest, self.dim = Path(path), digest, dim
        self.threshold = _checked_threshold(threshold)
        self._people: dict[str, Person] = {}
        self._rows = np.empty((0, dim), np.float32)
        self._stamp: store.Stamp | None = None
        self._refresh()

    # --- who is there

    @property
    def people(self) -> dict[str, Person]:
        """Name → person, in the order of enrolment."""
        self._refresh()
        return dict(self._people)

    def __len__(self) -> int:
        """How many people are enrolled."""
        return len(self.people)

    def __contains__(self, name: object) -> bool:
        """Whether somebody of this name is enrolled."""
        return isinstance(name, str) and unicodedata.normalize("NFC", name) in self.people

    # --- changes

    def enroll(
        self, name: str, z: ArrayLike, min_cohesion: float = MIN_COHESION, threshold: float | None = None
    ) -> Person:
        """Enrol somebody new by embeddings [n, d] of their examples; refused where the set does not hold together."""
        name, sum_, count = checked_name(name), *self._summed(z, name, min_cohesion)

        def enrolled(people: dict[str, Person]) -> None:
            if name in people:
                raise DeviceError(f"{name!r} is enrolled already; add examples to them, or remove them first")
            if len(people) >= _MOST_PEOPLE:
                raise DeviceError(
                    f"{self.path} has {_MOST_PEOPLE:,} people, the most there can be; use another gallery"
                )
            now = int(time.time())
            people[name] = Person(name, *_mean(sum_, count, name), now, now, _checked_threshold(threshold))

        return self._change(enrolled)[name]

    def add(self, name: str, z: ArrayLike, min_cohesion: float = MIN_COHESION) -> Person:
        """More examples of somebody who is enrolled; refused where they do not go with the earlier ones."""
        name = checked_name(name)

        def added(people: dict[str, Person]) -> None:
            old = self._person(name, people)
            before = old.vector.astype(np.float64) * (old.count * old.length)
            sum_, count = self._summed(z, name, min_cohesion, before, old.count)
            vector, total, length = _mean(sum_, count, name)
            people[name] = replace(old, vector=vector, count=total, length=length, changed=int(time.time()))

        return self._change(added)[name]

    def remove(self, name: str) -> None:
        """Forget somebody: the new file has nothing of them, and the old one is gone."""
        name = checked_name(name)

        def removed(people: dict[str, Person]) -> None:
            self._person(name, people)
            del people[name]

        self._change(removed)

    def set_thresholds(self, thresholds: Mapping[str, float | None]) -> None:
        """Give people thresholds of their own, or take them away by None."""
        wanted = {checked_name(name): _checked_threshold(value) for name, value in thresholds.items()}

        def changed(people: dict[str, Person]) -> None:
            for name, value in wanted.items():
                people[name] = replace(self._person(name, people), threshold=value, changed=int(time.time()))

        self._change(changed)

    # --- questions

    def score(self, name: str, z: ArrayLike) -> float:
        """The cosine of somebody with an embedding [d], or with the mean direction of several [n, d]."""
        self._refresh()
        return float(self._person(checked_name(name), self._people).vector @ self._pooled(z))

    def verify(self, name: str, z: ArrayLike, threshold: float | None = None) -> bool:
        """Is this somebody? Several examples [n, d] are asked about as one; the threshold is :meth:`threshold_of`'s."""
        return self.score(name, z) >= self.threshold_of(name, threshold)

    def nearest(self, z: ArrayLike, k: int = 2) -> list[tuple[str, float]]:
        """The k people with the highest scores, best first."""
        self._refresh()
        scores = self._rows @ self._pooled(z)
        best = np.argsort(-scores, kind="stable")[:k]
        names = list(self._people)
        return [(names[i], float(scores[i])) for i in best]

    def identify(self, z: ArrayLike, threshold: float | None = None, margin: float = 0.0) -> str | None:
        """Who is this? Nobody unless the best score reaches the threshold and leads the second by the margin.

        Where two are equally near, nobody.
        """
        if not 0 <= margin <= 2:
            raise DeviceError(f"margin={margin}; wanted 0 ≤ margin ≤ 2, a difference of cosines")
        found = self.nearest(z, 2)
        if not found:
            return None
        (name, best), *others = found
        limit = self.threshold_of(name, threshold)
        clear = all(best > second and best - second >= margin for _, second in others)
        return name if best >= limit and clear else None

    def threshold_of(self, name: str, threshold: float | None = None) -> float:
        """The threshold that holds for somebody: the given one, their own, or the gallery's."""
        own = self._person(checked_name(name), self._people).threshold
        limit = next((t for t in (_checked_threshold(threshold), own, self.threshold) if t is not None), None)
        if limit is None:
            raise DeviceError(
                f"there is no threshold for {name!r}; give one, measured on people who took no part in training"
            )
        return limit

    # --- inside

    def _person(self, name: str, people: Mapping[str, Person]) -> Person:
        if name not in people:
            raise DeviceError(f"{name!r} is not enrolled in {self.path}; there are {len(people):,} people")
        return people[name]

    def _summed(
        self, z: ArrayLike, name: str, least: float, before: NDArray[np.float64] | float = 0.0, earlier: int = 0
    ) -> tuple[NDArray[np.float64], int]:
        """The sum and number of all unit embeddings, refused where a new one is far from the others."""
        if not -1 <= least <= 1:
            raise DeviceError(f"min_cohesion={least}; wanted −1 … 1, a cosine")
        new = directions(z, self.dim)
        total = new.sum(0) + before
        count = len(new) + earlier
        if count > _MOST_EXAMPLES:
            raise DeviceError(f"{name!r} would have {count:,} examples; wanted at most {_MOST_EXAMPLES:,}")
        if count > 1:
            cohesion = (new @ total - 1) / (count - 1)  # mean cosine of each with all the others
            worst = int(cohesion.argmin())
            if cohesion[worst] < least:
                raise DeviceError(
                    f"the examples of {name!r} do not hold together: example {worst} has a mean cosine of "
                    f"{cohesion[worst]:.2f} with the others, wanted {least:g} or more; leave it out"
                )
        return total, count

    def _pooled(self, z: ArrayLike) -> Vector:
        return _mean(directions(z, self.dim).sum(0), 1, "what was asked")[0]

    def _change(self, change: Callable[[dict[str, Person]], None]) -> dict[str, Person]:
        with store.only_writer(self.path):
            self._refresh()
            people = dict(self._people)
            change(people)
            store.replace(self.path, _packed(people, self.digest, self.dim))
            self._refresh()
        return dict(self._people)

    def _refresh(self) -> None:
        """Read the file if it is not the one that was read."""
        now = store.stamp(self.path)
        if now is None:
            self._take({}, None)
        elif now != self._stamp:
            content, stamp = store.read(self.path, _LARGEST)
            self._take(_unpacked(content, self.path, self.digest, self.dim), stamp)

    def _take(self, people: dict[str, Person], stamp: store.Stamp | None) -> None:
        rows = [person.vector for person in people.values()]
        self._people, self._stamp = people, stamp
        self._rows = np.stack(rows) if rows else np.empty((0, self.dim), np.float32)


def remove(path: str | Path, name: str) -> int:
    """Forget somebody without having the model; gives how many people are left."""
    content, _ = store.read(Path(path), _LARGEST)
    facts, _ = _facts(content, Path(path))
    gallery = Gallery(path, facts["digest"], facts["dim"])
    gallery.remove(name)
    return len(gallery)


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


def directions(z: ArrayLike, dim: int) -> NDArray[np.float64]:
    """Embeddings [n, d], or one [d], as unit vectors [n, d]."""
    try:
        values = np.asarray(z, np.float64)
    except (TypeError, ValueError):
        raise DeviceError(f"embeddings are {type(z).__name__}; wanted numbers of shape [examples, {dim}]") from None
    values = values[None] if values.ndim == 1 else values
    if values.ndim != 2 or values.shape[1] != dim or not len(values):
        raise DeviceError(f"embeddings have shape {values.shape}; wanted [examples, {dim}] with one example or more")
    with np.errstate(over="ignore", invalid="ignore"):
        lengths = np.linalg.norm(values, axis=1)
    bad = np.flatnonzero(~(np.isfinite(lengths) & (lengths > _SHORTEST)))
    if len(bad):
        raise DeviceError(f"example {bad[0]} has no direction: its embedding has length {lengths[bad[0]]:g}")
    unit: NDArray[np.float64] = values / lengths[:, None]
    return unit


def _mean(sum_: NDArray[np.float64], count: int, name: str) -> tuple[Vector, int, float]:
    size = float(np.linalg.norm(sum_))
    if size < _SHORTEST:
        raise DeviceError(f"the examples of {name!r} cancel out; they have no common direction")
    return (sum_ / size).astype(np.float32), count, min(1.0, size / count)


def _checked_threshold(value: float | None) -> float | None:
    if value is not None and not -1 <= value <= 1:
        raise DeviceError(f"threshold={value}; wanted −1 … 1, a cosine")
    return None if value is None else float(value)


# --- the file -------------------------------------------------------------------------------------------------------


def _packed(people: Mapping[str, Person], digest: str, dim: int) -> bytes:
    rows = [person.vector for person in people.values()]
    vectors = np.stack(rows) if rows else np.empty((0, dim), np.float32)
    listed = [
        [person.name, person.count, person.length, person.enrolled, person.changed, person.threshold]
        for person in people.values()
    ]
    facts = json.dumps({"digest": digest, "dim": dim, "people": listed})
    return save({"vectors": vectors}, {"format": _FORMAT, "facts": facts, "sha256": _checksum(facts, vectors)})


def _unpacked(content: bytes, path: Path, digest: str, dim: int) -> dict[str, Person]:
    facts, vectors = _facts(content, path)
    made_with, made_dim, listed = facts["digest"], facts["dim"], facts["people"]
    if (made_with, made_dim) != (digest, dim):
        raise DeviceError(
            f"{path} was made with another model or preprocessing ({made_with[:12]}…, this is {digest[:12]}…); "
            "embeddings of two models cannot be compared: enrol again, in a new gallery"
        )
    try:
        if vectors.shape != (len(listed), dim) or len(listed) > _MOST_PEOPLE:
            raise ValueError(f"vectors of shape {vectors.shape} for {len(listed)} people")
        people = [_person(entry, vector) for entry, vector in zip(listed, vectors, strict=True)]
    except (TypeError, ValueError) as error:
        raise _damaged(path, str(error)) from None
    named = {person.name: person for person in people}
    if len(named) != len(people):
        raise _damaged(path, "two people of one name")
    return named


def _facts(content: bytes, path: Path) -> tuple[dict[str, Any], Vector]:
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
    if not isinstance(facts["digest"], str) or not _DIGEST.fullmatch(facts["digest"]):
        raise ValueError("no digest of a model")
    return facts, vectors


def _person(entry: Any, vector: Vector) -> Person:
    name, count, length, enrolled, changed, threshold = entry
    numbers = isinstance(length, int | float) and (threshold is None or isinstance(threshold, int | float))
    whole = all(type(value) is int for value in (count, enrolled, changed))
    if not numbers or not whole or not isinstance(name, str) or checked_name(name) != name:
        raise ValueError("a person with a wrong name or wrong numbers")
    if not (0 < length <= 1 and 0 < count <= _MOST_EXAMPLES and all(0 <= t < _LATEST for t in (enrolled, changed))):
        raise ValueError(f"numbers of {name!r:.60} that cannot be")
    with np.errstate(over="ignore", invalid="ignore"):
        if not abs(float(np.linalg.norm(vector)) - 1) < 1e-3:
            raise ValueError(f"the vector of {name!r:.60} has not the length 1")
    return Person(name, vector, count, float(length), enrolled, changed, _checked_threshold(threshold))


def _checksum(facts: str, vectors: Vector) -> str:
    return hashlib.sha256(facts.encode() + vectors.astype("<f4").tobytes()).hexdigest()


def _damaged(path: Path, reason: str) -> DeviceError:
    return DeviceError(f"{path} is no sound gallery: {reason}; restore a copy of it, or enrol again in a new one")
