"""Where the parts of a chart lie, from plain numbers; `charts.html` draws them, and colours are the style sheet's."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import NormalDist
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedaws.evaluate.catalogue import Form, format_value
from fedaws.record.png import png_base64
from fedaws.report.colours import PALETTE

_DASHES = ("", "7 4", "2 3", "9 3 2 3", "14 3", "4 2", "9 3 2 3 2 3", "1 5")
_MOST_WAYS = 40  # classes whose ways are drawn


class Box(NamedTuple):
    """The frame of a chart."""

    width: int = 400
    height: int = 230
    left: int = 48
    right: int = 388
    top: int = 12
    base: int = 194


BOX = Box()
MOST_WRITTEN = 16
"""Classes of a matrix that is written out in figures."""

Point = tuple[float, float]
Ticks = list[tuple[float, str]]
"""Places on an axis and what stands there."""


@dataclass(frozen=True)
class Line:
    """A curve with a band; `colour` is its number in the style sheet. A faint one is only a companion of another."""

    label: str
    colour: int
    x: list[float]
    y: list[float]
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    faint: bool = False


@dataclass(frozen=True)
class Axes:
    """What a chart's axes say."""

    title: str
    x: str
    form: Form = "number"
    low: float | None = None  # of y, if it must be there
    high: float | None = None
    log: bool = False


class Curve(NamedTuple):
    """A line on the page."""

    colour: int
    points: list[Point]
    band: list[Point]
    faint: bool


@dataclass(frozen=True)
class Chart:
    """A chart on the page, and the `data` by which its script tells values under the pointer."""

    key: str
    about: str
    axis: str
    across: Ticks
    up: Ticks
    curves: list[Curve]
    ends: bool  # whether a dot marks where a curve ends
    data: dict[str, Any]


