"""Do some rounds without a person make θ forget them? docs/results/unlearning.json and .md.

    python benchmarks/unlearning.py [--sets digits,voices] [--splits 4] [--out runs/unlearning] [--results docs/results]

Each random parting of the people is a file in `--out`, so that a killed benchmark goes on where it was. Voices are
$FEDAWS_DATA/audiomnist/audiomnist-logmel.npz (x [6000, 40, 64], speaker, repetition).
"""

import argparse
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

import fedaws
from fedaws import Config, FederatedData
from fedaws.audit.unlearning import ANEW, BEFORE, STAY, forgetting, leads
from fedaws.data.load import load_data
from fedaws.files import write_text
from fedaws.record.made_with import made_with

ROUNDS = (10, 50, 150)
READING = (
    "So some rounds without a person may hide them from this attack, and need not: on voices fifty rounds, a third of\n"
    "the training, bring it to chance and 150 to where training anew is; on digits as many rounds as the whole\n"
    "training leave most of the lead. Where it must be sure, train anew. One attack bounds what θ tells from below\n"
    "only, and whoever has an older θ keeps it. The same people come again in several partings, so the intervals are\n"
    "somewhat too narrow. For a run of your own: `fedaws audit RUN --attacks unlearning --rounds 10,50,150`."
)
VOICES = Config().with_(
    name="voices",
    model={"hidden": [256], "embedding_dim": 64},
    clients={"lr": 1.0, "class_lr": 0.1, "examples_per_step": 8},
    server={"optimizer": "muon", "lr": 0.02, "momentum": 0.9},
    train={"rounds": 150, "evaluate_every": 10_000, "threads": 1},
)


def voices() -> tuple[Config, FederatedData]:
    """60 speakers; mean, deviation and delta deviation of 40 mel bands; the last repetitions for testing."""
    stored = np.load(Path(os.environ["FEDAWS_DATA"]) / "audiomnist" / "audiomnist-logmel.npz")
    mel = stored["x"].astype(np.float32) / 255
    x = np.concatenate([mel.mean(2), mel.std(2), np.diff(mel, axis=2).std(2)], axis=1)
    repetitions, rank = np.unique(stored["repetition"], return_inverse=True)
    y = np.unique(stored["speaker"], return_inverse=True)[1]
    test = rank >= 0.7 * len(repetitions)
    return VOICES, fedaws.from_arrays(x[~test], y[~test], x[test], y[test])


def digits() -> tuple[Config, FederatedData]:
    cfg = fedaws.config.load("digits").with_(train={"rounds": 150, "evaluate_every": 10_000, "threads": 1})
    return cfg, load_data(cfg)


SETS = {"digits": digits, "voices": voices}


def measure(name: str, splits: int, out: Path) -> dict[str, Any]:
    cfg, data = SETS[name]()
    parts = []
    for split in range(splits):
        place = out / f"{name}-{split}.json"
        if not place.exists():
            write_text(place, json.dumps(leads(cfg, data, split, ROUNDS)) + "\n")
            print(place, flush=True)
        parts.append(json.loads(place.read_text()))
    found = forgetting(parts)
    return {
        "partings": splits,
        "leavers": len(parts[0][BEFORE][0]),
        "others": len(parts[0][BEFORE][1]),
        "stayers": len(parts[0][STAY][0]),
        "lines": {line: asdict(figures) for line, figures in found.items()},
    }


# --- the page ---------------------------------------------------------------------------------------------------------


def page(results: dict[str, Any]) -> str:
    lines = [
        "# Does θ forget who leaves?",
        "",
        "Made by `python benchmarks/unlearning.py`. A third of the people never takes part, a fifth of the rest leaves",
        "after 150 rounds, and the others go on for 10, 50 or 150 rounds without them. The attack looks at how close",
        "together a person's unseen examples lie under θ ([membership](../audit.md)); its AUC is over pairs of one",
        "who has left and somebody who never took part, 0.5 being chance, with a 95 % interval over people. *Lead* is",
        "by how much the examples of those who left are closer together than the others' (mean cosine). *Trained anew*",
        "is what perfect unlearning would give.",
    ]
    for name, found in results["sets"].items():
        counts = f"{found['leavers']} leave, {found['stayers']} stay, {found['others']} never took part"
        command = f"`--sets {name} --splits {found['partings']}`"
        lines += [
            "",
            f"## {name}",
            "",
            f"{found['partings']} random partings of the people ({command}); in each {counts}.",
            "",
        ]
        lines += ["| θ | membership AUC | lead |", "|---|---:|---:|"]
        order = [STAY, BEFORE, *(f"after {more} rounds" for more in ROUNDS), ANEW]
        lines += [
            f"| {line} | {_cell(found['lines'][line], 'auc')} | {_cell(found['lines'][line], 'lead')} |"
            for line in order
        ]
    lines += ["", READING, "", f"Made with {results['made_with']}.", ""]
    return "\n".join(lines)


def _cell(figures: dict[str, Any], key: str) -> str:
    numbers = (f"{figures[key][part]:.2f}" for part in ("value", "low", "high"))
    value, low, high = ("0.00" if text == "-0.00" else text.replace("-", "−") for text in numbers)
    return f"{value} ({low} … {high})"


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--sets", default="digits,voices")
    arguments.add_argument("--splits", type=int, default=4)
    arguments.add_argument("--out", type=Path, default=Path("runs/unlearning"))
    arguments.add_argument("--results", type=Path, default=Path("docs/results"))
    given = arguments.parse_args()
    place = given.results / "unlearning.json"
    known = json.loads(place.read_text()) if place.exists() else {"sets": {}}
    for name in given.sets.split(","):
        known["sets"][name] = measure(name, given.splits, given.out)
    known["made_with"] = ", ".join(f"{k} {v}" for k, v in made_with().items())
    write_text(place, json.dumps(known, indent=1) + "\n")
    write_text(place.with_suffix(".md"), page(known))
