r"""Who is enrolled: name → a unit vector, in one file that is always whole.

A person is the direction of the mean of their unit embeddings,

.. math:: w = \frac{\sum_i z_i}{\lVert \sum_i z_i \rVert}, \qquad score(x) = w \cdot z(x)

so enrolling is adding and removing is deleting. The file (safetensors, no pickle) says which model it belongs to:
embeddings of two models cannot be compared.
"""

import time
import unicodedata
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedaws.device import store
from fedaws.device.errors import DeviceError, DeviceWarning
from fedaws.device.gallery_file import (
    DIGEST,
    LARGEST,
    MOST_EXAMPLES,
    MOST_PEOPLE,
    Person,
    Vector,
    checked_name,
    checked_threshold,
    packed,
    read_facts,
    stacked,
    unpacked,
)

MIN_COHESION = 0.0
"""The least mean cosine of an example with the others of its person. What is right differs by model: where examples are
short and noisy (single spoken digits) 0.2 refused a third of all honest sets of five, and 0 one in forty."""
_SHORTEST = 1e-6  # below it an embedding has no direction


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

    def __init__(
        self, path: str | Path, digest: str, dim: int, threshold: float | None = None, ask: int | None = None
    ) -> None:
        if not DIGEST.fullmatch(digest):
            raise DeviceError(f"digest={digest!r:.80}; wanted 16 to 64 hexadecimal digits")
        self.path, self.digest, self.dim = Path(path), digest, dim
        self.threshold, self.ask = checked_threshold(threshold), ask
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
        name = checked_name(name)
        sum_, count = self._summed(z, name, min_cohesion)
        with self._changing() as people:
            if name in people:
                raise DeviceError(f"{name!r} is enrolled already; add examples to them, or remove them first")
            if len(people) >= MOST_PEOPLE:
                raise DeviceError(f"{self.path} has {MOST_PEOPLE:,} people, the most there can be; use another gallery")
            now = int(time.time())
            people[name] = Person(name, *_mean(sum_, count, name), now, now, checked_threshold(threshold))
        return self._people[name]

    def add(self, name: str, z: ArrayLike, min_cohesion: float = MIN_COHESION) -> Person:
        """More examples of somebody who is enrolled; refused where they do not go with the earlier ones."""
        name = checked_name(name)
        with self._changing() as people:
            old = self._person(name, people)
            before = old.vector.astype(np.float64) * (old.count * old.length)
            sum_, count = self._summed(z, name, min_cohesion, before, old.count)
            vector, total, length = _mean(sum_, count, name)
            people[name] = replace(old, vector=vector, count=total, length=length, changed=int(time.time()))
        return self._people[name]

    def remove(self, name: str) -> None:
        """Forget somebody: the new file has nothing of them, and the old one is gone."""
        name = checked_name(name)
        with self._changing() as people:
            self._person(name, people)
            del people[name]

    def set_thresholds(self, thresholds: Mapping[str, float | None], ask: int | None = None) -> None:
        """Give people thresholds of their own, measured with `ask` examples at once, or take them away by None."""
        wanted = {checked_name(name): checked_threshold(value) for name, value in thresholds.items()}
        with self._changing() as people:
            for name, value in wanted.items():
                person = self._person(name, people)
                people[name] = replace(person, threshold=value, ask=ask, changed=int(time.time()))

    # --- questions

    def score(self, name: str, z: ArrayLike) -> float:
        """The cosine of somebody with an embedding [d], or with the mean direction of several [n, d]."""
        self._refresh()
        return float(self._person(checked_name(name), self._people).vector @ self._pooled(z))

    def verify(self, name: str, z: ArrayLike, threshold: float | None = None) -> bool:
        """Is this somebody? Several examples [n, d] are asked about as one; the threshold is :meth:`threshold_of`'s."""
        return self.score(name, z) >= self.threshold_of(name, threshold, len(directions(z, self.dim)))

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
        limit = self.threshold_of(name, threshold, len(directions(z, self.dim)))
        clear = all(best > second and best - second >= margin for _, second in others)
        return name if best >= limit and clear else None

    def threshold_of(self, name: str, threshold: float | None = None, examples: int | None = None) -> float:
        """The threshold that holds for somebody: the given one, their own, or the gallery's.

        Warns where it was measured with another number of examples at once than `examples`.
        """
        person = self._person(checked_name(name), self._people)
        known = [(checked_threshold(threshold), None), (person.threshold, person.ask), (self.threshold, self.ask)]
        limit, ask = next(((limit, ask) for limit, ask in known if limit is not None), (None, None))
        if limit is None:
            raise DeviceError(
                f"there is no threshold for {name!r}; give one, measured on people who took no part in training"
            )
        if ask is not None and examples not in (None, ask):
            warnings.warn(
                f"examples asked about at once: {examples}, and the threshold was measured with {ask}, so its error "
                f"rates do not hold; ask with {ask}, or measure it by fedaws trials … --ask {examples}",
                DeviceWarning,
                stacklevel=2,
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
        if count > MOST_EXAMPLES:
            raise DeviceError(f"{name!r} would have {count:,} examples; wanted at most {MOST_EXAMPLES:,}")
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

    @contextmanager
    def _changing(self) -> Iterator[dict[str, Person]]:
        """The people as they are in the file, for one writer to change; written where the block ends without error."""
        with store.only_writer(self.path):
            self._refresh()
            people = dict(self._people)
            yield people
            store.replace(self.path, packed(people, self.digest, self.dim))
            self._refresh()

    def _refresh(self) -> None:
        """Read the file if it is not the one that was read."""
        now = store.stamp(self.path)
        if now is None:
            self._take({}, None)
        elif now != self._stamp:
            content, stamp = store.read(self.path, LARGEST)
            self._take(unpacked(content, self.path, self.digest, self.dim), stamp)

    def _take(self, people: dict[str, Person], stamp: store.Stamp | None) -> None:
        self._people, self._stamp, self._rows = people, stamp, stacked(people, self.dim)


def remove(path: str | Path, name: str) -> int:
    """Forget somebody without having the model; gives how many people are left."""
    content, _ = store.read(Path(path), LARGEST)
    facts, _ = read_facts(content, Path(path))
    gallery = Gallery(path, facts["digest"], facts["dim"])
    gallery.remove(name)
    return len(gallery)


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
