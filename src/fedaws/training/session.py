"""What happens after a round: count, check, measure, record, tell. The same for the simulation and for Flower."""

import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from fedaws.config import Config
from fedaws.core.method import Method
from fedaws.data.strangers import Part, Strangers
from fedaws.evaluate import Measure, Model, TestSet, evaluate, own_measures
from fedaws.evaluate.per_class import examine
from fedaws.evaluate.strangers import open_set
from fedaws.record.facts import Facts
from fedaws.record.journal import Journal, Metrics
from fedaws.training.checks import check_loss, check_weights, warn_of_collapse
from fedaws.types import Memory, ServerState

_THETA = "theta/"
_ABOVE_ALL = 2.0  # more than any EER, and a number that a checkpoint may have


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
    strangers: Mapping[Part, Strangers] = field(default_factory=dict)
    best: Memory = field(default_factory=dict)  # the model to be kept, by `nothing_kept` at first; {}: the last
    _tested: tuple[int, Tensor] | None = None  # the round and its test embeddings

    def after_round(
        self, state: ServerState, seconds: float, counts: Mapping[str, float] | None = None
    ) -> Metrics | None:
        """Everything; returns the row of metrics, if this round has one. `counts` are added to it as they are."""
        train, done = self.cfg.train, state.round_num
        self.journal.add(state.loss, seconds)
        check_loss(state.loss, done)
        self.reporter.on_round(done, state.loss)
        row = None
        last = done == train.rounds
        began = time.perf_counter()
        if last or done % train.evaluate_every == 0:
            check_weights(state)
            row = self._measure(state, counts or {}, last)
            last = last or self.over
            began = self.spend("evaluation", began)
        stop = self.reporter.should_stop()
        if last or stop or done % self.checkpoint_every == 0:
            check_weights(state)
            self.journal.checkpoint(replace(state, best=self.best))
        self.journal.trace(state)
        self.spend("records", began)
        if stop and not last:
            raise Interrupted(done)
        return row

    @property
    def over(self) -> bool:
        """Whether `train.patience` is at its end: so many measurements since the best one had no lower EER."""
        return self._waited(row["round"] for row in self.history)

    def finish(self, state: ServerState) -> tuple[Model, Facts]:
        """Write the model and, once, what its figures hide; returns the model, and what is to be known of it."""
        model = self.model_of(state)
        if self.best:
            model = _best_model(self.best, model)
            state = replace(state, W=model.W, round_num=int(self.best["round"]))
        self.journal.finish(state, model.theta, lambda: self._details(state, model))
        return model, self.journal.shown_facts(state)

    def spend(self, part: str, since: float) -> float:
        """Count the time since then; returns the time now."""
        now = time.perf_counter()
        self.journal.spend(part, now - since)
        return now

    def _measure(self, state: ServerState, counts: Mapping[str, float], last: bool) -> Metrics:
        """The row of this round. The last one is of the model that is kept, and has the test strangers in it too."""
        test, done = self.test_of(state), state.round_num
        figures = dict[str, float]()
        if test is not None or self.strangers:
            figures = self._figures(self.model_of(state), test, done, last)
        row = self.journal.measured(done, {**figures, **self.spent(), **counts})
        self.history.append(row)
        self.reporter.on_metrics(row)
        if "max_cosine" in row:
            warn_of_collapse(self.method, self.history, self.reporter.on_warning)
        return row

    def _figures(self, model: Model, test: TestSet | None, done: int, last: bool) -> dict[str, float]:
        figures = self._open_set(model, "strangers")
        if self.best:
            if figures["strangers_eer"] < float(self.best["eer"]):
                self.best = _memory_of(model, done, figures["strangers_eer"])
            last = last or self._waited([*(row["round"] for row in self.history), done])
            if last:
                model = _best_model(self.best, model)
                figures |= self._open_set(model, "strangers") | {"kept_round": int(self.best["round"])}
        if last:
            figures |= self._open_set(model, "test_strangers")
        if test is None:
            return figures
        embeddings = model.embed(test.x)
        self._tested = int(figures.get("kept_round", done)), embeddings
        return evaluate(model, test, self.cfg, embeddings) | figures | own_measures(self.measures, model, test)

    def _open_set(self, model: Model, part: Part) -> dict[str, float]:
        if part not in self.strangers:
            return {}
        return open_set(model, self.strangers[part], self.cfg.data.enroll, part)

    def _waited(self, measured: Iterable[int]) -> bool:
        patience = self.cfg.train.patience
        if not self.best or patience is None:
            return False
        return sum(done > int(self.best["round"]) for done in measured) >= patience

    def _details(self, state: ServerState, model: Model) -> dict[str, Any]:
        test = self.test_of(state)
        if test is None:
            return {}
        embeddings = self._tested[1] if self._tested and self._tested[0] == state.round_num else None
        return examine(model, test, self.cfg, embeddings)


def nothing_kept(model: Model) -> Memory:
    """The memory before the first measurement, of the form that it will have."""
    return _memory_of(model, 0, _ABOVE_ALL)


def _memory_of(model: Model, done: int, eer: float) -> Memory:
    """A copy: rounds change W and tables in place."""
    theta = {f"{_THETA}{name}": tensor.clone() for name, tensor in model.theta.items()}
    which = {"round": torch.tensor([done]), "eer": torch.tensor([eer], dtype=torch.float64)}
    return {"W": model.W.clone(), **theta, **which}


def _best_model(best: Memory, model: Model) -> Model:
    """The model that was kept, in place of this one."""
    theta = {name.removeprefix(_THETA): tensor for name, tensor in best.items() if name.startswith(_THETA)}
    return replace(model, theta=theta, W=best["W"])
