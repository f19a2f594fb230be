"""What attacks found: the table of `fedaws audit`, from audit.json in a run's folder."""

from typing import Annotated, Any

from pydantic import BaseModel, Field

from fedaws.record.folder import AUDIT
from fedaws.report.collect import RunData
from fedaws.report.figures import Table
from fedaws.report.reader import attempt, check, read_object

MOST_AUDITS = 4
"""Runs whose audits are shown."""
Text = Annotated[str, Field(max_length=400)]
Number = Annotated[float, Field(allow_inf_nan=False, ge=-1e6, le=1e6)]


class _Figure(BaseModel):
    value: Number
    low: Number
    high: Number
    chance: Number


class _Finding(BaseModel):
    who: Text
    does: Text
    learns: Text
    figure: _Figure


class _Audit(BaseModel):
    findings: list[_Finding] = Field(max_length=200)


def audits(runs: list[RunData], notices: list[str]) -> list[dict[str, Any]]:
    """A panel for each run that was attacked."""
    panels = [panel for run in runs if (panel := _panel(run, notices))]
    if len(panels) > MOST_AUDITS:
        notices.append(f"{len(panels)} runs were audited; the first {MOST_AUDITS} are shown")
    return panels[:MOST_AUDITS]


def _panel(run: RunData, notices: list[str]) -> dict[str, Any] | None:
    path = run.folder.path / AUDIT
    stored = attempt(lambda: read_object(path), notices)
    found = attempt(lambda: check(lambda: _Audit.model_validate(stored), path), notices) if stored else None
    if found is None or not found.findings:
        return None
    rows = [
        [
            line.who,
            line.does,
            line.learns,
            f"{line.figure.value:.2f}",
            f"{line.figure.low:.2f} … {line.figure.high:.2f}",
            f"{line.figure.chance:.2f}",
        ]
        for line in found.findings
    ]
    head = ["who", "does", "learns or spoils", "figure", "95 % interval", "chance"]
    return {"label": run.name, "promise": _promise(run), "table": Table("What each side learns or spoils", head, rows)}


def _promise(run: RunData) -> str:
    """What the accountant says, to stand beside what an attack shows."""
    privacy = run.facts.privacy if run.facts else None
    if privacy is None:
        return "No ε was promised: there is no upper bound to hold these against."
    return f"The accountant's upper bound is ε = {privacy.epsilon:.2f} at δ = {privacy.delta:.1e}."
