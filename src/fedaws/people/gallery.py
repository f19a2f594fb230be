"""The gallery for those who have a `Run`: examples in, decisions out."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedaws.device import Device, DeviceError, Person
from fedaws.device import gallery as core
from fedaws.errors import FedawsError
from fedaws.evaluate.comparisons import comparisons
from fedaws.evaluate.error_rates import threshold_at_far
from fedaws.evaluate.intervals import Threshold, threshold_for
from fedaws.people.digest import model_digest
from fedaws.people.strangers import run_threshold
from fedaws.training.run import Run


@contextmanager
def told() -> Iterator[None]:
    """The device library knows nothing of this package; what it tells is told in the package's own kind of error."""
    try:
        yield
    except DeviceError as error:
        raise FedawsError(str(error)) from None


class Gallery:
    """Enrolled people: name → the direction of the mean embedding of their examples, in one file.

    The people need not have been in the training. The file belongs to one model (its weights and kind of example) and
    is refused with any other; it is always whole, and a removed person is gone from it.

    Parameters
    ----------
    path
        The file, made at the first enrolment. It holds biometric templates: only its owner may read it.
    model
        A run, or a :class:`fedaws.device.Device` that was exported from one.
    threshold
        The score from which on somebody is accepted who has no threshold of their own, by default what was exported;
        measure it by :meth:`threshold_for`. A measured one knows how many examples were asked about at once, and a
        question with another number is warned about.
    """

    def __init__(self, path: str | Path, model: Run | Device, threshold: float | Threshold | None = None) -> None:
        self._model = model
        digest, dim = (model_digest(model), model.W.shape[1]) if isinstance(model, Run) else (model.digest, model.dim)
        if threshold is None and isinstance(model, Device):
            limit, ask = model.about.threshold, model.about.ask
        elif isinstance(threshold, Threshold):
            limit, ask = threshold.threshold, threshold.ask
        else:
            limit, ask = threshold, None
        with told():
            self._people = core.Gallery(path, digest, dim, limit, ask)

    @property
    def people(self) -> dict[str, Person]:
        """Name → person, in the order of enrolment."""
        with told():
            return self._people.people

    def __len__(self) -> int:
        """How many people are enrolled."""
        return len(self.people)

    def __contains__(self, name: object) -> bool:
        """Whether somebody of this name is enrolled."""
        with told():
            return name in self._people

    def enroll(
        self, name: str, x: Any, min_cohesion: float = core.MIN_COHESION, threshold: float | None = None
    ) -> Person:
        """Enrol somebody new by examples [n, …]; five serve much better than one.

        Refused where an example's mean cosine with the others is below `min_cohesion`: perhaps it is of somebody else.
        `threshold` is one of their own, in place of the gallery's.
        """
        with told():
            return self._people.enroll(name, self._embed(x), min_cohesion, threshold)

    def add(self, name: str, x: Any, min_cohesion: float = core.MIN_COHESION) -> Person:
        """More examples of somebody who is enrolled: the same as if all had been given at first."""
        with told():
            return self._people.add(name, self._embed(x), min_cohesion)

    def remove(self, name: str) -> None:
        """Forget somebody; nothing of them is left in the file. What θ has learnt from them, if they trained, stays."""
        with told():
            self._people.remove(name)

    def score(self, name: str, x: Any) -> float:
        """The cosine of somebody with the mean direction of examples [n, …]."""
        with told():
            return self._people.score(name, self._embed(x))

    def verify(self, name: str, x: Any, threshold: float | None = None) -> bool:
        """Are these examples [n, …], all of one person, of somebody? Several at once decide better than one."""
        with told():
            return self._people.verify(name, self._embed(x), threshold)

    def nearest(self, x: Any, k: int = 2) -> list[tuple[str, float]]:
        """The k people with the highest scores of examples [n, …] of one person, best first."""
        with told():
            return self._people.nearest(self._embed(x), k)

    def identify(self, x: Any, threshold: float | None = None, margin: float = 0.0) -> str | None:
        """Whose are these examples [n, …], all of one person? None: nobody's who is enrolled.

        The best score must reach the threshold and lead the second by the margin. With more people enrolled strangers
        are taken for somebody more often; a threshold for verifying is too low for identifying among many.
        """
        with told():
            return self._people.identify(self._embed(x), threshold, margin)

    def threshold_of(self, name: str, threshold: float | None = None, examples: int | None = None) -> float:
        """The threshold that holds for somebody: the given one, their own, or the gallery's.

        Warns where it was measured with another number of examples at once than `examples`.
        """
        with told():
            return self._people.threshold_of(name, threshold, examples)

    def threshold_for(
        self,
        x: Any = None,
        people: ArrayLike | None = None,
        *,
        far: float | None = None,
        frr: float | None = None,
        enroll: int = 5,
        ask: int = 1,
        draws: int = 1000,
    ) -> Threshold:
        """The threshold for a wanted FAR or FRR.

        Parameters
        ----------
        x, people
            Examples [n, …] of people **who took no part in training**, and whose each is [n]: on people who did, a
            threshold for a FAR of 1 % has been seen to give 12 % on others. Refused with fewer than 10/FAR comparisons
            of two people. By default the run's own strangers (`data.strangers`).
        far, frr
            The wanted share of others who are accepted, or of one's own who are rejected; one of the two.
        enroll, ask
            Everybody is enrolled by their first `enroll` examples, the others are compared with all, `ask` at once: as
            many as will be asked about.
        draws
            How often people are drawn anew for the intervals.

        Returns
        -------
        Threshold
            With the rates that it gives and their intervals over people; of a run's own strangers these are the rates
            on its test strangers.
        """
        if x is None and people is None and isinstance(self._model, Run):
            return run_threshold(self._model, far=far, frr=frr, enroll=enroll, ask=ask, draws=draws)
        if x is None or people is None:
            raise FedawsError("x and people come together, and only a run has strangers of its own; give both")
        return threshold_for(comparisons(self._embed(x), people, enroll, ask), far=far, frr=frr, draws=draws)

    def set_own_thresholds(self, x: Any, far: float) -> None:
        """Give everybody who is enrolled a threshold of their own, at which this share of strangers' examples passes.

        `x` [n, …] are examples of people who are neither enrolled nor took part in training, each asked about alone.
        """
        with told():
            z = core.directions(self._embed(x), self._people.dim)
            thresholds: dict[str, float | None] = {
                name: threshold_at_far([1.0], np.clip(z @ person.vector, -1, 1), far)
                for name, person in self._people.people.items()
            }
            self._people.set_thresholds(thresholds, ask=1)

    def _embed(self, x: Any) -> NDArray[np.float32]:
        return embeddings_of(self._model, x)


def embeddings_of(model: Run | Device, x: Any) -> NDArray[np.float32]:
    """g(x) of examples [n, …] by either; [n, d]."""
    with told():
        return model.embed(x) if isinstance(model, Device) else model.embed(x).cpu().numpy()
