"""Twenty audits of private training: ε shown by an attack beside the accountant's. docs/results/canaries.json and .md.

    OMP_NUM_THREADS=1 python benchmarks/canaries.py [--runs 60] [--results docs/results]

Five targets of ε, everybody in each of three rounds or each by a coin of 1/2, and two people each: so many trainings
with the person and so many without, told apart by somebody who knows all else (`fedaws.audit.canary`). What stands in
the file already is not measured again. Noise comes from the operating system.
"""

import argparse
import json
import time
from itertools import product
from pathlib import Path
from typing import Any

import torch

from fedaws import Config, FederatedData, from_arrays
from fedaws.audit.canary import canary
from fedaws.files import write_text

PEOPLE = 12
COHORTS = {"everybody": [], "by coins of 1/2": ["clients.per_round=6", "clients.sampling=poisson"]}
AUDITS = list(product((0.5, 1.0, 2.0, 4.0, 8.0), COHORTS, (4, 9)))
BASE = Config().override(
    [
        *("method=fixed", "model.embedding_dim=4", "model.hidden=[]", "train.rounds=3", "train.schedule=constant"),
        *("privacy.clip=0.01", "privacy.delta=1e-3", "privacy.epsilon=1"),
    ]
)


def federation() -> FederatedData:
    rng = torch.Generator().manual_seed(0)
    y = torch.arange(PEOPLE).repeat_interleave(4)
    x = torch.randn(len(y), 5, generator=rng) + 2 * torch.randn(PEOPLE, 5, generator=rng)[y]
    return from_arrays(x, y, x, y)


def page(results: dict[str, Any]) -> str:
    rows = [[*key.split(", "), found] for key, found in results["audits"].items()]
    over = sum(found["at_least"] > found["at_most"] for *_, found in rows)
    lines = [
        "# Audits of private training",
        "",
        f"Made by `python benchmarks/canaries.py`: {len(rows)} audits of {PEOPLE} people, three rounds, a linear",
        f"encoder, clip 0.01, δ = 0.001. Each trains {results['runs']} times with a person and as often without;",
        "somebody who knows all else tells them apart by every θ. ε is at least what that shows (95 %), at most what",
        "the accountant says.",
        f"**{over} of {len(rows)} audits show more than the accountant allows.** So many runs can show at most",
        f"{results['can_show']:.2f}. See [the audit](../audit.md).",
        "",
        "| accountant: at most | who takes part | person | attack: at least |",
        "|---:|---|---:|---:|",
    ]
    for _, cohort, person, found in rows:
        lines.append(f"| {found['at_most']:.2f} | {cohort} | {person} | {found['at_least']:.2f} |")
    return "\n".join(lines) + "\n"


def most_shown(runs: int) -> float:
    """What is shown if all of the half that is counted are told apart."""
    low = 0.025 ** (1 / (runs // 2))
    return float(torch.tensor((low - 1e-3) / (1 - low)).log())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no audit after so many")
    parser.add_argument("--results", type=Path, default=Path("docs/results"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    began, place = time.monotonic(), given.results / "canaries.json"
    stored = json.loads(place.read_text(encoding="utf-8")) if place.exists() else {}
    same = stored.get("runs") == given.runs
    results: dict[str, Any] = {"runs": given.runs, "can_show": most_shown(given.runs)}
    results["audits"] = stored["audits"] if same else {}
    for target, cohort, person in AUDITS:
        key = f"{target:g}, {cohort}, {person}"
        if key in results["audits"] or time.monotonic() - began > given.seconds:
            continue
        found = canary(BASE.override([f"privacy.epsilon={target}", *COHORTS[cohort]]), federation(), person, given.runs)
        results["audits"][key] = {"at_least": found.at_least, "at_most": found.at_most}
        print(f"{key}: at least {found.at_least:.2f}, at most {found.at_most:.2f}", flush=True)
        write_text(place, json.dumps(results, indent=1) + "\n")
        write_text(place.with_suffix(".md"), page(results))


if __name__ == "__main__":
    main()
