"""What happens after a round: count, check, measure, record, tell. The same for the simulation and for Flower."""

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fedaws.config import Config
from fedaws.core.method import Method
from fedaws.evaluate import Measure, Model, TestSet, evaluate, own_measures
from fedaws.evaluate.per_class import examine
from fedaws.record.journal import Journal, Metrics
from fedaws.training.checks import check_loss, check_weights, warn_of_collapse
from fedaws.types import ServerState


class Interrupted(Exception):  # noqa: N818 - not an error: the user asked for it
    """The run was asked to stop; what it had done is in its checkpoint."""

    def __init__(self, round_num: int) -> None:
        super().__init__(f"stopped after round {round_num}")
        self.round_num = round_num


@dataclass
class Reporter:
    """Whom a run tells what happens; the command line draws its progress bar with these.

    Attributes
    ----------
    on_start
        Called with the rounds done so far (of a resumed run) and the rounds in all.
    on_round
        Called after each round with its number and its loss.
    on_metrics
        Called with each new row of metrics.
    on_warning
        Called with one line about what will not train well.
    should_stop
        Asked after each round; True ends the run with a checkpoint, by :class:`Interrupted`.
    """

    on_start: Callable[[int, int], None] = lambda done, rounds: None
    on_round: Callable[[int, float], None] = lambda round_num, loss: None
    on_metrics: Callable[[Metrics], None] = lambda metrics: None
    on_warning: Callable[[str], None] = lambda message: warnings.warn(message, stacklevel=2)
    should_stop: Callable[[], bool] = lambda: False


@dataclass
class Session:
    """A run between two rounds."""

    cfg: Config
    method: Method
    journal: Journal
    reporter: Reporter
    model_of: Callable[[ServerState], Model]
    test_of: Callable[[ServerState], TestSet | None]  # None: nothing to measure on
    checkpoint_every: int
    measures: Mapping[str, Measure] = field(default_factory=dict)
    history: list[Metrics] = field(default_factory=list)
    spent: Callable[[], Mapping[str, float]] = dict  # what the rounds so far have cost, beside time
    _tested: tuple[int, Tensor] | None = None  # the round and its test embeddings

    def after_round(
        self, state: ServerState, seconds: float, counts: Mapping[str, float] | None = None
    ) -> Metrics | None:
        """Everything; returns the row of metrics, if this round has one. `counts` are added to it as they are."""
        train, done = self.cfg.train, state.round_num
        self.journal.add(state.loss, seconds)
        check_loss(state.loss, done)
        self.reporter.on_round(done, state.loss)
        last, row, began = done == train.rounds, None, time.perf_counter()
        if last or done % train.evaluate_every == 0:
            check_weights(state)
            row = self._measure(state, counts or {})
            began = self.spend("evaluation", began)
        stop = self.reporter.should_stop()
        if last or stop or done % self.checkpoint_every == 0:
            check_weights(state)
            self.journal.checkpoint(state)
        self.journal.trace(state)
        self.spend("records", began)
        if stop and not last:
            raise Interrupted(done)
        return row

    def finish(self, state: ServerState) -> Model:
        """Write the model and, once, what its figures hide; returns the model."""
        model = self.model_of(state)
        self.journal.finish(state, model.theta, lambda: self._details(state, model))
        return model

    def spend(self, part: str, since: float) -> float:
        """Count the time since then; returns the time now."""
        now = time.perf_counter()
        self.journal.spend(part, now - since)
        return now

    def _measure(self, state: ServerState, counts: Mapping[str, float]) -> Metrics:
        test, found = self.test_of(state), dict[str, float]()
        if test is not None:
            model = self.model_of(state)
            embeddings = model.embed(test.x)
            self._tested = state.round_num, embeddings
            found = evaluate(model, test, self.cfg, embeddings) | own_measures(self.measures, model, test)
        row = self.journal.measured(state.round_num, {**found, **self.spent(), **counts})
        self.history.append(row)
        self.reporter.on_metrics(row)
        if "max_cosine" in row:
            warn_of_collapse(self.method, self.history, self.reporter.on_warning)
        return row

    def _details(self, state: ServerState, model: Model) -> dict[str, Any]:
        test = self.test_of(state)
        if test is None:
            return {}
        embeddings = self._tested[1] if self._tested and self._tested[0] == state.round_num else None
        return examine(model, test, self.cfg, embeddings)
