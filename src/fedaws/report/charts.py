"""Plots as SVG and tables as HTML, from plain numbers; colours and fonts are left to the style sheet.

Everything that stands in a file is escaped here: labels and names come from files.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

import torch
from markupsafe import Markup
from torch import Tensor

from fedaws.evaluate.catalogue import Form, format_value
from fedaws.record.png import png_base64
from fedaws.report.colours import PALETTE

WIDTH, HEIGHT = 400, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 12, 12, 36
_DASHES = ("", "7 4", "2 3", "9 3 2 3", "14 3", "4 2", "9 3 2 3 2 3", "1 5")


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


def dash(colour: int) -> str:
    """The dashes of a line, so that it is told apart without colours too; colour and dashes come again after 64.

    >>> len({(n % 8, dash(n)) for n in range(64)})
    64
    """
    pattern = _DASHES[colour // 32 % 2 * 4 + (colour + colour // 8) % 4]
    return f' stroke-dasharray="{pattern}"' if pattern else ""


def paint(colour: int) -> str:
    """The class in the style sheet."""
    return f"c{colour % len(PALETTE)}"


def swatch(colour: int) -> Markup:
    """A piece of the line, for legends."""
    return Markup(
        f'<svg class="swatch" width="26" height="10" aria-hidden="true"><line class="{paint(colour)}" x1="1" y1="5" '
        f'x2="25" y2="5"{dash(colour)}/></svg>'
    )


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
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(number * step, 12) + 0.0 for number in range(first, last + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    powers = range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1)
    every = max(1, -(-len(powers) // 5))
    return [10.0**p for p in powers[::every]]


@dataclass(frozen=True)
class _Scale:
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


def _scales(lines: Sequence[Line], axes: Axes) -> tuple[_Scale, _Scale]:
    xs = [x for line in lines for x in line.x]
    ys = [y for line in lines for y in [*line.y, *line.low, *line.high]]
    low = min(ys) if axes.low is None else min(axes.low, *ys)
    high = max(ys) if axes.high is None else max(axes.high, *ys)
    log = axes.log and high > 0
    if log:
        positive = [y for y in ys if y > 0]
        low = max(min(positive), high / 1e6)
        low, high = 10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high) + 1e-9)
    elif high - low < 1e-9:
        low, high = low - 0.5, high + 0.5
    else:
        pad = 0.04 * (high - low)
        low, high = low - pad * (axes.low is None or low < axes.low), high + pad
    start = 0.0 if min(xs) >= 0 else min(xs)
    across = _Scale(start, max(*xs, start + 1), _LEFT, WIDTH - _RIGHT)
    return across, _Scale(low, high, HEIGHT - _BOTTOM, _TOP, log)


def _tick_label(value: float, form: Form) -> str:
    if form == "percent":
        return f"{100 * value:g} %"
    if form != "seconds" and abs(value) >= 10_000:
        return f"{value / 1000:g}k"
    return format_value(value, form)


def _frame(across: _Scale, up: _Scale, axes: Axes) -> list[str]:
    parts = []
    for value in _log_ticks(up.low, up.high) if up.log else ticks(up.low, up.high):
        y = up(value)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick end" x="{_LEFT - 6}" y="{y + 4:.1f}">{_tick_label(value, axes.form)}</text>')
    for value in ticks(across.low, across.high):
        if axes.x == "round" and not value.is_integer():
            continue
        x = across(value)
        parts.append(f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{HEIGHT - _BOTTOM}" y2="{HEIGHT - 32}"/>')
        parts.append(f'<text class="tick mid" x="{x:.1f}" y="{HEIGHT - 19}">{_tick_label(value, "number")}</text>')
    base = HEIGHT - _BOTTOM
    parts.append(f'<line class="axis" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{base}" y2="{base}"/>')
    parts.append(f'<text class="name mid" x="{(_LEFT + WIDTH - _RIGHT) / 2}" y="{HEIGHT - 4}">{escape(axes.x)}</text>')
    return parts


# --- lines ----------------------------------------------------------------------------------------------------------


def line_chart(lines: Sequence[Line], axes: Axes, key: str, ends: bool = True) -> tuple[Markup, dict[str, Any]]:
    """The chart, and what the page's script needs to tell values under the pointer."""
    across, up = _scales(lines, axes)
    parts = _frame(across, up, axes)
    for line in lines:
        if line.low and len(line.x) > 1:
            edge = [f"{across(x):.1f},{up(y):.1f}" for x, y in zip(line.x, line.high, strict=True)]
            back = [f"{across(x):.1f},{up(y):.1f}" for x, y in zip(line.x, line.low, strict=True)]
            parts.append(f'<polygon class="band {paint(line.colour)}" points="{" ".join(edge + back[::-1])}"/>')
    for line in lines:
        points = [(across(x), up(y)) for x, y in zip(line.x, line.y, strict=True)]
        kind = "curve faint" if line.faint else "curve"
        pattern = ' stroke-dasharray="1 4"' if line.faint else dash(line.colour)
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline class="{kind} {paint(line.colour)}" points="{path}"{pattern}/>')
        if ends and not line.faint:
            x, y = points[-1]
            parts.append(f'<circle class="end {paint(line.colour)}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>')
    about = f"{axes.title}. " + "; ".join(
        f"{line.label} ends at {format_value(line.y[-1], axes.form)}" for line in lines if not line.faint and ends
    )
    svg = Markup(
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" tabindex="0" data-chart="{escape(key)}" '
        f'aria-label="{escape(about)}">{"".join(parts)}'
        f'<g class="cursor" hidden><line y1="{_TOP}" y2="{HEIGHT - _BOTTOM}"/></g></svg>'
    )
    data = {
        "form": axes.form,
        "x": [across.low, across.high, across.start, across.end],
        "y": [up.low, up.high, up.start, up.end],
        "log": up.log,
        "lines": [
            {"label": line.label, "colour": line.colour % len(PALETTE), "x": line.x, "y": _short(line.y)}
            | ({"low": _short(line.low), "high": _short(line.high)} if line.low else {})
            for line in lines
        ],
    }
    return svg, data


