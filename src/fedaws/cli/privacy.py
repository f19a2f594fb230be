"""`fedaws privacy …`: what differential privacy costs, before a run."""

from typing import Annotated, Literal

import typer

from fedaws.cli import console
from fedaws.cli.common import Json, print_json, user_errors
from fedaws.cli.tables import text_table
from fedaws.errors import FedawsError

app = typer.Typer(help="User-level differential privacy: what noise costs.", rich_markup_mode="rich")


@app.callback()
def privacy_command() -> None:
    """User-level differential privacy: what noise costs."""


@app.command("plan", epilog="Example: fedaws privacy plan --people 100000 --per-round 5000 --rounds 1000 --epsilon 2")
def plan_command(
    people: Annotated[int, typer.Option(min=2, help="All clients; one is one person.")],
    per_round: Annotated[str, typer.Option(metavar="N|all", help="Clients of a round, on average.")] = "all",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of the run.")] = 300,
    epsilon: Annotated[list[float] | None, typer.Option(help="A target; repeatable. By default 1, 2, 4 and 8.")] = None,
    noise: Annotated[list[float] | None, typer.Option(help="A noise multiplier instead; repeatable.")] = None,
    delta: Annotated[float | None, typer.Option(help="By default people^-1.1.")] = None,
    sampling: Annotated[
        Literal["poisson", "uniform"], typer.Option(help="Each by a coin of its own, or a fixed number.")
    ] = "poisson",
    participations: Annotated[
        int | None, typer.Option(min=1, help="At most so many rounds a client, and no secret about who takes part.")
    ] = None,
    parameters: Annotated[int, typer.Option(min=1, help="Numbers in the encoder θ.")] = 50_000,
    json: Json = False,
) -> None:
    """Noise for a target ε, or ε for given noise, and what is left of the signal; nothing is run."""
    with user_errors():
        from fedaws.privacy.accountant import check_participations, cohorts_of, default_delta
        from fedaws.privacy.plan import plan

        cohort = _cohort(per_round, people)
        check_participations(people, cohort, rounds, participations)
        delta = default_delta(people) if delta is None else delta
        cohorts = cohorts_of(people, cohort, sampling == "poisson", participations)
        targets = epsilon or ([] if noise else [1.0, 2.0, 4.0, 8.0])
        rows = plan(people, cohort, rounds, delta, cohorts, parameters, targets, noise or [])
        if json:
            asked = {"people": people, "per_round": cohort, "rounds": rounds, "delta": delta, "parameters": parameters}
            kind = {"cohorts": cohorts.in_words, "neighbours": cohorts.neighbours}
            print_json({**asked, **kind, "plans": [row._asdict() for row in rows]})
            return
        console.say(f"δ = {delta:.2g}, {cohorts.in_words}; neighbours: {cohorts.neighbours}; {parameters:,} parameters")
        cells = [
            [f"{r.epsilon:.3g}", f"{r.epsilon_if_known:.3g}", f"{r.noise:.4g}", f"{r.noise_to_signal:.2g}", r.advice]
            for r in rows
        ]
        console.out.print(text_table(["ε", "cohorts known", "noise z", "noise / signal", "what to expect"], cells))


def _cohort(text: str, people: int) -> int:
    if text == "all":
        return people
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:12]) <= people):
        raise FedawsError(f"--per-round: got {text!r:.40}; wanted all, or a number of clients from 1 to {people}")
    return int(text)
