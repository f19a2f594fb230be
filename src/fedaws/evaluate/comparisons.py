"""Who is compared with whom: scores of examples against enrolled people."""

from dataclasses import dataclass
from typing import Any

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
    example: NDArray[np.int64]  # [n] the number of that example, of several asked about at once of the first
    ask: int | None = None  # examples that are asked about at once, if that is known

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


def comparisons(embeddings: ArrayLike, people: ArrayLike, enroll: int = 5, ask: int = 1) -> Comparisons:
    """Enrol everybody by their first examples and compare all other examples with everybody, `ask` at once.

    `embeddings` [n, d] are taken as directions, `people` [n] says whose they are. The people must have had no part in
    training: of those who had, error rates come out far too low. Several examples are asked about as a gallery does it,
    by the direction of the mean of their embeddings; each is in one question, and who has too few for a whole last
    question leaves them out.

    >>> found = comparisons([[1, 0], [1, 0], [0, 1], [1, 1]], ["ada", "ada", "bo", "bo"], enroll=1)
    >>> found.targets.round(2), found.nontargets.round(2)
    (array([1.  , 0.71]), array([0.  , 0.71]))
    """
    x = np.asarray(embeddings, np.float64)
    labels = np.asarray(people)
    if x.ndim != 2 or not x.size or labels.shape != x.shape[:1]:
        raise FedawsError(f"embeddings have shape {x.shape}, people {labels.shape}; wanted [n, d] and [n]")
    if enroll < 1 or ask < 1:
        raise FedawsError(f"enroll={enroll}, ask={ask}; wanted at least one example")
    lengths = np.linalg.norm(x, axis=1)
    if not np.isfinite(lengths).all() or not lengths.all():
        raise FedawsError("embeddings with NaN, infinite or only zero values have no direction; leave them out")
    names, who = np.unique(labels, return_inverse=True)
    counts = np.bincount(who)
    if len(names) < 2 or counts.min() < enroll + ask:
        short = str(names[counts.argmin()])
        raise FedawsError(
            f"{len(names)} people, of {short!r} {counts.min()} examples; wanted two people or more and over "
            f"{enroll + ask - 1} examples of each: {enroll} are enrolled, the others asked about, {ask} at once"
        )
    x = x / lengths[:, None]
    order = np.argsort(who, kind="stable")
    starts = np.cumsum(counts) - counts
    nth = np.empty(len(who), np.int64)  # which of their person's examples
    nth[order] = np.arange(len(who)) - np.repeat(starts, counts)
    enrolled = _mean_directions(x, np.where(nth < enroll, who, -1), names)
    later = nth - enroll
    asked = np.flatnonzero((later >= 0) & (later < (counts[who] - enroll) // ask * ask))
    first = order[
        starts[who[asked]] + enroll + later[asked] // ask * ask
    ]  # of the examples that are asked about together
    questions, question = np.unique(first, return_inverse=True)
    z = x[questions]
    if ask > 1:  # a mean of one would be the same but for the last bit
        groups = np.full(len(who), -1)
        groups[asked] = question
        z = _mean_directions(x, groups, names[who[questions]])
    scores = z @ enrolled.T
    return Comparisons(
        scores.ravel(),
        np.tile(np.arange(len(names)), len(questions)),
        np.repeat(who[questions], len(names)),
        np.repeat(questions, len(names)),
        ask,
    )


def _mean_directions(x: Scores, group: NDArray[np.int64], names: NDArray[Any]) -> Scores:
    """The direction [groups, d] of the mean of each group's unit vectors; −1 is in none, `names` are the owners'."""
    sums = np.zeros((len(names), x.shape[1]))
    np.add.at(sums, group[group >= 0], x[group >= 0])
    sizes = np.linalg.norm(sums, axis=1, keepdims=True)
    if not sizes.all():
        raise FedawsError(f"the examples of {names[int(sizes.argmin())]!r} cancel out; they have no common direction")
    means: Scores = sums / sizes
    return means
