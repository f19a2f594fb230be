"""The results of a table: what lies in its run folders, as data, beside the paper's figures."""

import json
import re
import shlex
import statistics
from pathlib import Path
from typing import Any

from fedaws import config as configuration
from fedaws.config import Config, typed
from fedaws.errors import FedawsError
from fedaws.experiments.markdown import Results, plot_name, results_page
from fedaws.experiments.paper_tables import ROLES, SLEEC, Table
from fedaws.experiments.reproduce import SLEEC_FILE, configured, finished, read_object
from fedaws.files import read_json, write_text
from fedaws.record.folder import RunFolder
from fedaws.record.journal import Metrics, differences
from fedaws.record.made_with import MADE_WITH
from fedaws.training.checks import COLLAPSED


def gather(table: Table, out: Path, folder: Path) -> Results:
    """The results that were written to `folder`, brought up to what lies in the run folders below `out`."""
    return merge(read_results(folder / f"{table.name}.json"), collect(table, out))


def write_results(results: Results, folder: Path) -> None:
    """Write data, page and plots."""
    path = folder / f"{results['table']}.json"
    text = json.dumps(results, indent=2, ensure_ascii=False)
    # A point of a curve on one line, not on four.
    text = re.sub(r"\[([^][{}]*)\]", lambda found: f"[{' '.join(found[1].split())}]", text)
    write_text(path, text + "\n")
    write_text(path.with_suffix(".md"), results_page(results))
    from fedaws.experiments.plots import plot_curves  # noqa: PLC0415 - nothing else need wait for matplotlib

    for name, row in results["rows"].items():
        curves = {m: cell["ours"]["curve"] for m, cell in row["methods"].items() if "curve" in (cell["ours"] or {})}
        if curves and results["plots"]:
            plot_curves(curves, folder / plot_name(results, name), row["label"], results["measures"][0])


def read_results(path: Path) -> Results:
    """What was written before; nothing, if nothing was."""
    if not path.exists():
        return {"rows": {}}
    try:
        results: Results = read_json(path)
        results_page(results)  # has all that is needed
    except (ValueError, KeyError, TypeError, AttributeError):
        raise FedawsError(f"{path} does not hold results of this command; move it away") from None
    return results


def merge(old: Results, new: Results) -> Results:
    """New figures in place of old ones; but an unfinished run does not replace a finished one that is as long."""

    def better(before: Any, now: Any) -> Any:
        if before and (not now or (before["finished"] and not now["finished"] and before["rounds"] >= now["rounds"])):
            return before
        return now

    rows = dict(old["rows"])
    for name, row in new["rows"].items():
        known = rows.get(name, {"methods": {}})["methods"]
        cells = {
            m: cell | {"ours": better(known.get(m, {}).get("ours"), cell["ours"])} for m, cell in row["methods"].items()
        }
        rows[name] = row | {"methods": known | cells}
    return new | {"rows": rows}


def collect(table: Table, out: Path) -> Results:
    """All that lies in the run folders, finished or not, beside the paper's figures; percentages."""
    return {
        "table": table.name,
        "title": table.title,
        "measures": list(table.measures),
        "unit": "percent",
        "plots": table.plots,
        "rows": {
            name: {
                "label": row.label,
                "methods": {
                    method: {
                        "role": ROLES[method],
                        "paper": dict(zip(table.measures, figures, strict=True)) if figures else None,
                        "ours": _sleec(table, name, out) if method == SLEEC else _ours(table, name, method, out),
                    }
                    for method, figures in row.paper.items()
                },
            }
            for name, row in table.rows.items()
        },
    }


class _Record:
    """What a run has left in its folder."""

    def __init__(self, place: Path) -> None:
        folder, note = RunFolder(place), place / MADE_WITH
        self.place, self.config, self.metrics = place, folder.config(), folder.metrics()
        self.last: Metrics = self.metrics[-1] if self.metrics else {"round": 0}
        self.finished = finished(folder, self.config)
        self.made_with: dict[str, str] = read_object(note) if note.exists() else {}


