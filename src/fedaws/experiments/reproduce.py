"""A table of the paper, run: what is to be run, what is done, what is left."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedaws import config as configuration
from fedaws.config import Config, check_effects
from fedaws.errors import FedawsError, MissingData
from fedaws.experiments.paper_tables import SLEEC, Table
from fedaws.experiments.sleec.settings import SleecConfig
from fedaws.files import read_json, write_text
from fedaws.record.folder import RunFolder
from fedaws.record.journal import same_config
from fedaws.record.made_with import made_with
from fedaws.training.session import Interrupted, Reporter
from fedaws.training.train import train

SLEEC_FILE = "sleec.json"


@dataclass(frozen=True)
class Job:
    """One run of the table."""

    label: str
    config: Config
    place: Path
    sleec: SleecConfig | None = None  # then it is SLEEC on the configuration's data, and no federation


def plan(
    table: Table,
    out: Path,
    rows: Sequence[str],
    methods: Sequence[str],
    seeds: int = 1,
    rounds: int | None = None,
    settings: Sequence[str] = (),
) -> list[Job]:
    """The runs of these rows and methods that are not finished, the first seed of all before the second of any.

    All configurations are made here, and compared with what was begun: a mistake in the last one shows at once.
    """
    jobs = []
    for number in range(seeds):
        for row in rows:
            for method in (m for m in methods if m in table.rows[row].paper):
                cfg = configured(table, row, method, rounds, settings)
                cfg = cfg.with_(seed=cfg.seed + number)
                check_effects(cfg)
                place = out / row / f"{method}-seed{cfg.seed}"
                label = f"{row} {method}, seed {cfg.seed}"
                if method == SLEEC:
                    job = Job(label, cfg, place, table.rows[row].sleec)
                    if not _sleec_done(job):
                        jobs.append(job)
                    continue
                if RunFolder(place).started:
                    same_config(cfg, RunFolder(place).config(), place)
                if not finished(RunFolder(place), cfg):
                    jobs.append(Job(label, cfg, place))
    return jobs


def configured(table: Table, row: str, method: str, rounds: int | None = None, settings: Iterable[str] = ()) -> Config:
    """The configuration of one run; to stop early is to have fewer rounds, and nothing else."""
    where = table.rows[row]
    named = [] if method == SLEEC else [f"method={method}"]
    own = [*where.settings, *table.own_settings(row, method)]
    cfg = configuration.load(where.preset).override([*own, *settings, *named])
    wanted = rounds or cfg.train.rounds
    return cfg.override([f"train.rounds={min(wanted, table.stop_early.get(method, wanted))}"])


def finished(folder: RunFolder, cfg: Config) -> bool:
    """Whether the run has come to its end and its figures are there."""
    return folder.finished and any(row["round"] >= cfg.train.rounds for row in folder.metrics())


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
    if job.sleec is not None:
        from fedaws.experiments.sleec.measure import measure_sleec  # noqa: PLC0415 - nothing else need wait for scikit-learn

        measures = measure_sleec(job.config, job.sleec)
        write_text(job.place / SLEEC_FILE, json.dumps(sleec_facts(job) | measures | {"made_with": made_with()}) + "\n")
        return
    train(config=job.config, folder=job.place, resume=True, reporter=reporter)


def sleec_facts(job: Job) -> dict[str, Any]:
    """In what one SLEEC may differ from another."""
    assert job.sleec is not None
    data = job.config.data
    asked = {"seed": job.config.seed, "validation": data.validation, "test_examples": data.test_examples}
    return asked | {"settings": job.sleec.model_dump()}


def _sleec_done(job: Job) -> bool:
    path = job.place / SLEEC_FILE
    if not path.exists():
        return False
    saved = read_object(path)
    for key, wanted in sleec_facts(job).items():
        if saved.get(key) != wanted:
            raise FedawsError(f"{path} was made with {key}={saved.get(key)}, now it is {wanted}; move it away")
    return True


def read_object(path: Path, keys: Sequence[str] = ()) -> dict[str, Any]:
    """A JSON file of ours that has these keys."""
    try:
        saved = read_json(path)
    except FedawsError:
        saved = None
    if not isinstance(saved, dict) or any(key not in saved for key in keys):
        raise FedawsError(f"{path} is damaged; move it away")
    return saved
