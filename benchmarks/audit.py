"""The attacks of `fedaws audit` on digits: ten nodes, the preset `digits-flower`, with every defence.

    python benchmarks/audit.py [--results docs/results] [--parts TEXT]

What stands in audit.json already is not measured again; some minutes of one core for all. With --parts only those whose
names have this text in them.
"""

import argparse
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fedaws import config
from fedaws.audit.federation import federated, short
from fedaws.audit.inversion import Inversion, inversion, optimised_inversion
from fedaws.audit.membership import membership_of_halves
from fedaws.audit.poisoning import poisoning
from fedaws.audit.row_inversion import another, row_inversion
from fedaws.audit.row_theft import Kind, row_theft
from fedaws.data import FederatedData, load_data
from fedaws.evaluate import Model
from fedaws.evaluate.precision import precision_at
from fedaws.files import write_text

Rows = list[dict[str, Any]]

SPREADING = {
    "eq. (6), all pairs": ["spread.regularizer=margin"],
    "eq. (7), k = 3": ["spread.regularizer=nearest"],
    "eq. (7), k = 1": ["spread.regularizer=nearest", "spread.neighbors=1"],
    "moments": [],
    "none: fixed rows": ["method=fixed"],
}
DEFENCES = {
    "none": [],
    "row_step=0.95": ["defence.row_step=0.95"],
    "apart=0.5": ["defence.apart=0.5"],
    "anchor=0.9": ["defence.anchor=0.9"],
    "clip=median": ["defence.clip=median"],
    "apart=0.5, clip=median": ["defence.apart=0.5", "defence.clip=median"],
    "anchor=0.9, clip=median": ["defence.anchor=0.9", "defence.clip=median"],
}
BASE = config.load("digits-flower")


def measured(data: FederatedData) -> dict[str, Callable[[], Rows]]:
    """Every part of the page by its name."""
    parts: dict[str, Callable[[], Rows]] = {}
    parts["inversion"] = lambda: inversions(data)
    parts["first bias"] = lambda: first_bias(data)
    parts["membership"] = lambda: [asdict(membership_of_halves(BASE, data, splits=8))]
    parts["row inversion"] = lambda: [asdict(inverted_rows(data))]
    for name, settings in DEFENCES.items():
        parts[f"poisoning, {name}"] = partial(poisonings, data, settings)
    for rounds in (12, 60):
        for name, settings in SPREADING.items():
            parts[f"row theft, {rounds} rounds, {name}"] = partial(thefts, data, settings, rounds)
    margin = BASE.override(SPREADING["eq. (6), all pairs"])
    parts["row theft, fresh seed"] = lambda: [asdict(row_theft(margin, data, "active", 60, seeds=(1,)))]
    return parts


def poisonings(data: FederatedData, settings: list[str]) -> Rows:
    return [asdict(found) for found in poisoning(BASE.override(settings), data)]


def thefts(data: FederatedData, settings: list[str], rounds: int) -> Rows:
    kinds: tuple[Kind, ...] = ("passive",) if settings == ["method=fixed"] else ("passive", "active")
    return [asdict(row_theft(BASE.override(settings), data, kind, rounds)) for kind in kinds]


def models(cfg: config.Config, data: FederatedData) -> dict[str, Model]:
    return {"start": federated(short(cfg, 1, 0).override(["clients.lr=1e-9"]), data), "trained": federated(cfg, data)}


def inversions(data: FederatedData) -> Rows:
    rows: Rows = []
    for name, model in models(BASE, data).items():
        rng = torch.Generator().manual_seed(0)
        found = [inversion(model, BASE, data, rng, batch=batch) for batch in (1, 2, 4, 8, 16, 32)]
        found += [inversion(model, BASE, data, rng, batch=8, steps=10, fresh=fresh) for fresh in (False, True)]
        found += [inversion(model, BASE, data, rng, clients=m, batch=1, tries=10) for m in (2, 5, 10, 20, 40)]
        rows += [{"theta": name, **asdict(each)} for each in found]
    return rows


