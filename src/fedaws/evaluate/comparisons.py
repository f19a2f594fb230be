"""Who is compared with whom: scores of examples against enrolled people."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedaws.errors import FedawsError
from fedaws.evaluate.error_rates import Scores


@dataclass(frozen=True)
class Comparisons:
    """Scores of examples against enrolled people, and who they are of."""

    scores: Scores  # [n]
    claimed: NDArray[np.int64]  # [n] the person who was enrolled
    tested: NDArray[np.int64]  # [n] the person whose example is tested
    example: NDArray[np.int64]  # [n] the number of that example

    @property
    def targets(self) -> Scores:
        """Scores of people against themselves."""
        scores: Scores = self.scores[self.claimed == self.tested]
        return scores

    @property
    def nontargets(self) -> Scores:
        """Scores against others."""
        scores: Scores = self.scores[self.claimed != self.tested]
        return scores

    @property
    def num_people(self) -> int:
        """On either side."""
        return len(np.union1d(self.claimed, self.tested))


def comparisons(embeddings: ArrayLike, people: ArrayLike, enroll: int = 5) -> Comparisons:
    """Enrol everybody by their first examples and compare all other examples with everybody.

    `embeddings` [n, d] are taken as directions, `people` [n] says whose they are. The people must have had no part in
    training: of those who had, error rates come out far too low.

    >>> found = comparisons([[1, 0], [1, 0], [0, 1], [1, 1]], ["ada", "ada", "bo", "bo"], enroll=1)
    >>> found.targets.round(2), found.nontargets.round(2)
    (array([1.  , 0.71]), array([0.  , 0.71]))
    """
    x = np.asarray(embeddings, np.float64)
    labels = np.asarray(people)
    if x.ndim != 2 or not x.size or labels.shape != x.shape[:1]:
        raise FedawsError(f"embeddings have shape {x.shape}, people {labels.shape}; wanted [n, d] and [n]")
    if enroll < 1:
        raise FedawsError(f"enroll={enroll}; wanted at least one example")
    lengths = np.linalg.norm(x, axis=1)
    if not np.isfinite(lengths).all() or not lengths.all():
        raise FedawsError("embeddings with NaN, infinite or only zero values have no direction; leave them out")
    names, who = np.unique(labels, return_inverse=True)
    counts = np.bincount(who)
    if len(names) < 2 or counts.min() <= enroll:
        short = str(names[counts.argmin()])
        raise FedawsError(
            f"{len(names)} people, of {short!r} {counts.min()} examples; wanted two people or more and over {enroll} "
            "examples of each: the first are enrolled, the others tested"
        )
    x = x / lengths[:, None]
    order = np.argsort(who, kind="stable")
    nth = np.empty(len(who), np.int64)  # which of their person's examples
    nth[order] = np.arange(len(who)) - np.repeat(np.cumsum(counts) - counts, counts)
    first = nth < enroll
    sums = np.zeros((len(names), x.shape[1]))
    np.add.at(sums, who[first], x[first])
    sizes = np.linalg.norm(sums, axis=1, keepdims=True)
    if not sizes.all():
        raise FedawsError(f"the examples of {names[int(sizes.argmin())]!r} cancel out; they cannot be enrolled")
    rest = np.flatnonzero(~first)
    scores = x[rest] @ (sums / sizes).T
    enrolled = np.arange(len(names))
    return Comparisons(
        scores.ravel(),
        np.tile(enrolled, len(rest)),
        np.repeat(who[rest], len(names)),
        np.repeat(rest, len(names)),
    )