def _ours(table: Table, row: str, method: str, out: Path) -> dict[str, Any] | None:
    """The figures of the finished runs; if there are none, of the unfinished one that has come furthest."""
    places = [place for place in (out / row).glob(f"{method}-seed*") if RunFolder(place).started]
    begun = sorted((record for record in map(_Record, places) if record.metrics), key=lambda r: r.config.seed)
    if not begun:
        return None
    records = [record for record in begun if record.finished] or [max(begun, key=lambda r: r.last["round"])]
    _check(records, table)
    first, cfg, usual = records[0], records[0].config, configured(table, row, method)
    own = [*table.rows[row].settings, *table.own_settings(row, method)]
    preset_rounds = configuration.load(table.rows[row].preset).override(own).train.rounds
    cosines = [record.last["max_cosine"] for record in records]
    made_with = {key: ", ".join(dict.fromkeys(r.made_with.get(key, "?") for r in records)) for key in first.made_with}
    return {
        **{name: _statistics([100 * record.last[name] for record in records]) for name in table.measures},
        "seeds": [record.config.seed for record in records],
        "finished": first.finished,
        "rounds": first.last["round"],
        "planned_rounds": cfg.train.rounds,
        "preset_rounds": preset_rounds,
        "stopped_early": method in table.stop_early and cfg.train.rounds == table.stop_early[method] < preset_rounds,
        "collapsed": min(cosines) > COLLAPSED,
        "max_cosine": round(max(cosines), 4),
        "seconds": round(statistics.fmean(record.last["seconds"] for record in records), 1),
        "validation": cfg.data.validation,
        "settings": [*table.own_settings(row, method), *_settings(usual, cfg)],
        "command": _command(table, row, method, records, usual),
        "machine": made_with.pop("machine", "?"),
        "versions": made_with,
        "curve": [[[m["round"], round(100 * m[table.measures[0]], 4)] for m in record.metrics] for record in records],
    }


def _sleec(table: Table, row: str, out: Path) -> dict[str, Any] | None:
    """The figures of SLEEC, which has no rounds."""
    files = sorted((out / row).glob(f"{SLEEC}-seed*/{SLEEC_FILE}"))
    facts = ("seed", "seconds", "prediction_seconds", "bytes", "made_with", "validation", "test_examples", "settings")
    found = [read_object(path, (*facts, *table.measures)) for path in files]
    if not found:
        return None
    first = found[0]
    for path, other in zip(files, found, strict=True):
        if any(other[key] != first[key] for key in ("validation", "test_examples", "settings")):
            raise FedawsError(f"{files[0]} and {path} differ in more than the seed; move one of them away")
    made_with = dict(first["made_with"])
    return {
        **{name: _statistics([100 * each[name] for each in found]) for name in table.measures},
        "seeds": sorted(each["seed"] for each in found),
        "finished": True,
        "seconds": round(statistics.fmean(each["seconds"] for each in found), 1),
        "prediction_seconds": round(statistics.fmean(each["prediction_seconds"] for each in found), 1),
        "bytes": first["bytes"],
        "validation": first["validation"],
        "settings": [f"{key}={value}" for key, value in first["settings"].items()],
        "command": shlex.join(["fedaws", "reproduce", table.source, "--rows", row, "--methods", SLEEC]),
        "machine": made_with.pop("machine", "?"),
        "versions": made_with,
    }


def _check(records: list[_Record], table: Table) -> None:
    """Only runs that differ in nothing but the seed have a mean."""
    first = records[0]
    for record in records:
        for name in table.measures:
            if name not in record.last:
                raise FedawsError(
                    f"{record.place} has no {name}, which {table.name} wants; there are {list(record.last)}"
                )
        for key, _, _ in differences(first.config.override([f"seed={record.config.seed}"]), record.config):
            raise FedawsError(f"{first.place} and {record.place} differ in {key}; move one of them away")


def _statistics(values: list[float]) -> dict[str, Any]:
    spread = round(statistics.stdev(values), 4) if len(values) > 1 else None
    return {"mean": round(statistics.fmean(values), 4), "sd": spread, "runs": [round(value, 4) for value in values]}


def _settings(usual: Config, cfg: Config) -> list[str]:
    """What differs from the row's own configuration, as it is typed after -s."""
    # The first two are said elsewhere; where the data lies is nobody's business.
    left_out = ("seed", "train.rounds", "data.root")
    return [f"{key}={typed(value)}" for key, value, _ in differences(cfg, usual) if key not in left_out]


def _command(table: Table, row: str, method: str, records: list[_Record], usual: Config) -> str:
    """What is typed to have these runs again."""
    words = ["fedaws", "reproduce", table.source, "--rows", row, "--methods", method]
    first, last = records[0].config, records[-1].config
    if last.seed > first.seed:
        words += ["--seeds", str(last.seed - first.seed + 1)]
    if first.train.rounds != usual.train.rounds:
        words += ["--rounds", str(first.train.rounds)]
    for setting in [f"seed={first.seed}"] * (first.seed != usual.seed) + _settings(usual, first):
        words += ["-s", setting]
    return shlex.join(words)
