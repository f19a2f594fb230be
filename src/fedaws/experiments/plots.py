"""Precision and class separation by round, one line per method."""

from collections.abc import Collection
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedaws.files import write_bytes
from fedaws.report.colours import PALETTE, colour_of

_LINES = ["-", "--", "-.", ":"]
_LOOK: Any = {"font.size": 11, "axes.spines.top": False, "axes.spines.right": False}

Curve = list[tuple[int, float]]
"""Round and percentage."""


def plot_comparison(histories: dict[str, list[list[dict[str, Any]]]], path: Path, title: str) -> None:
    """Two panels: precision@1 and the largest class cosine, mean over seeds with a band from lowest to highest."""
    with mpl.rc_context(_LOOK):
        figure = Figure(figsize=(10, 4), layout="constrained")
        left, right = figure.subplots(1, 2)
        for method, runs in histories.items():
            style = _style(method, histories)
            _band(left, runs, "precision@1", style, 100)
            _band(right, runs, "max_cosine", style, 1)
        left.set(xlabel="round", ylabel="precision@1 (%)", title="Accuracy on held-out examples", ylim=(0, 101))
        right.set(xlabel="round", ylabel="largest cosine", title="The two closest classes (1 = collapsed)")
        right.axhline(1, color="#bbbbbb", linewidth=1)
        left.legend(frameon=False, loc="lower right")
        figure.suptitle(title)
        _save(figure, path)


def plot_curves(curves: dict[str, list[Curve]], path: Path, title: str, measure: str) -> None:
    """One panel: a measure in percent by round, for each method the mean over its seeds and a band."""
    with mpl.rc_context(_LOOK):
        figure = Figure(figsize=(7, 4), layout="constrained")
        axes = figure.subplots()
        for method, seeds in curves.items():
            common = set.intersection(*({round_num for round_num, _ in curve} for curve in seeds))
            runs = [[{"round": r, measure: value} for r, value in curve if r in common] for curve in seeds]
            # The dot is all there is to see of a run that was measured once.
            _band(axes, runs, measure, _style(method, curves) | {"marker": "o", "markevery": [-1]}, 1)
        axes.set(xlabel="round", ylabel=f"{measure} (%)", title=title, ylim=(0, 101), xlim=(0, None))
        axes.legend(frameon=False, loc="lower right")
        _save(figure, path)


def _style(method: str, methods: Collection[str]) -> dict[str, Any]:
    number = colour_of(method, methods)
    return {"color": PALETTE[number % len(PALETTE)], "linestyle": _LINES[number % len(_LINES)], "label": method}


def _save(figure: Figure, path: Path) -> None:
    image = BytesIO()
    figure.savefig(image, dpi=150, format="png")
    write_bytes(path, image.getvalue())


def _band(axes: Axes, runs: list[list[dict[str, Any]]], name: str, style: dict[str, Any], factor: float) -> None:
    rounds = [row["round"] for row in runs[0]]
    values = np.array([[row[name] * factor for row in rows] for rows in runs])
    axes.plot(rounds, values.mean(0), linewidth=2, **style)
    axes.fill_between(rounds, values.min(0), values.max(0), color=style["color"], alpha=0.15, linewidth=0)