def _short(values: Iterable[float]) -> list[float]:
    return [float(f"{value:.5g}") for value in values]


def steps_chart(lines: Sequence[Line], axes: Axes, key: str) -> tuple[Markup, dict[str, Any]]:
    """Histograms over each other: every bin a step."""
    drawn = []
    for line in lines:
        half = (line.x[1] - line.x[0]) / 2 if len(line.x) > 1 else 0.5
        xs = [edge for x in line.x for edge in (x - half, x + half)]
        drawn.append(Line(line.label, line.colour, xs, [y for y in line.y for _ in "12"]))
    return line_chart(drawn, axes, key, ends=False)


# --- classes in the plane -------------------------------------------------------------------------------------------


def plane(
    places: Sequence[Sequence[tuple[float, float] | None]],
    names: Sequence[str],
    colour: int,
    number: int,
    zoom: float,
    about: str,
) -> Markup:
    """The classes in the plane: where they are in the last round, where they began, and their ways if few."""
    few = len(names) <= 40
    parts = []
    for radius in (r for r in (0.25, 0.5, 0.75, 1.0) if zoom * r <= 110):
        parts.append(f'<circle class="disc" r="{zoom * radius:.1f}"/>')
        parts.append(f'<text class="tick mid" x="0" y="{zoom * radius + 3:.1f}">{radius:g}</text>')
    for at in range(len(names)):
        points = [(zoom * p[0], -zoom * p[1]) for place in places if (p := place[at]) is not None]
        if few and points:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            x, y = points[0]
            parts.append(f'<polyline class="way {paint(colour)}" points="{path}"/>')
            parts.append(f'<circle class="from {paint(colour)}" cx="{x:.1f}" cy="{y:.1f}" r="2.2"/>')
    for at, name in enumerate(names):
        end = places[-1][at]
        x, y = (zoom * end[0], -zoom * end[1]) if end else (0.0, 0.0)
        label = f"<text>{escape(name)}</text>" if few and len(name) <= 2 else ""
        size = 7 if label else (4 if few else 2.4)
        parts.append(
            f'<g class="dot{" named" * bool(label)} {paint(colour)}" style="transform:translate({x:.1f}px,{y:.1f}px)" '
            f'data-tip="class {escape(name)}"><circle r="{size}"/>{label}</g>'
        )
    return Markup(
        f'<svg class="plane" viewBox="-112 -112 224 224" role="img" data-plane="{number}" '
        f'aria-label="{escape(about)}">{"".join(parts)}</svg>'
    )


# --- matrices -------------------------------------------------------------------------------------------------------


