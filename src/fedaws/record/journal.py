"""What a run writes down as it goes: its folder, if it has one, and the sums between two rows of metrics."""

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from fedaws.config import Config
from fedaws.errors import FedawsError
from fedaws.record.facts import Facts, PrivacyFacts
from fedaws.record.folder import RunFolder
from fedaws.record.functions import PYTHON
from fedaws.record.trace import trace_rounds, traced_classes
from fedaws.types import Params, ServerState

Metrics = dict[str, Any]

_THE_SAME = ("example_shape", "example_dtype", "class_names", "own_encoder", "own_data", "data", "own_method",
                "role", "start", "own_measures")  # fmt: skip
"""What must be the same when a run goes on; the weights themselves are in its checkpoint."""


_NOT_SHOWN: dict[str, Any] = {
    "data": None,
    "functions": {},
    "loss": 0.0,
    "loss_sum": 0.0,
    "loss_rounds": 0,
    "seconds": 0.0,
    "parts": {},
}
"""What a model with an ε does not say beside it; a checkpoint, which stays with whoever trains, does."""


@dataclass
class _Sums:
    """What is added up as a run goes on: fields of `Facts`."""

    loss_sum: float = 0.0
    loss_rounds: int = 0
    seconds: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)


class Journal:
    """Opens or resumes the folder, adds up the rounds, writes rows, checkpoints and the model."""

    def __init__(
        self,
        cfg: Config,
        facts: Facts,
        folder: RunFolder | None,
        privacy: Callable[[], PrivacyFacts] | None = None,
        warn: Callable[[str], None] = lambda message: None,
    ) -> None:
        self._cfg = cfg
        self._facts = facts
        self._folder = folder
        self._privacy: Callable[[], PrivacyFacts | None] = privacy or (lambda: None)
        self._warn = warn
        self._sums = _Sums()
        self.class_names = facts.class_names  # of the rows of W, and perhaps of some that are to come
        self.forgotten: tuple[int, ...] = ()  # classes that were removed on demand
        self._traced = frozenset[int]() if folder is None else trace_rounds(cfg.train.rounds)

    def held(self) -> AbstractContextManager[None]:
        """Keep other processes from writing into the folder."""
        return nullcontext() if self._folder is None else self._folder.held()

    def open(self, state: ServerState, resume: bool) -> tuple[ServerState, list[Metrics]]:
        """The state to start from and the metrics so far."""
        folder = self._folder
        if folder is None:
            return state, []
        going_on = self.going_on(resume)
        if going_on:
            same_config(self._cfg, folder.config(), folder.path, self._facts.replaced)
        else:
            folder.create(self._cfg, self._facts.replaced)
        if not folder.finished:
            folder.note_versions()
        checkpoint = folder.load_checkpoint(state) if going_on else None
        if checkpoint is None:
            self.trace(state)
            return state, folder.rewind_metrics(0)
        state, facts = checkpoint
        _same_facts(self._facts, facts, folder.path)
        _same_functions(self._facts.functions, facts.functions, folder.path, self._warn)
        self.forgotten = facts.forgotten
        self._sums = _Sums(facts.loss_sum, facts.loss_rounds, facts.seconds, dict(facts.parts))
        history = folder.rewind_metrics(state.round_num)
        if state.round_num >= self._cfg.train.rounds and not history:
            raise FedawsError(
                f"{folder.metrics_file} has lost its rows; delete the newest checkpoint to make them again"
            )
        return state, history

    def going_on(self, resume: bool) -> bool:
        """Whether there is a run to go on with; refuses one that is not to be resumed."""
        if self._folder is None:
            return False
        if not resume:
            self._folder.check_free()
        return self._folder.started

    def add(self, loss: float, seconds: float) -> None:
        """Count a round."""
        self._sums.loss_sum += loss
        self._sums.loss_rounds += 1
        self._sums.seconds += seconds

    def spend(self, part: str, seconds: float) -> None:
        """Count time by what it went to."""
        self._sums.parts[part] = self._sums.parts.get(part, 0.0) + seconds

    def trace(self, state: ServerState) -> None:
        """Keep W, or a part of it, if this is one of the rounds for it: at most so often and so much in any run."""
        if self._folder is None or state.round_num not in self._traced:
            return
        classes = traced_classes(len(state.W), state.W.shape[1], self._cfg.seed)
        rows = state.W[classes.to(state.W.device)]
        if bool(torch.isfinite(rows).all()):  # else training has diverged, and the run will say so
            self._folder.save_trace(state.round_num, classes, rows)

    def measured(self, round_num: int, measures: dict[str, float]) -> Metrics:
        """The row of an evaluated round, written."""
        sums = self._sums
        loss = sums.loss_sum / sums.loss_rounds
        row = {"round": round_num, "loss": loss, **measures, "seconds": round(sums.seconds, 3)}
        self._sums = replace(sums, loss_sum=0.0, loss_rounds=0)
        if self._folder is not None:
            self._folder.append_metrics(row)
        return row

    def checkpoint(self, state: ServerState) -> None:
        """Keep the state."""
        if self._folder is not None:
            self._folder.save_checkpoint(state, self.facts(state))

    def finish(self, state: ServerState, theta: Params, examine: Callable[[], dict[str, Any]] = lambda: {}) -> None:
        """Write the model, and before it, once, the details of its figures: what is finished has them."""
        if self._folder is not None:
            if not (self._folder.finished and self._folder.details_file.exists()):
                started = time.perf_counter()
                self._folder.save_details({"round": state.round_num, **examine()})
                self.spend("evaluation", time.perf_counter() - started)
            self._folder.save_model(theta, state.W, state.bias, self.shown_facts(state))

    def shown_facts(self, state: ServerState) -> Facts:
        """What goes with the model to others: of a private run nothing that was computed from data without noise."""
        facts = self.facts(state)
        return facts if facts.privacy is None else facts.model_copy(update=_NOT_SHOWN)

    def facts(self, state: ServerState) -> Facts:
        """What a reader of this state needs to know beside its tensors."""
        names = self.class_names and _without(self.class_names[: len(state.W)], self.forgotten)
        here: dict[str, Any] = {"round": state.round_num, "loss": state.loss, "class_names": names}
        here |= {"privacy": self._privacy(), "forgotten": self.forgotten}
        return self._facts.model_copy(update=here | vars(self._sums))


