"""The demo as a result: four methods on handwritten digits, three seeds, and a picture of what became of the classes.

    python benchmarks/digits.py [--out runs/digits] [--results docs/results] [--images docs/images]

A killed run goes on where it was; a finished one is only read. Writes digits.json and .md, collapse.png and digits.png.
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from torch import Tensor

import fedaws
from fedaws import Reporter, config
from fedaws.core.methods import role_of
from fedaws.core.start import random_rows
from fedaws.data.load import load_data
from fedaws.experiments.compare import compare
from fedaws.experiments.fingerprint import fingerprint
from fedaws.experiments.plots import plot_comparison
from fedaws.files import write_text
from fedaws.models import build_encoder
from fedaws.record.made_with import made_with

SEEDS = 3
SCALE = 4.0  # of the scores in the picture: the larger, the nearer every dot lies to its best class
NAMES = ["positive-only", "fixed", "fedaws", "softmax"]
HAVE = {
    "positive-only": "one class, own row",
    "fixed": "one class, own row, never trained",
    "fedaws": "one class, own row",
    "softmax": "one class, but all of W",
}
# One colour a digit, told apart also by the digit that is written beside it.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#999933", "#44AA99", "#555555"]
INK, FAINT = "#24292f", "#d0d7de"


def measured(out: Path) -> dict[str, Any]:
    """What the demo prints, as data."""

    def reporter(cfg: config.Config) -> Reporter:
        return Reporter(on_start=lambda done, rounds: print(f"{cfg.method}, seed {cfg.seed}", flush=True))

    found = compare(NAMES, config=config.load("digits"), seeds=SEEDS, folder=out, resume=True, reporter=reporter)
    shown = ("precision@1", "max_cosine")
    summary = {method: {name: of[name] for name in shown} for method, of in found.summary.items()}
    curves = {method: [[_short(row) for row in rows] for rows in runs] for method, runs in found.histories.items()}
    machine = json.loads((out / f"{NAMES[0]}-seed0" / "made_with.json").read_text())
    stamps = {method: fingerprint(config.load("digits").with_(method=method)) for method in NAMES}
    made = {"made_with": machine or made_with(), "fingerprints": stamps, "seeds": SEEDS}
    return made | {"methods": summary, "curves": curves}


def _short(row: dict[str, Any]) -> dict[str, Any]:
    return {"round": row["round"], **{name: round(row[name], 4) for name in ("precision@1", "max_cosine")}}


def table(results: dict[str, Any]) -> list[str]:
    """The lines of the table in the README and on the page."""
    lines = ["| method | clients have | precision@1 (%) | largest class cosine |", "|---|---|---:|---:|"]
    for method, of in results["methods"].items():
        name, bold = f"`{method}` ({role_of(method)})", "**" * (method == "fedaws")
        precision = f"{100 * of['precision@1']['mean']:.1f} ± {100 * of['precision@1']['std']:.1f}"
        cosine = f"{of['max_cosine']['mean']:.2f}".replace("-0.00", "0.00").replace("-", "−")
        lines.append(f"| {name} | {HAVE[method]} | {bold}{precision}{bold} | {cosine} |")
    return lines


def page(results: dict[str, Any]) -> str:
    """The page, in Markdown."""
    made = ", ".join([f"torch {results['made_with']['torch']}", results["made_with"]["machine"]])
    lines = [
        "# Digits: the demo",
        "",
        "Made by `python benchmarks/digits.py` from [digits.json](digits.json), and not by hand.",
        "`make demo` runs the same: the preset `digits`, ten clients with one digit each, 1,347 examples of 8 × 8",
        f"pixels in all, tested on 450 others; mean ± standard deviation over {results['seeds']} seeds ({made}).",
        "The preset was tuned for `fedaws` on held-out training examples; the others have its settings. On another",
        "processor the same code comes to other last digits: an example or two of the 450 a seed.",
        "",
        *table(results),
        "",
        "![where the test digits lie before training, without and with spreadout](../images/collapse.png)",
        "",
        "Each dot is a test digit. Every class has a place on the circle, and a digit lies between them in",
        f"proportion to softmax({SCALE:g} w_c · g(x)); the same rule in all three pictures, seed 0. Where all classes",
        "are one, all scores are equal: the centre.",
        "",
        "![precision and largest class cosine by round](../images/digits.png)",
    ]
    return "\n".join(lines) + "\n"


def between(g: Tensor, W: Tensor, scale: float) -> Tensor:
    """Where examples lie between the classes' places on a circle, each class weighed by the softmax of its score."""
    return torch.softmax(scale * g @ W.T, dim=1) @ places(len(W))


