"""`fedaws audit RUN`: what each side of the run's federation could learn or spoil."""

from json import dumps as to_json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from fedaws.cli import console
from fedaws.cli.common import Json, print_json, user_errors
from fedaws.errors import FedawsError

if TYPE_CHECKING:
    from fedaws.audit import Findings


def audit_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    attacks: Annotated[str | None, typer.Option(help="Comma-separated; by default all but unlearning.")] = None,
    rounds: Annotated[str, typer.Option(help="Rounds of the short federations, comma-separated.")] = "12,60",
    seeds: Annotated[int, typer.Option(min=1, help="Short federations of each kind.")] = 1,
    json: Json = False,
) -> None:
    """Attack a run: row theft, inversion of updates, membership, inversion of rows, poisoning.

    What is found goes into RUN/audit.json, and into the report beside it.
    """
    with user_errors():
        from fedaws.audit import audit
        from fedaws.files import write_text
        from fedaws.record.folder import AUDIT
        from fedaws.report.page import try_report
        from fedaws.training.run import load

        names = [name.strip() for name in attacks.split(",")] if attacks else None
        found = audit(
            load(run),
            attacks=names,
            rounds=_numbers(rounds),
            seeds=range(seeds),
            told=lambda name: console.err.print(f"{name} …", style="dim"),
        )
        write_text(run / AUDIT, to_json(found.as_json(), indent=1) + "\n")
        try_report(run, console.warn)
        print_json(found.as_json()) if json else console.out.print(findings_table(found))


def findings_table(found: "Findings") -> Table:
    """Who does what, what they learn, with interval and chance."""
    title = f"{found.method} on {found.name}: what each side learns or spoils"
    caption = "95 % intervals over clients, people, rows or examples; chance: a guess, an untrained θ, or no attack"
    table = Table("who", "does", "learns", title=escape(title), caption=caption)
    for name in ("value", "interval", "chance"):
        table.add_column(name, justify="right", no_wrap=True)
    for line in found.lines:
        figure = line.figure
        texts = map(escape, (line.who, line.does, line.learns))
        table.add_row(*texts, f"{figure.value:.2f}", f"{figure.low:.2f} … {figure.high:.2f}", f"{figure.chance:.2f}")
    return table


def _numbers(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 1 <= int(part) <= 10_000 for part in parts):
        raise FedawsError(f"--rounds {text}; wanted whole numbers from 1 to 10000, as in 12,60")
    return [int(part) for part in parts]
