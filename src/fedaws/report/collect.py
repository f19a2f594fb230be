"""The runs in some folders, in groups that differ in nothing but the seed, each under a label of its own."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedaws.config import Config, typed
from fedaws.core.methods import method_names
from fedaws.errors import FedawsError
from fedaws.record.journal import differences
from fedaws.report.reader import attempt
from fedaws.report.run_data import RunData, folder_name, read_run

MOST_RUNS = 64


@dataclass
class Group:
    """Runs that differ in nothing but the seed."""

    label: str
    runs: list[RunData]
    colour: int = 0  # its number

    @property
    def config(self) -> Config:
        """The first seed's."""
        return self.runs[0].config

    @property
    def shown(self) -> RunData:
        """The run whose classes are shown one by one: the first seed, if it has details."""
        return next((run for run in self.runs if run.details), self.runs[0])


@dataclass
class Collected:
    """All that a report is made from."""

    groups: list[Group]
    notices: list[str]
    places: list[Path]  # of the runs, those that could not be read among them

    @property
    def runs(self) -> list[RunData]:
        """All runs."""
        return [run for group in self.groups for run in group.runs]

    def without_paths(self, notice: str) -> str:
        """The notice with runs by their names: where on somebody's disk they lie is not for every reader of a page."""
        for place in sorted(filter(Path.is_absolute, self.places), key=lambda place: -len(str(place))):
            notice = notice.replace(str(place), folder_name(place))
        return notice


def collect(paths: Sequence[Path]) -> Collected:
    """The runs in these folders, or in the folders below them; refused only if there is none that can be read."""
    notices: list[str] = []
    places = list(dict.fromkeys(place for path in paths for place in find_runs(path)))
    runs = [attempt(notices, read_run, place, notices) for place in places[:MOST_RUNS]]
    if len(places) > MOST_RUNS:
        notices.append(f"{len(places)} runs were given; the first {MOST_RUNS} are shown")
    groups = grouped([run for run in runs if run is not None], notices)
    if not groups:
        raise FedawsError(notices[0] if notices else f"no run folder in {', '.join(map(str, paths))}")
    return Collected(groups, notices, places)


def find_runs(path: Path) -> list[Path]:
    """The folder itself, or those below it that hold a run, as `compare`, `reproduce` and Flower leave them."""
    if (path / "config.toml").exists():
        return [path]
    if not path.is_dir():
        raise FedawsError(f"{path} is not a folder; give the folder of a run or of a comparison")
    below = sorted(p.parent for depth in ("*", "*/*") for p in path.glob(f"{depth}/config.toml"))
    runs = [p for p in below if any((p / part).exists() for part in ("metrics.jsonl", "model", "checkpoints"))]
    order = {method: place for place, method in enumerate(method_names())}
    return sorted(runs, key=lambda p: (p.parent, order.get(p.name.rpartition("-seed")[0], len(order)))) or [path]


def grouped(runs: Iterable[RunData], notices: list[str]) -> list[Group]:
    """Runs that differ in nothing but the seed, in the order in which they came, each kind under a name of its own.

    Runs that do not even differ in the seed are no sample of anything: their figures are not averaged.
    """
    kinds: dict[object, list[RunData]] = {}
    twins = Counter[object]()
    for run in runs:
        settings = run.config.model_copy(update={"seed": 0}).model_dump_json()
        kind = (run.role, settings)
        twin = (kind, run.config.seed)
        kinds.setdefault((kind, twins[twin]), []).append(run)
        twins[twin] += 1
    repeated = sum(count for count in twins.values() if count > 1)
    if repeated:
        notices.append(
            f"{repeated} runs have the method, settings and seed of another: each is shown by itself, without a mean. "
            "If they differ in code of your own, give each method a name"
        )
    groups = [sorted(same, key=lambda run: run.config.seed) for same in kinds.values()]
    return [Group(label, same) for label, same in zip(_labels([g[0] for g in groups]), groups, strict=True)]


def _labels(runs: list[RunData]) -> list[str]:
    """The method; where two have the same one, also what tells them apart."""
    labels = []
    for run in runs:
        same = [other.config for other in runs if other.method == run.method]
        keys = dict.fromkeys(key for cfg in same for key, _, _ in differences(run.config, cfg) if key != "seed")
        chosen = ([key for key in keys if key != "name"] or list(keys))[:3]
        labels.append(" ".join([run.method, *(f"{key.split('.')[-1]}={setting(run.config, key)}" for key in chosen)]))
    labels = _told_apart(labels, [run.role for run in runs])
    labels = _told_apart(labels, [run.name for run in runs])
    return _told_apart(labels, [str(number) for number in range(1, len(runs) + 1)])


def _told_apart(labels: list[str], notes: list[str]) -> list[str]:
    """Labels that stand twice get their notes, if these differ.

    >>> _told_apart(["a", "a", "b"], ["1", "2", "3"]), _told_apart(["a", "a"], ["1", "1"])
    (['a (1)', 'a (2)', 'b'], ['a', 'a'])
    """
    pairs = list(zip(labels, notes, strict=True))
    notes_of = {label: {note for other, note in pairs if other == label} for label in labels}
    return [f"{label} ({note})" if len(notes_of[label]) > 1 else label for label, note in pairs]


def setting(cfg: Config, dotted: str) -> str:
    """The value of a setting by its dotted name, as it is typed after -s; of a path on somebody's disk its last part.

    >>> setting(Config(), "clients.lr"), setting(Config().override(["data.name=/home/me/mine.npz"]), "data.name")
    ('0.3', 'mine.npz')
    """
    value: Any = cfg
    for part in dotted.split("."):
        value = value.get(part) if isinstance(value, dict) else getattr(value, part)  # a method's options are a dict
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else typed(value)
