"""The page: what was collected, put into the template. One file, no network, nothing executed from the run folders."""

import json
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fedaws.errors import FedawsError
from fedaws.evaluate.catalogue import OPEN_SET, SUMMARY, duration, format_value, measure_of
from fedaws.files import write_text
from fedaws.report import charts, words
from fedaws.report.audits import audits
from fedaws.report.classes import class_section, confusion_section, cosine_section, motion_section
from fedaws.report.collect import Collected, collect
from fedaws.report.costs import flower, times
from fedaws.report.curves import LEARNING, RESULT, THEORY, curve_figures, own_measures
from fedaws.report.draft import Draft, draft_of
from fedaws.report.figures import plus_minus, statistics
from fedaws.report.people import people_section

REPORT = "report.html"
_SEES = {"own": "its own row", "fixed": "its own row, never trained", "all": "all of W"}


def write_report(paths: Sequence[str | Path], target: str | Path) -> Path:
    """Write the report of these runs."""
    target = Path(target)
    if target.is_dir():
        raise FedawsError(f"{target} is a folder; give -o the name of a file, such as {target / 'report.html'}")
    write_text(target, make_page(collect([Path(path) for path in paths])))
    return target


def try_report(folder: Path, warn: Callable[[str], None]) -> str | None:
    """Write the report beside the runs; hours of training do not end with an error for the sake of a picture."""
    try:
        return str(write_report([folder], folder / REPORT))
    except Exception as error:
        warn(f"no report: {' '.join(str(error).split()) or type(error).__name__}; try: fedaws report {folder}")
        return None


def make_page(collected: Collected) -> str:
    """The whole page as text."""
    draft = draft_of(collected)
    context = _context(draft, collected)
    loader = PackageLoader("fedaws", "report")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"paint": charts.paint, "dash": charts.dash, "px": "{:.1f}".format, "value": format_value}
    environment.filters["grouped"] = "{:,}".format
    environment.globals["box"] = charts.BOX
    here = resources.files("fedaws.report")
    style, script = (Markup((here / name).read_text(encoding="utf-8")) for name in ("style.css", "script.js"))
    template = environment.get_template("template.html")
    return template.render(**context, style=style, script=script, data=_json(draft.data))


def _json(data: Any) -> Markup:
    """JSON that cannot end its script element."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _context(draft: Draft, collected: Collected) -> dict[str, Any]:
    """All that the template asks for. The notices come last: every section may add some."""
    groups = draft.groups
    runs = collected.runs
    own = own_measures(groups)
    apart = [key for key in OPEN_SET if any(statistics(group, key) for group in groups)]
    columns = [*SUMMARY, *apart, *own[:3]]
    sections = {
        "title": words.title(groups),
        "subtitle": words.subtitle(groups),
        "lead": words.lead(groups),
        "groups": groups,
        "columns": [measure_of(key).short for key in columns],
        "summary": _summary(draft, columns),
        "runs": words.runs_table(runs),
        "facts": words.facts(groups),
        "settings": words.settings(groups),
        "commands": words.commands(groups),
        "result": curve_figures(draft, RESULT),
        "learning": curve_figures(draft, LEARNING),
        "own": curve_figures(draft, own),
        "theory": curve_figures(draft, THEORY),
        "theory_table": words.theory_table(groups),
        "planes": motion_section(draft),
        "cosines": cosine_section(draft),
        "classes": class_section(draft),
        "confusions": confusion_section(draft),
        "people": people_section(draft),
        "times": times(groups),
        "flower": flower(runs, draft.notices),
        "audits": audits(runs, draft.notices),
    }
    return sections | {
        "notices": list(dict.fromkeys(map(collected.without_paths, draft.notices)))[:40],
        "several": any(len(group.runs) > 1 for group in groups),
    }


def _summary(draft: Draft, columns: list[str]) -> list[dict[str, Any]]:
    """A row for each group, with these measures at the end of its runs."""
    return [
        {
            "group": group,
            "role": group.shown.role,
            "sees": _SEES.get(group.shown.sent_rows or "", "–"),
            "values": [plus_minus(group, key) for key in columns],
            "rounds": f"{max(run.rounds_done for run in group.runs):,}",
            "seeds": ", ".join(str(run.config.seed) for run in group.runs),
            "time": duration(seconds[0]) if (seconds := statistics(group, "seconds")) else "–",
        }
        for group in draft.groups
    ]
