"""The results of a table: what lies in its run folders, as data, beside the paper's figures."""

import json
import re
import shlex
import statistics
from pathlib import Path
from typing import Any

from fedaws.config import Config, typed
from fedaws.errors import FedawsError
from fedaws.experiments.fingerprint import fingerprint, same
from fedaws.experiments.markdown import Results, plot_name, results_page
from fedaws.experiments.paper_tables import CENTRALISED, ROLES, Table
from fedaws.experiments.paper_tables.departures import configuration
from fedaws.experiments.reproduce import Record, configured, folder_stem, read_record
from fedaws.files import read_json, write_text
from fedaws.record.journal import differences
from fedaws.training.checks import COLLAPSED


def gather(table: Table, out: Path, folder: Path) -> Results:
    """The results that were written to `folder`, brought up to what lies in the run folders below `out`, and marked
    where the code has changed since.
    """
    return marked(table, merge(read_results(folder / f"{table.name}.json"), collect(table, out)))


def marked(table: Table, results: Results) -> Results:
    """With each figure's configuration, and whether it is stale: of code that has another fingerprint than this."""
    for row, of_row in results["rows"].items():
        for method, cell in of_row["methods"].items():
            for kind in KINDS:
                ours = cell.get(kind)
                if ours and method not in CENTRALISED and row in table.rows:
                    own = [each for each in ours["settings"] if not each.startswith("train.rounds=")]
                    cfg = configured(table, row, method, None, own, kind == "as_paper")
                    ours["configuration"] = configuration(cfg)
                    ours["stale"] = not same(ours.get("fingerprint"), fingerprint(cfg))
    return results


def write_results(results: Results, folder: Path) -> None:
    """Write data, page and plots."""
    path = folder / f"{results['table']}.json"
    text = json.dumps(results, indent=2, ensure_ascii=False)
    # A point of a curve on one line, not on four.
    text = re.sub(r"\[([^][{}]*)\]", lambda point: f"[{' '.join(point[1].split())}]", text)
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


KINDS = ("as_paper", "ours")
"""Of a cell beside the paper's own figure: ours with the paper's configuration, and with the best that we know."""


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
            m: cell | {kind: better(known.get(m, {}).get(kind), cell.get(kind)) for kind in KINDS}
            for m, cell in row["methods"].items()
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
                        "as_paper": _ours(table, name, method, out, as_paper=True),
                        "ours": _ours(table, name, method, out),
                    }
                    for method, figures in row.paper.items()
                },
            }
            for name, row in table.rows.items()
        },
    }


def _ours(table: Table, row: str, method: str, out: Path, as_paper: bool = False) -> dict[str, Any] | None:
    """The figures of the finished runs; if there are none, of the unfinished one that has come furthest."""
    places = (out / row).glob(f"{folder_stem(method, as_paper)}*")
    begun = [record for place in places if (record := read_record(place)) is not None]
    begun = sorted((record for record in begun if record.metrics), key=lambda record: record.config.seed)
    if not begun:
        return None
    records = [record for record in begun if record.finished] or [max(begun, key=lambda record: record.last["round"])]
    _check(records, table)
    first = records[0]
    usual = configured(table, row, method, as_paper=as_paper)
    made_with = {key: ", ".join(dict.fromkeys(r.made_with.get(key, "?") for r in records)) for key in first.made_with}
    return {
        **{name: _statistics([100 * record.last[name] for record in records]) for name in table.measures},
        "seeds": [record.config.seed for record in records],
        "finished": first.finished,
        **({"fingerprint": first.fingerprint} if first.fingerprint else {}),
        **(_by_round(table, row, method, records, as_paper) if "round" in first.last else {}),
        **{name: _mean(records, name) for name in ("seconds", "prediction_seconds", "bytes") if name in first.last},
        "validation": first.config.data.validation,
        "settings": [*([] if as_paper else table.own_settings(row, method)), *_settings(usual, first.config)],
        "command": _command(table, row, method, records, usual, as_paper),
        "machine": made_with.pop("machine", "?"),
        "versions": made_with,
    }


def _by_round(table: Table, row: str, method: str, records: list[Record], as_paper: bool) -> dict[str, Any]:
    """How long federated runs were and should have been, how they ended, and their curves."""
    planned = records[0].config.train.rounds
    preset = table.preset(row, method, as_paper).train.rounds
    cosines = [record.last["max_cosine"] for record in records]
    return {
        "rounds": records[0].last["round"],
        "planned_rounds": planned,
        "preset_rounds": preset,
        "stopped_early": planned == table.stop_early.get(method) and planned < preset,
        "collapsed": min(cosines) > COLLAPSED,
        "max_cosine": round(max(cosines), 4),
        "curve": [[[m["round"], round(100 * m[table.measures[0]], 4)] for m in record.metrics] for record in records],
    }


def _mean(records: list[Record], name: str) -> float:
    return round(statistics.fmean(record.last[name] for record in records), 1)


def _check(records: list[Record], table: Table) -> None:
    """Only runs that differ in nothing but the seed have a mean."""
    first = records[0]
    for record in records:
        for name in table.measures:
            if name not in record.last:
                there = list(record.last)
                raise FedawsError(f"{record.place} has no {name}, which {table.name} wants; there are {there}")
        for key, _, _ in differences(first.config.with_(seed=record.config.seed), record.config):
            raise FedawsError(f"{first.place} and {record.place} differ in {key}; move one of them away")


def _statistics(values: list[float]) -> dict[str, Any]:
    spread = round(statistics.stdev(values), 4) if len(values) > 1 else None
    return {"mean": round(statistics.fmean(values), 4), "sd": spread, "runs": [round(value, 4) for value in values]}


def _settings(usual: Config, cfg: Config) -> list[str]:
    """What differs from the row's own configuration, as it is typed after -s."""
    # The first two are said elsewhere; where the data lies is nobody's business.
    left_out = ("seed", "train.rounds", "data.root")
    return [f"{key}={typed(value)}" for key, value, _ in differences(cfg, usual) if key not in left_out]


def _command(table: Table, row: str, method: str, records: list[Record], usual: Config, as_paper: bool) -> str:
    """What is typed to have these runs again."""
    words = ["fedaws", "reproduce", table.source, "--rows", row, "--methods", method, *["--as-paper"] * as_paper]
    first = records[0].config
    last = records[-1].config
    if last.seed > first.seed:
        words += ["--seeds", str(last.seed - first.seed + 1)]
    if first.train.rounds != usual.train.rounds:
        words += ["--rounds", str(first.train.rounds)]
    seed = [f"seed={first.seed}"] if first.seed != usual.seed else []
    words += [word for setting in [*seed, *_settings(usual, first)] for word in ("-s", setting)]
    return shlex.join(words)