def dash(colour: int) -> str:
    """The dashes of a line, so that it is told apart without colours too; colour and dashes come again after 64.

    >>> len({(n % 8, dash(n)) for n in range(64)})
    64
    """
    return _DASHES[colour // 32 % 2 * 4 + (colour + colour // 8) % 4]


def paint(colour: int) -> str:
    """The class in the style sheet."""
    return f"c{colour % len(PALETTE)}"


# --- axes -----------------------------------------------------------------------------------------------------------


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers between two values.

    >>> ticks(0, 1500), ticks(-0.2, 1)
    ([0.0, 500.0, 1000.0, 1500.0], [-0.2, 0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    """
    width = max(high - low, 1e-300)
    raw = width / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10, 20) if power * factor >= raw * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(number * step, 12) + 0.0 for number in range(first, last + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    powers = range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1)
    every = max(1, -(-len(powers) // 5))
    return [10.0**p for p in powers[::every]]


@dataclass(frozen=True)
class Scale:
    """From a value to its place on the page."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            value, low, high = math.log10(max(value, low)), math.log10(low), math.log10(high)
        part = (value - low) / (high - low) if high > low else 0.5
        return self.start + max(-0.02, min(1.02, part)) * (self.end - self.start)


def _scales(lines: Sequence[Line], axes: Axes) -> tuple[Scale, Scale]:
    """Those of x and y: y with some room above and below, a log axis of six decades at most."""
    xs = [x for line in lines for x in line.x]
    ys = [y for line in lines for y in [*line.y, *line.low, *line.high]]
    low = min(ys) if axes.low is None else min(axes.low, *ys)
    high = max(ys) if axes.high is None else max(axes.high, *ys)
    log = axes.log and high > 0
    if log:
        lowest = max(min(y for y in ys if y > 0), high / 1e6)
        low = 10 ** math.floor(math.log10(lowest))
        high = 10 ** math.ceil(math.log10(high) + 1e-9)
    elif high - low < 1e-9:
        low, high = low - 0.5, high + 0.5
    else:
        pad = 0.04 * (high - low)
        if axes.low is None or low < axes.low:
            low -= pad
        high += pad
    start = 0.0 if min(xs) >= 0 else min(xs)
    return Scale(start, max(*xs, start + 1), BOX.left, BOX.right), Scale(low, high, BOX.base, BOX.top, log)


def _tick_label(value: float, form: Form) -> str:
    if form == "percent":
        return f"{100 * value:g} %"
    if form != "seconds" and abs(value) >= 10_000:
        return f"{value / 1000:g}k"
    return format_value(value, form)


# --- lines ----------------------------------------------------------------------------------------------------------


def line_chart(lines: Sequence[Line], axes: Axes, key: str, ends: bool = True) -> Chart:
    """The lines in one frame."""
    across, up = _scales(lines, axes)

    def places(xs: list[float], ys: list[float]) -> list[Point]:
        return [(across(x), up(y)) for x, y in zip(xs, ys, strict=True)]

    curves = []
    for line in lines:
        band = places(line.x, line.high) + places(line.x, line.low)[::-1] if line.low and len(line.x) > 1 else []
        curves.append(Curve(line.colour, places(line.x, line.y), band, line.faint))
    values = _log_ticks(up.low, up.high) if up.log else ticks(up.low, up.high)
    rounds = [x for x in ticks(across.low, across.high) if axes.x != "round" or x.is_integer()]
    named = [line for line in lines if ends and not line.faint]
    data = {
        "form": axes.form,
        "x": [across.low, across.high, across.start, across.end],
        "y": [up.low, up.high, up.start, up.end],
        "log": up.log,
        "lines": [_line_data(line) for line in lines],
    }
    return Chart(
        key=key,
        about=f"{axes.title}. "
        + "; ".join(f"{line.label} ends at {format_value(line.y[-1], axes.form)}" for line in named),
        axis=axes.x,
        across=[(across(x), _tick_label(x, "number")) for x in rounds],
        up=[(up(y), _tick_label(y, axes.form)) for y in values],
        curves=curves,
        ends=ends,
        data=data,
    )


def _line_data(line: Line) -> dict[str, Any]:
    band = {"low": _short(line.low), "high": _short(line.high)} if line.low else {}
    return {"label": line.label, "colour": line.colour % len(PALETTE), "x": line.x, "y": _short(line.y)} | band


def _short(values: Iterable[float]) -> list[float]:
    return [float(f"{value:.5g}") for value in values]


def histogram_chart(
    counts: Sequence[tuple[str, int, list[int]]], low: float, axes: Axes, key: str, high: float = 1.0
) -> Chart:
    """Histograms from `low` to `high` over each other, by label and colour: shares of their sums, every bin a step."""
    lines = []
    for label, colour, bins in counts:
        edges = [low + i * (high - low) / len(bins) for i in range(len(bins) + 1)]
        xs = [edge for pair in pairwise(edges) for edge in pair]
        lines.append(Line(label, colour, xs, [n / max(1, sum(bins)) for n in bins for _ in "12"]))
    chart = line_chart(lines, axes, key, ends=False)
    chart.data["bins"] = True
    return chart


RATES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4)
"""What stands at the axes of a DET curve."""


def det_chart(curves: Sequence[tuple[str, int, list[float], list[float], float]], axes: Axes, key: str) -> Chart:
    """DET curves by label, colour, FAR, FRR and the least rate that can be shown, on normal deviates: Gaussian scores
    of equal spread give straight lines.
    """
    deviate = NormalDist().inv_cdf
    lines = []
    words = []
    for label, colour, far, frr, least in curves:
        corners = list(zip(far, frr, strict=True))
        corners = [(a, r) for a, r in corners if a <= RATES[-1] and r <= RATES[-1]] or [min(corners, key=sum)]
        across, up = ([deviate(min(max(rate, least), 0.6)) for rate in part] for part in zip(*corners, strict=True))
        lines.append(Line(label, colour, across, up))
        words.append([f"FAR {100 * a:.2f} %, FRR {100 * r:.2f} %" for a, r in corners])
    chart = line_chart(lines, axes, key, ends=False)
    for line, texts in zip(chart.data["lines"], words, strict=True):
        line |= {"x": _short(line["x"]), "told": texts}
    x = Scale(*chart.data["x"])
    y = Scale(*chart.data["y"])
    marks = [(deviate(rate), f"{100 * rate:g} %") for rate in RATES]
    return replace(
        chart,
        across=[(x(at), name) for at, name in marks if x.low <= at <= x.high],
        up=[(y(at), name) for at, name in marks if y.low <= at <= y.high],
    )


# --- classes --------------------------------------------------------------------------------------------------------


def plane(places: Sequence[Sequence[Point | None]], names: Sequence[str], zoom: float, about: str) -> dict[str, Any]:
    """The classes in the plane: where they are in the last round, where they began, and their ways if few."""
    ways = [[(zoom * p[0], -zoom * p[1]) for place in places if (p := place[at])] for at in range(len(names))]
    ends = [(zoom * end[0], -zoom * end[1]) if end else (0.0, 0.0) for end in places[-1]]
    few = len(names) <= _MOST_WAYS
    return {
        "about": about,
        "few": few,
        "rings": [(zoom * r, f"{r:g}") for r in (0.25, 0.5, 0.75, 1.0) if zoom * r <= 110],
        "ways": ways if few else [],
        "dots": [(name, x, y) for name, (x, y) in zip(names, ends, strict=True)],
    }


def matrix(
    shades: Tensor, text: list[list[str]], names: list[str], caption: str, about: str, key: str
) -> dict[str, Any]:
    """A matrix of shades from −1 to 1: of few classes a table with a text in each cell, of many an image."""
    if len(shades) > MOST_WRITTEN:
        return {"image": _image(shades), "about": about, "key": key}
    cells = [list(zip(*rows, strict=True)) for rows in zip(shades.tolist(), text, strict=True)]
    return {"image": None, "caption": caption, "names": [name[:6] for name in names], "cells": cells}


def _image(shades: Tensor) -> str:
    """A PNG, transparent at 0: it lies on any background."""
    blue = torch.tensor([44, 127, 196])
    red = torch.tensor([214, 69, 61])
    colour = torch.where((shades < 0)[..., None], blue, red)
    strength = (shades.abs().clamp(0, 1) * 255).round()
    return png_base64(torch.cat([colour, strength[..., None]], 2).to(torch.uint8))


def dot_plot(
    names: Sequence[str], series: Sequence[tuple[str, int, Sequence[float | None]]], about: str
) -> dict[str, Any]:
    """A line for each name, and on it a dot for each series, from 0 to 1, or from a half where none is below."""
    low = 0.5 if min((v for _, _, values in series for v in values if v is not None), default=0.0) >= 0.5 else 0.0
    scale = Scale(low, 1.0, 24 + 7 * min(16, max(map(len, names), default=1)), BOX.width - 16)
    marks = [(scale(value), f"{100 * value:g} %") for value in ticks(low, 1.0)]
    return {"names": names, "series": series, "scale": scale, "ticks": marks, "about": about}