def heat_table(
    cells: Sequence[Sequence[float]], names: Sequence[str], text: Sequence[Sequence[str]], caption: str, corner: str
) -> Markup:
    """A table whose cells are coloured by their values from −1 (one colour) over 0 (none) to 1 (the other)."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    body = []
    for name, row, words in zip(names, cells, text, strict=True):
        tds = "".join(
            f'<td class="{"neg" if value < 0 else "pos"}{" strong" if abs(value) > 0.55 else ""}" '
            f'style="--a:{100 * min(1, abs(value)):.0f}%">{escape(word)}</td>'
            for value, word in zip(row, words, strict=True)
        )
        body.append(f'<tr><th scope="row">{escape(name)}</th>{tds}</tr>')
    return Markup(
        f'<table class="heat"><caption>{escape(caption)}</caption><thead><tr><th class="corner">{escape(corner)}</th>'
        f"{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
    )


def heat_image(values: Tensor, about: str, key: str) -> Markup:
    """A matrix from −1 to 1 as an image, transparent at 0: it lies on any background."""
    strength = (values.abs().clamp(0, 1).sqrt() * 255).round()
    red, blue = torch.tensor([214, 69, 61]), torch.tensor([44, 127, 196])
    colour = torch.where((values < 0)[..., None], blue, red)
    pixels = torch.cat([colour, strength[..., None]], 2).to(torch.uint8)
    return Markup(
        f'<img class="heat" data-matrix="{key}" alt="{escape(about)}" src="data:image/png;base64,{png_base64(pixels)}">'
    )


# --- bars and dots --------------------------------------------------------------------------------------------------


def dot_plot(
    names: Sequence[str], series: Sequence[tuple[str, int, Sequence[float | None]]], low: float, about: str
) -> Markup:
    """A line for each name, and on it a dot for each series, from `low` to 1."""
    left, width, step = 24 + 7 * min(16, max(map(len, names), default=1)), 400, 22
    height = step * len(names) + 34
    across = _Scale(low, 1.0, left, width - 16)
    parts = []
    for value in ticks(low, 1.0):
        x = across(value)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="4" y2="{height - 28}"/>')
        parts.append(f'<text class="tick mid" x="{x:.1f}" y="{height - 12}">{100 * value:g} %</text>')
    for row, name in enumerate(names):
        y = 16 + step * row
        parts.append(f'<line class="grid" x1="{left}" x2="{width - 16}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text class="tick end" x="{left - 10}" y="{y + 4}">{escape(name[:16])}</text>')
        for place, (label, colour, values) in enumerate(series):
            aside = (place - (len(series) - 1) / 2) * min(3.0, 10 / len(series))  # equal values stay to be seen
            share = values[row]
            if share is not None:
                tip = f"{label}, {name}: {format_value(share, 'percent')}"
                parts.append(
                    f'<circle class="mark {paint(colour)}" cx="{across(share):.1f}" cy="{y + aside:.1f}" r="4.5" '
                    f'data-tip="{escape(tip)}"/>'
                )
    head = f'<svg class="dots" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(about)}">'
    return Markup(f"{head}{''.join(parts)}</svg>")


def bars(rows: Sequence[tuple[str, Sequence[tuple[str, float]]]], form: Form, about: str) -> Markup:
    """A stacked bar for each row, from (part, value) pairs; the parts are numbered colours of their own."""
    longest = max((sum(value for _, value in parts) for _, parts in rows), default=0.0) or 1.0
    lines = []
    for label, parts in rows:
        total = sum(value for _, value in parts)
        pieces = "".join(
            f'<i class="part p{number}" style="width:{100 * value / longest:.2f}%" '
            f'data-tip="{escape(f"{label}, {name}: {format_value(value, form)}")}"></i>'
            for number, (name, value) in enumerate(parts)
        )
        lines.append(
            f'<div class="bar"><span class="bar-name">{escape(label)}</span><span class="bar-track">{pieces}</span>'
            f'<span class="bar-total">{format_value(total, form)}</span></div>'
        )
    return Markup(f'<div class="bars" role="img" aria-label="{escape(about)}">{"".join(lines)}</div>')


def attendance_grid(names: Sequence[str], rounds: Sequence[int], cells: Sequence[Sequence[str]], about: str) -> Markup:
    """A square for each node and round: full where it answered, crossed where it was dropped, empty if not asked."""
    size, left = 14, 110
    width, height = left + size * len(rounds) + 8, size * len(names) + 30
    parts = []
    for row, name in enumerate(names):
        parts.append(f'<text class="tick end" x="{left - 8}" y="{size * row + 12}">{escape(name[:15])}</text>')
        for column, number in enumerate(rounds):
            state = cells[row][column]
            kind = {"": "absent", "answered": "there"}.get(state, "dropped")
            x, y = left + size * column, size * row + 2
            tip = f"{name}, round {number}: {state or 'not asked'}"
            parts.append(
                f'<rect class="cell {kind}" x="{x}" y="{y}" width="{size - 3}" height="{size - 3}" rx="2" '
                f'data-tip="{escape(tip)}"/>'
            )
            if kind == "dropped":
                a, b, c, d = x + 2.5, x + size - 5.5, y + 2.5, y + size - 5.5
                parts.append(f'<path class="cross" d="M{a} {c}L{b} {d}M{b} {c}L{a} {d}"/>')
    for column in sorted({0, len(rounds) // 2, len(rounds) - 1}):
        middle = left + size * column + (size - 3) / 2
        parts.append(f'<text class="tick mid" x="{middle}" y="{height - 10}">{rounds[column]}</text>')
    return Markup(
        f'<svg class="attendance" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(about)}">{"".join(parts)}</svg>'
    )