def _without(names: tuple[str, ...], forgotten: tuple[int, ...]) -> tuple[str, ...]:
    """The classes' names, but none of those that were removed on demand."""
    return tuple("" if number in forgotten else name for number, name in enumerate(names))


def _same_facts(given: Facts, saved: Facts, path: Path) -> None:
    for key in _THE_SAME:
        ours = getattr(given, key)
        theirs = getattr(saved, key)
        if key == "class_names" and ours and theirs:
            ours = _without(ours[: len(theirs)], saved.forgotten)  # others may join
        if key == "data" and saved.forgotten:
            continue  # their examples may be gone from the data, too
        if ours != theirs:
            raise FedawsError(
                f"{path} was started with {key}={_brief(theirs)}, now it is {_brief(ours)}; resume with the same data, "
                "encoder, method, start and measures"
            )


def _brief(value: Any) -> str:
    text = str(value)
    return text if len(text) < 200 else f"{text[:200]}…"


def _same_functions(given: dict[str, str], saved: dict[str, str], path: Path, warn: Callable[[str], None]) -> None:
    """Refuse to go on with functions that are others under the same names, as far as can be told."""
    if given.get(PYTHON) != saved.get(PYTHON):
        which = f"Python {saved[PYTHON]}" if saved else "an older version of fedaws"
        warn(f"{path} was started by {which}: whether its own functions are the same cannot be told")
        return
    other = [name for name in saved if given.get(name, saved[name]) != saved[name]]
    if other:
        raise FedawsError(
            f"{path} was started with another {', '.join(other)}; resume with the same method and measures, or train "
            "anew in another folder"
        )


def same_config(given: Config, saved: Config, path: Path, but: Collection[str] = ()) -> None:
    """Refuse to go on with a run that was started with other settings, `but` of what does not count."""
    for key, ours, theirs in differences(given, saved):
        if key in but:
            continue  # an older version wrote them down
        raise FedawsError(f"{path} was started with {key}={theirs}, now it is {ours}; resume with the same settings")


def differences(given: Config, saved: Config) -> Iterator[tuple[str, Any, Any]]:
    """The dotted keys in which two configurations differ, with both values.

    >>> list(differences(Config(), Config().override(["seed=3", "spread.weight=1"])))
    [('seed', 0, 3), ('spread.weight', 10.0, 1.0)]
    >>> list(differences(Config().override(["options.a=1"]), Config().override(["options.b=2"])))
    [('options.a', 1, None), ('options.b', None, 2)]
    """
    ours = given.model_dump()
    theirs = saved.model_dump()
    for section in ours:
        pairs = [(section, ours[section], theirs[section])]
        if isinstance(ours[section], dict):
            keys = dict.fromkeys([*ours[section], *theirs[section]])  # an option may be in one of them only
            pairs = [(f"{section}.{key}", ours[section].get(key), theirs[section].get(key)) for key in keys]
        yield from (pair for pair in pairs if pair[1] != pair[2])