def places(classes: int) -> Tensor:
    """Points on the unit circle, clockwise from the top."""
    angles = math.pi / 2 - 2 * math.pi * torch.arange(classes) / classes
    return torch.stack([angles.cos(), angles.sin()], 1)


def draw(axes: Axes, at: Tensor, y: Tensor, title: str, below: str) -> None:
    """One panel."""
    axes.add_patch(Circle((0, 0), 1, facecolor="#f6f8fa", edgecolor=FAINT, linewidth=1.2, zorder=0))
    mixed = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))  # no digit above all others
    colours = [COLOURS[c] for c in y[mixed].tolist()]
    axes.scatter(at[mixed, 0], at[mixed, 1], s=26, c=colours, alpha=0.7, linewidth=0.4, edgecolor="white", zorder=2)
    for c, (x, height) in enumerate(places(len(COLOURS)).tolist()):
        style: dict[str, Any] = {"fontsize": 15, "fontweight": "bold", "ha": "center", "va": "center"}
        axes.text(1.17 * x, 1.17 * height, str(c), color=COLOURS[c], **style)
    axes.set(xlim=(-1.3, 1.3), ylim=(-1.3, 1.3), aspect="equal")
    axes.axis("off")
    axes.set_title(title, fontsize=16, fontweight="bold", color=INK, pad=10)
    axes.text(0, -1.33, below, ha="center", va="top", fontsize=13, color=INK, linespacing=1.4)


def picture(out: Path, path: Path) -> None:
    """Before training, without spreadout, with it."""
    cfg = config.load("digits")
    data = load_data(cfg)
    encoder = build_encoder(cfg.model, data.x.shape[1:], cfg.seed)
    with torch.no_grad():
        start = torch.nn.functional.normalize(encoder(data.x_test), dim=1)
    W = random_rows(cfg, data.num_classes)
    panels = [("Before training", start, W)]
    for title, method in (("Federated averaging alone", "positive-only"), ("FedAwS: the server spreads", "fedaws")):
        run = fedaws.load(out / f"{method}-seed0")
        panels.append((title, run.embed(data.x_test), run.W))
    figure = Figure(figsize=(12, 4.9), facecolor="white")
    figure.subplots_adjust(left=0.01, right=0.99, top=0.90, bottom=0.15, wspace=0.04)
    labels = data.y_test
    assert isinstance(labels, Tensor)
    for axes, (title, g, rows) in zip(figure.subplots(1, 3), panels, strict=True):
        right = float(((g @ rows.T).argmax(1) == labels).double().mean())
        cosine = float((rows @ rows.T).fill_diagonal_(-1).max())
        below = f"{100 * right:.0f} % right\ntwo nearest classes at cosine {cosine:.2f}".replace("-", "−")
        draw(axes, between(g, rows, SCALE), labels, title, below)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--out", type=Path, default=Path("runs/digits"))
    arguments.add_argument("--results", type=Path, default=Path("docs/results"))
    arguments.add_argument("--images", type=Path, default=Path("docs/images"))
    given = arguments.parse_args()
    found = measured(given.out)
    write_text(given.results / "digits.json", json.dumps(found, indent=1) + "\n")
    write_text(given.results / "digits.md", page(found))
    picture(given.out, given.images / "collapse.png")
    plot_comparison(found["curves"], given.images / "digits.png", "digits: every client has one class")
