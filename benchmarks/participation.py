"""How local steps and participation change a run: CIFAR-10, ResNet-8, the same number of examples for all.

    python benchmarks/participation.py [--out runs/participation] [--results docs/results]

A killed run goes on where it was; a finished one is only read. Writes participation.json, .md and .png.
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

import fedaws
from fedaws import config
from fedaws.files import write_text
from fedaws.training.session import Reporter

EXAMPLES = 250_000  # five times the training set
BATCH = 8


@dataclass(frozen=True)
class Variant:
    """Some clients of some, and their steps in a round."""

    label: str
    name: str
    clients: int
    steps: int
    settings: tuple[str, ...] = ()

    @property
    def examples_per_round(self) -> int:
        return self.clients * self.steps * BATCH

    @property
    def rounds(self) -> int:
        return EXAMPLES // self.examples_per_round

    def configuration(self) -> config.Config:
        every = max(1, self.rounds // 10)
        return config.load("cifar10-resnet8").override(
            [
                f"clients.local_steps={self.steps}",
                f"clients.examples_per_step={BATCH}",
                f"train.rounds={self.rounds}",
                f"train.warmup={self.rounds // 50}",
                f"train.evaluate_every={every}",
                f"train.checkpoint_every={every}",
                *self.settings,
            ]
        )


AVERAGING = ("server.optimizer=sgd", "server.lr=1", "server.momentum=0", "clients.lr=0.1")
VARIANTS = [
    Variant("10 of 10 clients, 1 step", "all-1", 10, 1),
    Variant("10 of 10 clients, 5 steps", "all-5", 10, 5, ("clients.lr=0.02", "server.lr=0.15")),
    Variant("10 of 10 clients, one epoch (625 steps), plain averaging", "all-epoch", 10, 625, AVERAGING),
    Variant("5 of 10 clients, 1 step", "half-1", 5, 1, ("clients.per_round=5",)),
    Variant("20 of 100 clients, 1 step", "fifth-1", 20, 1, ("data.clients_per_class=10", "clients.per_round=20")),
]


def run(variant: Variant, out: Path) -> dict[str, Any]:
    say = Reporter(
        on_metrics=lambda m: print(f"{variant.label}: round {m['round']}, {m['precision@1']:.3f}", flush=True)
    )
    done = fedaws.train(config=variant.configuration(), folder=out / variant.name, resume=True, reporter=say)
    curve = [[m["round"], round(100 * m["precision@1"], 2)] for m in done.metrics]
    changed = [*variant.settings, f"clients.local_steps={variant.steps}"]
    return {
        "label": variant.label,
        "rounds": variant.rounds,
        "examples_per_round": variant.examples_per_round,
        "settings": changed,
        "max_cosine": round(done.metrics[-1]["max_cosine"], 3),
        "curve": curve,
    }


def page(results: list[dict[str, Any]]) -> str:
    lines = [
        "# Local steps and participation",
        "",
        "Made by `python benchmarks/participation.py` from [participation.json](participation.json), and not by hand.",
        f"CIFAR-10, ResNet-8, `fedaws`, seed 0; every run sees {EXAMPLES:,} examples, five times the training set,",
        "and has a schedule of that length: enough to show the differences, not the best that can be reached.",
        "The step sizes for five local steps are the best of a few tried on held-out images;",
        "those for an epoch of them were not tuned.",
        "",
        "![test precision@1 by examples seen](participation.png)",
        "",
        "| clients and steps | rounds | test precision@1 (%) | largest class cosine | settings beside the preset's |",
        "|---|---:|---:|---:|---|",
    ]
    for r in results:
        settings = ", ".join(f"`{s}`" for s in r["settings"])
        last = r["curve"][-1][1]
        lines.append(f"| {r['label']} | {r['rounds']:,} | {last:.1f} | {r['max_cosine']:.2f} | {settings} |")
    return "\n".join(lines) + "\n"


def plot(results: list[dict[str, Any]], path: Path) -> None:
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for r, line in zip(results, ["-", "--", "-.", ":", (0, (5, 1))], strict=True):
        seen = [r["examples_per_round"] * n / 1000 for n, _ in r["curve"]]
        axes.plot(seen, [v for _, v in r["curve"]], linestyle=line, linewidth=2, label=r["label"])
    axes.set(xlabel="thousand examples seen", ylabel="test precision@1 (%)", ylim=(0, 100))
    axes.legend(frameon=False, fontsize=9)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--out", type=Path, default=Path("runs/participation"))
    arguments.add_argument("--results", type=Path, default=Path("docs/results"))
    given = arguments.parse_args()
    found = [run(variant, given.out) for variant in VARIANTS]
    write_text(given.results / "participation.json", json.dumps(found, indent=1) + "\n")
    write_text(given.results / "participation.md", page(found))
    plot(found, given.results / "participation.png")