def first_bias(data: FederatedData) -> Rows:
    rows: Rows = []
    for bias in (True, False):
        cfg = BASE.override([f"model.first_bias={str(bias).lower()}"])
        model, rng = federated(short(cfg, 1, 0).override(["clients.lr=1e-9"]), data), torch.Generator().manual_seed(0)
        found: list[Inversion] = [inversion(model, cfg, data, rng, batch=batch) for batch in (1, 4, 8)]
        found += [optimised_inversion(model, cfg, data, rng, batch=batch, steps=200) for batch in (1, 4, 8)]
        best = [federated(short(cfg, 12, seed), data) for seed in (0, 1, 2)]
        right = [evaluated(m, data) for m in best]
        rows += [{"first_bias": bias, "precision": right, **asdict(each)} for each in found]
    return rows


def evaluated(model: Model, data: FederatedData) -> float:
    assert isinstance(data.y_test, torch.Tensor)
    return precision_at(model.rank(model.embed(data.x_test), 1), data.y_test, 1)


def inverted_rows(data: FederatedData) -> Any:
    return row_inversion(federated(BASE, data), another(BASE, data), data, torch.Generator().manual_seed(0))


# --- the page -------------------------------------------------------------------------------------------------------


def percent(figure: dict[str, Any]) -> str:
    return f"{100 * figure['value']:.0f} ({100 * figure['low']:.0f} … {100 * figure['high']:.0f})"


def cosine(row: dict[str, Any]) -> str:
    figure, best = row["cosine"], row["best"]["value"]
    return f"{figure['value']:.2f} ({figure['low']:.2f} … {figure['high']:.2f}), best {best:.2f}, {row['stolen']:.0f}"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    head = list(head)
    return [f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *rows)]


def page(results: dict[str, Rows]) -> str:
    lines = [
        "# What attacks find on digits",
        "",
        "Made by `python benchmarks/audit.py` from [audit.json](audit.json), and not by hand. Ten nodes, a digit each,",
        "preset `digits-flower`, which spreads by `moments` where no other spreading is named; the attacks, and what",
        "stands against them: [the audit](../audit.md).",
        "In brackets: 95 % intervals over rows, clients, people or examples, not over seeds.",
        "What is not here was not measured.",
    ]
    parts = (stolen_rows, inverted_updates, without_bias, members, examples_of_rows, poisoned)
    return "\n".join([*lines, *(line for part in parts for line in part(results))]) + "\n"


def stolen_rows(results: dict[str, Rows]) -> list[str]:
    rows, fresh = [], results.get("row theft, fresh seed", [])
    for rounds in (12, 60):
        for name in SPREADING:
            found = {row["kind"]: row for row in results.get(f"row theft, {rounds} rounds, {name}", [])}
            if found:
                active = cosine(found["active"]) if "active" in found else "–"
                chance = f"{found['passive']['cosine']['chance']:.2f}, best {found['passive']['best']['chance']:.2f}"
                rows.append([name, str(rounds), cosine(found["passive"]), active, chance])
    return [
        "",
        "## A curious node: the others' rows",
        "",
        "Mean cosine of the rows found with the nine true ones, the best one, and how many are above 0.9; one seed.",
        "Chance: rows spread at random, for `moments` rows that have the true mean and second moment.",
        "",
        *table(["spreading", "rounds", "passive", "active", "chance"], rows),
        "",
        "The attack's own settings (how fast old rounds fade, its steps and starts, the short way for k = 1) were",
        "chosen on this seed, by the true rows, among about ten tries: these figures flatter the attacker a little.",
        *(f"Active, eq. (6), 60 rounds, on a seed that was not used for that: {cosine(row)}." for row in fresh),
    ]


