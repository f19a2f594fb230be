"""A table of the paper, run: what is to be run, what is done, what is left."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedaws import config as configuration
from fedaws.config import Config, check_effects
from fedaws.errors import FedawsError, MissingData
from fedaws.experiments.fingerprint import fingerprint
from fedaws.experiments.paper_tables import CENTRALISED, Table
from fedaws.files import read_json, write_text
from fedaws.record.folder import RunFolder
from fedaws.record.journal import Metrics, same_config
from fedaws.record.made_with import MADE_WITH, made_with
from fedaws.training.session import Interrupted, Reporter
from fedaws.training.train import train

FINGERPRINT = "fingerprint.json"
ORACLE_FILE = "oracle.json"
"""All that a centralised oracle leaves of a run: it has no rounds, and no model that others could load."""


@dataclass(frozen=True)
class Job:
    """One run of the table."""

    label: str
    config: Config
    place: Path


@dataclass(frozen=True)
class Record:
    """What a run has left in its folder."""

    place: Path
    config: Config
    metrics: list[Metrics]
    finished: bool  # it has come to its end, and its figures are there
    made_with: dict[str, str]
    fingerprint: list[float] | None = None  # of the code that made it

    @property
    def last(self) -> Metrics:
        """The newest figures."""
        return self.metrics[-1] if self.metrics else {"round": 0}


def read_record(place: Path) -> Record | None:
    """The record in a folder, of a federated run or of an oracle; None if nothing was begun there."""
    if (place / ORACLE_FILE).exists():
        saved = _read_object(place / ORACLE_FILE, "config", "measures", "made_with")
        return Record(place, configuration.parse(saved["config"]), [saved["measures"]], True, saved["made_with"])
    folder = RunFolder(place)
    if not folder.started:
        return None
    cfg = folder.config()
    metrics = folder.metrics()
    finished = folder.finished and any(row["round"] >= cfg.train.rounds for row in metrics)
    stamp = _read_object(place / FINGERPRINT).get("fingerprint")
    return Record(place, cfg, metrics, finished, _read_object(place / MADE_WITH), stamp)


def _read_object(path: Path, *keys: str) -> dict[str, Any]:
    """A JSON file of ours that has these keys; nothing if there is none."""
    if not path.exists():
        return {}
    try:
        saved = read_json(path)
    except FedawsError:
        saved = None
    if not isinstance(saved, dict) or any(not isinstance(saved.get(key), dict) for key in keys):
        raise FedawsError(f"{path} is damaged; move it away")
    return saved


def plan(
    table: Table,
    out: Path,
    rows: Sequence[str],
    methods: Sequence[str],
    seeds: int = 1,
    rounds: int | None = None,
    settings: Sequence[str] = (),
    as_paper: bool = False,
) -> list[Job]:
    """The runs of these rows and methods that are not finished, the first seed of all before the second of any.

    All configurations are made here, and compared with what was begun: a mistake in the last one shows at once.
    `as_paper` runs the paper's configuration in place of ours.
    """
    if as_paper and not table.as_paper:
        raise FedawsError(f"{table.source} does not say what the paper's configuration is; add as_paper = [...] to it")
    methods = [method for method in methods if not (as_paper and method in CENTRALISED)]
    jobs = []
    for number in range(seeds):
        for row in rows:
            for method in (m for m in methods if m in table.rows[row].paper):
                cfg = configured(table, row, method, rounds, settings, as_paper)
                cfg = cfg.with_(seed=cfg.seed + number)
                check_effects(cfg)
                place = out / row / f"{folder_stem(method, as_paper)}{cfg.seed}"
                record = read_record(place)
                if record is not None:
                    same_config(cfg, record.config, place)
                if record is None or not record.finished:
                    jobs.append(Job(f"{row} {method}, seed {cfg.seed}", cfg, place))
    return jobs


def folder_stem(method: str, as_paper: bool) -> str:
    """What the names of a method's run folders begin with; its seed follows."""
    return f"{method}-paper-seed" if as_paper else f"{method}-seed"


def configured(
    table: Table,
    row: str,
    method: str,
    rounds: int | None = None,
    settings: Iterable[str] = (),
    as_paper: bool = False,
) -> Config:
    """The configuration of one run; to stop early is to have fewer rounds, and nothing else."""
    cfg = table.preset(row, method, as_paper).override([*settings, f"method={method}"])
    return cfg.override([f"train.rounds={table.most_rounds(method, rounds or cfg.train.rounds)}"])


def reproduce(jobs: Sequence[Job], reporter: Callable[[Job], Reporter], changed: Callable[[], None]) -> dict[str, str]:
    """Run them, going on with what was begun; `changed` is called whenever there are new figures.

    What has no data here is left out; which data are missing, and what is to be done about it, is returned.
    """
    missing: dict[str, str] = {}
    for job in jobs:
        if job.config.data.name in missing:
            continue
        try:
            _run(job, reporter(job))
        except MissingData as error:
            missing[job.config.data.name] = str(error)
            continue
        except Interrupted:
            changed()
            raise
        changed()
    return missing


def _run(job: Job, reporter: Reporter) -> None:
    if job.config.method not in CENTRALISED:
        train(config=job.config, folder=job.place, resume=True, reporter=reporter)
        write_text(job.place / FINGERPRINT, json.dumps({"fingerprint": fingerprint(job.config)}) + "\n")
        return
    from fedaws.experiments.sleec.measure import measure_sleec  # noqa: PLC0415 - nothing else need wait for scikit-learn

    measures = measure_sleec(job.config)
    record = {"config": job.config.model_dump(mode="json"), "measures": measures, "made_with": made_with()}
    write_text(job.place / ORACLE_FILE, json.dumps(record) + "\n")
