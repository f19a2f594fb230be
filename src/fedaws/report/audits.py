"""What attacks found: the table of `fedaws audit`, from audit.json in a run's folder."""

from typing import Annotated, Any

from pydantic import BaseModel, Field

from fedaws.record.folder import AUDIT
from fedaws.report.figures import Table
from fedaws.report.reader import attempt, read_model
from fedaws.report.run_data import RunData

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
    audit = attempt(notices, read_model, _Audit, run.folder.path / AUDIT)
    if audit is None or not audit.findings:
        return None
    rows = []
    for finding in audit.findings:
        figure = finding.figure
        numbers = (f"{figure.value:.2f}", f"{figure.low:.2f} … {figure.high:.2f}", f"{figure.chance:.2f}")
        rows.append([finding.who, finding.does, finding.learns, *numbers])
    head = ["who", "does", "learns or spoils", "figure", "95 % interval", "chance"]
    return {"label": run.name, "promise": _promise(run), "table": Table("What each side learns or spoils", head, rows)}


def _promise(run: RunData) -> str:
    """What the accountant says, to stand beside what an attack shows."""
    privacy = run.facts.privacy if run.facts else None
    if privacy is None:
        return "No ε was promised: there is no upper bound to hold these against."
    return f"The accountant's upper bound is ε = {privacy.epsilon:.2f} at δ = {privacy.delta:.1e}."