def inverted_updates(results: dict[str, Rows]) -> list[str]:
    kinds: dict[str, dict[str, str]] = {}
    for row in results.get("inversion", []):
        steps = f", {row['steps']} steps on {'fresh' if row['fresh'] else 'the same'} batches" * (row["steps"] > 1)
        what = f"sum of {row['clients']} clients" if row["clients"] > 1 else "one client"
        cells = kinds.setdefault(f"{what}, batch {row['batch']}{steps}", {})
        cells[row["theta"]] = percent(row["recovered"])
    return [
        "",
        "## The server: examples out of updates",
        "",
        "Per cent of the examples recovered to 1 % by the first layer's ratios; 30 clients each, 10 sums each.",
        "In the first round the clients' step is next to nothing, but Muon gives it its own length, a quarter of θ's.",
        "Under the trained θ many examples have no loss left, and so no gradient that could show them.",
        "",
        *table(
            ["update", "θ after one round", "θ trained"],
            ([k, each["start"], each["trained"]] for k, each in kinds.items()),
        ),
    ]


def without_bias(results: dict[str, Rows]) -> list[str]:
    rows = []
    for row in results.get("first bias", []):
        right = sum(row["precision"]) / len(row["precision"])
        what = [str(row["first_bias"]).lower(), row["way"], str(row["batch"]), percent(row["recovered"])]
        rows.append([*what, f"{100 * (row['recovered']['chance'] or 0):.0f}", f"{100 * right:.1f}"])
    if not rows:
        return []
    return [
        "",
        "With and without the first layer's bias, θ after one round. By optimisation an example counts if what was",
        "found points nearer to it than to any other of its client; precision is that of 12 rounds, 3 seeds.",
        "",
        *table(["`model.first_bias`", "way", "batch", "recovered (%)", "chance", "precision@1 of the run"], rows),
    ]


def members(results: dict[str, Rows]) -> list[str]:
    lines = ["", "## Whoever has θ, or a row"]
    for found in results.get("membership", []):
        auc = found["auc"]
        lines += [
            "",
            "**Did this class take part?** Half of the digits train, half do not, eight random halves: AUC "
            f"{auc['value']:.2f} ({auc['low']:.2f} … {auc['high']:.2f});",
            f"under an untrained encoder {auc['chance']:.2f}. ε is at least {found['epsilon']:.2f} "
            f"(δ = {found['delta']:g}, 95 %).",
            "Digits recur in the halves, so both are less sure than they look.",
        ]
    return lines


def examples_of_rows(results: dict[str, Rows]) -> list[str]:
    return [
        line
        for found in results.get("row inversion", [])
        for line in (
            "",
            "**A row turned into an example** is accepted as that digit by a model of another seed at its equal error",
            f"rate in {percent(found['accepted'])} %, as another digit in {100 * found['as_somebody_else']:.1f} %; "
            f"noise in {100 * found['accepted']['chance']:.0f} %.",
        )
    ]


def poisoned(results: dict[str, Rows]) -> list[str]:
    rows = []
    for name in DEFENCES:
        found = {each["kind"]: each for each in results.get(f"poisoning, {name}", [])}
        if found:
            cells = [percent(found[kind]["victim"]) for kind in ("capture", "pull", "both")]
            first = found["capture"]
            ends = [f"{100 * first['victim']['chance']:.0f}", f"{100 * first['honest']:.1f}"]
            rows.append([name, *cells, *ends])
    return [
        "",
        "## One node of ten: poisoning",
        "",
        "Per cent of the victim's test examples that are still taken for theirs, after 12 rounds; the attacker has",
        "five of the victim's training examples. Three seeds, another victim and attacker in each.",
        "",
        *table(["`[defence]`", "capture", "pull", "both", "victim, no attack", "honest precision@1"], rows),
    ]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    arguments.add_argument("--results", type=Path, default=Path("docs/results"))
    arguments.add_argument("--parts", default="")
    given = arguments.parse_args()
    place = given.results / "audit.json"
    torch.set_num_threads(1)
    results: dict[str, Rows] = json.loads(place.read_text()) if place.exists() else {}
    for name, measure in measured(load_data(BASE)).items():
        if name not in results and given.parts in name:
            results[name] = measure()
            write_text(place, json.dumps(results, indent=1) + "\n")
            print(name, flush=True)
    write_text(place.with_suffix(".md"), page(results))


if __name__ == "__main__":
    main()
