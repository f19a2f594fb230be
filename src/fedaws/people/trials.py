"""Error rates of a model by its own strangers, by people's files, or by a trial list; nothing is written here."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedaws.data.strangers import Part
from fedaws.device import Device
from fedaws.device.gallery import directions
from fedaws.errors import FedawsError
from fedaws.evaluate.comparisons import Comparisons, comparisons
from fedaws.evaluate.error_rates import min_cllr
from fedaws.evaluate.intervals import FEWEST, figures_for_json, summary_measures
from fedaws.evaluate.people import examine_people
from fedaws.evaluate.trials import Scored, Trial, compared, labelled, person_of, read_scores, read_trials
from fedaws.people.gallery import embeddings_of, told
from fedaws.people.inputs import load_model, read_examples, read_people, tested_people
from fedaws.people.strangers import final, run_comparisons, threshold_among, told_of
from fedaws.training.run import Run


class Tried(NamedTuple):
    """Comparisons of people, their names where they are known, and what a reader must hear of them."""

    parts: dict[Part, Comparisons]
    names: Mapping[Part, Sequence[str]]
    trained: bool = False  # they took part in training
    own: bool = False  # they are the run's own strangers
    scores: Sequence[Scored] = ()  # of a list
    warning: str = ""


def try_run(source: Path, enroll: int | None, ask: int) -> Tried:
    """A run's strangers; where it has none its own test examples, of people who trained."""
    run = load_model(source)
    if isinstance(run, Device):
        raise FedawsError(f"{source} is an exported model, which has no strangers; give people who took no part")
    if run.strangers:
        names = {part: strangers.names for part, strangers in run.strangers.items()}
        return Tried(run_comparisons(run, enroll, ask), names, own=True)
    embeddings, people = tested_people(run, enroll or 5, ask)
    return _of_one(
        comparisons(embeddings, people, enroll or 5, ask),
        _distinct(people),
        trained=True,
        warning="these people took part in training: of others more are accepted; give examples of strangers",
    )


def try_people(source: Path, path: Path, enroll: int, ask: int) -> Tried:
    """All comparisons of people's examples, in an .npz or a folder of folders."""
    model = load_model(source)
    x, people = read_people(path, model)
    names = _distinct(people)
    known = sorted({*names} & {*(getattr(model, "class_names", None) or ())})
    few = ", ".join(known[:3]) + (", …" if len(known) > 3 else "")
    warning = f"{len(known)} of {len(names)} people have the names of people who trained ({few}); leave them out"
    found = comparisons(embeddings_of(model, x), people, enroll, ask)
    return _of_one(found, names, warning=warning if known else "")


def try_list(source: Path, trials: Path, folder: Path) -> Tried:
    """The scores of a trial list: those in a file, or by a model, whose files are in a folder."""
    known = read_trials(trials)
    if source.is_file():
        scores = labelled(read_scores(source), known)
    else:
        scores = _score_files(load_model(source), known, folder)
    try:
        found = compared(scores)
    except FedawsError as error:
        return Tried({"strangers": _of_nobody(scores)}, {}, scores=scores, warning=f"no intervals: {error}")
    names = sorted({person_of(name) for each in scores for name in (each.enrolled, each.tested)})
    few = f"{found.num_people} people are too few for intervals; wanted {FEWEST} or more"
    return _of_one(found, names, scores=scores, warning=few if found.num_people < FEWEST else "")


def measure(tried: Tried, far: float | None, frr: float | None, p_target: float, draws: int) -> dict[str, Any]:
    """The figures of the people by whom nothing was chosen; with FAR or FRR also a threshold for it."""
    part, found = final(tried.parts)
    with told_of(part if tried.own else None):
        measured = figures_for_json(found, summary_measures(found, far, p_target), draws)
    counts = {"targets": len(found.targets), "nontargets": len(found.nontargets), "ask": found.ask}
    told: dict[str, Any] = {**counts, **measured}
    if tried.own:
        told["people"] = part
    told["min_cllr"] = {"value": min_cllr(found.targets, found.nontargets), "low": None, "high": None}
    if far is not None or frr is not None:
        if not tried.names:
            raise FedawsError("a threshold is measured over people; name examples person/file, of five people or more")
        told["threshold"] = threshold_among(tried.parts, far=far, frr=frr, draws=draws, named=tried.own).facts()
    return told


def examined(tried: Tried) -> dict[str, Any] | None:
    """What a report shows of the same people; None where nobody knows who they are."""
    part, found = final(tried.parts)
    return examine_people(found, tried.names[part], tried.trained) if tried.names else None


def _score_files(model: Run | Device, trials: Sequence[Trial], folder: Path) -> list[Scored]:
    """The cosine of every trial; a name is a file below the folder, or a folder there with files of one person."""
    names = dict.fromkeys(name for trial in trials for name in trial[:2])
    vectors = {name: _direction_of(model, folder, name) for name in names}
    return [
        Scored(trial.enrolled, trial.tested, float(vectors[trial.enrolled] @ vectors[trial.tested]), trial.target)
        for trial in trials
    ]


def _direction_of(model: Run | Device, folder: Path, name: str) -> NDArray[np.float64]:
    place = folder / name
    if not place.resolve().is_relative_to(folder.resolve()):
        raise FedawsError(f"{name!r} leads out of {folder}; wanted files below it")
    z = embeddings_of(model, read_examples([place], model))
    with told():
        mean = directions(z, z.shape[1]).mean(0)
        unit: NDArray[np.float64] = directions(mean, z.shape[1])[0]
    return unit


def _of_one(found: Comparisons, names: Sequence[str], **more: Any) -> Tried:
    return Tried({"strangers": found}, {"strangers": names}, **more)


def _distinct(people: NDArray[Any]) -> list[str]:
    return [str(name) for name in np.unique(people)]


def _of_nobody(scores: Sequence[Scored]) -> Comparisons:
    """Scores whose people nobody knows, as of two: those who were enrolled, and everybody else."""
    target = np.array([bool(each.target) for each in scores])
    number = np.arange(len(scores))
    return Comparisons(np.array([each.score for each in scores]), np.zeros_like(number), 1 - target, number)
