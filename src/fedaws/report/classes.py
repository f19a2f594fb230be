"""The classes one by one: where they go, how close they end, which are hard, and what is taken for what."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fedaws.report import charts
from fedaws.report.charts import MOST_WRITTEN, Axes
from fedaws.report.collect import Group
from fedaws.report.draft import PANELS, Draft
from fedaws.report.figures import Figure, Table, class_names, num_classes, percent, spaced, three, two
from fedaws.report.geometry import BINS, Cosines, Motion, cosines, motions
from fedaws.report.run_data import RunData, Trace, class_matrix, traces
from fedaws.report.stored import Details, Pair
from fedaws.report.words import EXAMPLES

_IN_A_TABLE = 8  # rounds
_DOTS = 40  # classes with a line of their own
_PAIRS = 5  # of classes most confused


def motion_section(draft: Draft) -> dict[str, Any] | None:
    """The classes over time, in one plane for all runs of one seed and shape."""
    chosen = [(g, run, steps) for g, run in _of_one_seed(draft.groups[:PANELS]) if (steps := _moving(draft, run))]
    if not chosen:
        return None
    moved: dict[int, Motion] = {}
    falls: list[str] = []
    for shape in dict.fromkeys(steps[-1].rows.shape for _, _, steps in chosen):
        same = [i for i, (_, _, steps) in enumerate(chosen) if steps[-1].rows.shape == shape]
        in_one_plane, fallen = motions([chosen[i][2] for i in same])
        moved |= dict(zip(same, in_one_plane, strict=True))
        if fallen is not None:
            falls.append(chosen[same[fallen]][0].label)
    zoom = 100 / max(0.05, *(math.hypot(*p) for m in moved.values() for at in m.places for p in at if p))
    rounds = sorted({r for motion in moved.values() for r in motion.rounds})
    draft.data["rounds"] = rounds
    table = Table(
        "Largest cosine between two of the classes drawn",
        ["round", *(group.label for group, _, _ in chosen)],
        [[f"{r:,}", *(_at(moved[i], r) for i in range(len(chosen)))] for r in spaced(rounds, _IN_A_TABLE)],
    )
    return {
        "panels": [_plane(draft, g, run, moved[i], zoom) for i, (g, run, _) in enumerate(chosen)],
        "rounds": rounds,
        "table": table,
        "note": _plane_note([(g, run, moved[i]) for i, (g, run, _) in enumerate(chosen)]),
        "few": all(len(motion.classes) <= 40 for motion in moved.values()),
        "falls": falls,
    }


def _of_one_seed(groups: list[Group]) -> list[tuple[Group, RunData]]:
    """Of each group the run with the first seed that all have: those start from the same W."""
    common = set[int].intersection(*({run.config.seed for run in group.runs} for group in groups))
    if not common:
        return [(group, group.shown) for group in groups]
    return [(group, next(run for run in group.runs if run.config.seed == min(common))) for group in groups]


def _moving(draft: Draft, run: RunData) -> list[Trace]:
    steps = [step for step in traces(run, draft.notices) if len(step.classes) > 1]
    return steps if len(steps) > 1 else []


def _plane(draft: Draft, group: Group, run: RunData, motion: Motion, zoom: float) -> dict[str, Any]:
    """A panel, and what the slider needs."""
    names = [class_names(run)(c) for c in motion.classes]
    ends = [(two(motion.largest[i], before=1), motion.rounds[i]) for i in (0, -1)]
    about = f"{group.label}: {len(names)} classes in the plane. The largest cosine between two of them goes from "
    about += " to ".join(f"{cosine} in round {round_num}" for cosine, round_num in ends)
    draft.data["planes"].append(
        {
            "rounds": motion.rounds,
            "places": [[[round(zoom * v, 1) for v in p] if p else None for p in at] for at in motion.places],
            "largest": [round(v, 3) for v in motion.largest],
            "mean": [round(v, 3) for v in motion.mean],
        }
    )
    return {
        "group": group,
        "plane": charts.plane(motion.places, names, zoom, about),
        "last": f"largest cosine {ends[1][0]}\nmean {two(motion.mean[-1], before=1)}",
    }


def _plane_note(panels: list[tuple[Group, RunData, Motion]]) -> str:
    """Which classes are drawn, and how much of them a plane can show."""
    seeds = dict.fromkeys(run.config.seed for _, run, _ in panels)
    classes = dict.fromkeys(_part_of(len(motion.classes), num_classes(run) or 0) for _, run, motion in panels)
    shares = ", ".join(f"{percent(motion.share)} ({group.label})" for group, _, motion in panels)
    if len(panels) > 4:  # too many to be read one by one
        parts = [motion.share for _, _, motion in panels]
        shares = f"{percent(min(parts))} to {percent(max(parts))}"
    seed = f"{'Seeds' if len(seeds) > 1 else 'Seed'} {', '.join(map(str, seeds))}"
    part = "A plane shows only a part of so many dimensions, of the rows' squared length"
    return f"{seed}; {', '.join(classes)}. {part} {shares}."


def _part_of(drawn: int, total: int) -> str:
    return f"{drawn} of {total:,} classes" if total > drawn else f"all {drawn} classes"


def cosine_section(draft: Draft) -> dict[str, Any] | None:
    """Matrices of few classes; histogram and nearest pairs of many."""
    groups = [group for group in draft.groups[:PANELS] if group.shown.weights is not None]
    pairs = [(g, cosines(W, len(groups))) for g in groups if (W := class_matrix(g.shown, draft.notices)) is not None]
    if not pairs:
        return None
    many = [(group, cosine) for group, cosine in pairs if cosine.classes > MOST_WRITTEN]
    return {
        "panels": [_cosine_panel(draft, group, cosine, number) for number, (group, cosine) in enumerate(pairs)],
        "histogram": _histogram(draft, many) if many else None,
    }


def _cosine_panel(draft: Draft, group: Group, cosine: Cosines, number: int) -> dict[str, Any]:
    name = class_names(group.shown)
    many = cosine.classes > MOST_WRITTEN
    matrix = None
    if cosine.matrix is not None:
        values = cosine.matrix.clone().fill_diagonal_(0)
        shades = values.sign() * values.abs().sqrt() if many else values  # small cells need strong colours
        text = [["" if i == j else two(v) for j, v in enumerate(row)] for i, row in enumerate(values.tolist())]
        about = f"Cosines between all {cosine.classes} classes of {group.label}; the nearest pairs stand below."
        seed = f"seed {group.shown.config.seed}"
        matrix = _matrix(draft, f"cosine-{number}", values, shades, text, name, (seed, about, "cosine"))
    among = "" if cosine.searched == cosine.classes else f", searched for {cosine.searched:,} of them"
    rows = [[name(a), name(b), three(value)] for a, b, value in cosine.pairs]
    pairs = Table(f"Nearest pairs of {cosine.classes:,} classes{among}", ["class", "class", "cosine"], rows)
    return {"group": group, "matrix": matrix, "pairs": pairs if many else None}


def _histogram(draft: Draft, many: list[tuple[Group, Cosines]]) -> Figure:
    title = "Cosines between classes"
    counts = [(group.label, group.colour, cosine.histogram) for group, cosine in many]
    chart = draft.add(charts.histogram_chart(counts, -1.0, Axes(title, "cosine", "percent", 0.0), "cosines"))
    rows = [[g.label, three(c.mean), three(c.pairs[0][2]) if c.pairs else "–", _share_above(c, 0.5)] for g, c in many]
    head = ["method", "mean cosine", "largest", "pairs above 0.5"]
    note = "Share of pairs by cosine; of many classes the pairs of a thousand."
    return Figure(title, note, chart, Table(title, head, rows))


def _matrix(
    draft: Draft,
    key: str,
    values: Tensor,
    shades: Tensor,
    text: list[list[str]],
    name: Callable[[int], str],
    words: tuple[str, str, str],
) -> dict[str, Any]:
    """A matrix, in `words` its caption, what it is, and its unit; of an image the page's script gets the values."""
    caption, about, unit = words
    names = [name(i) for i in range(len(values))]
    matrix = charts.matrix(shades, text, names, caption, about, key)
    if matrix["image"]:
        percent = [[round(100 * v) for v in row] for row in values.tolist()]
        draft.data["matrices"][key] = {"values": percent, "names": [name[:24] for name in names], "what": unit}
    return matrix


def class_section(draft: Draft) -> dict[str, Any] | None:
    """Per-class precision: dots of few classes, a histogram of many and the hardest of them."""
    examined = [(group, details) for group in draft.groups if (details := group.shown.details)]
    if not examined:
        return None
    first, details = examined[0]
    comparable = [(g, d) for g, d in examined if _subject(g.shown) == _subject(first.shown)]
    tested = sorted({c for _, d in comparable for c in d.classes})
    section = _dots(comparable, tested) if len(tested) <= _DOTS else _class_histogram(draft, comparable)
    what = EXAMPLES[first.shown.tested_on]
    share = f"that carry its label, the share for which it is among the best {details.best_of}"
    note = f"Of the {what} {share if details.label_sets else 'of a class, the share whose best class it is'}."
    if details.examples < details.test_examples:
        note += f" {details.examples:,} of {details.test_examples:,} {what}, evenly spaced."
    if len(comparable) < len(draft.groups):
        note += f" Only examined runs on the data of {first.label}."
    return section | {"note": note}


def _subject(run: RunData) -> tuple[object, ...]:
    """Runs of different subjects have different classes."""
    return run.own_data, run.config.data.name, num_classes(run), run.tested_on


Examined = list[tuple[Group, Details]]


def _dots(examined: Examined, tested: list[int]) -> dict[str, Any]:
    name = class_names(examined[0][0].shown)
    series: list[tuple[str, int, list[float | None]]] = []
    for group, d in examined:
        share = {c: right / n for c, right, n in zip(d.classes, d.right, d.count, strict=True) if n}
        series.append((group.label, group.colour, [share.get(c) for c in tested]))
    about = f"Share of each class's examples that are right: {len(tested)} classes, {len(examined)} methods."
    dots = charts.dot_plot([name(c) for c in tested], series, about)
    rows = [[name(c), *(percent(values[i]) for _, _, values in series)] for i, c in enumerate(tested)]
    table = Table("Per class", ["class", *(label for label, _, _ in series)], rows)
    return {"title": "Share of each class that is right", "dots": dots, "table": table}


def _class_histogram(draft: Draft, examined: Examined) -> dict[str, Any]:
    title = "Share of the classes by their precision"
    axes = Axes(title, "share of a class's examples that are right", "percent", 0.0)
    counts = [(group.label, group.colour, details.histogram) for group, details in examined]
    chart = draft.add(charts.histogram_chart(counts, 0.0, axes, "classes"))
    rows = []
    for group, d in examined:
        name = class_names(group.shown)
        ranked = sorted(zip(d.classes, d.right, d.count, strict=True), key=lambda c: (c[1] / max(1, c[2]), -c[2]))
        rows += [[group.label, name(c), f"{right} of {n}"] for c, right, n in ranked[:5]]
    table = Table("The hardest classes, those with most examples first", ["method", "class", "right"], rows)
    return {"title": title, "dots": None, "chart": chart, "table": table}


def confusion_section(draft: Draft) -> list[dict[str, Any]]:
    """What is taken for what: a matrix of few classes, and the worst pairs with examples."""
    examined = [(group, details) for group in draft.groups[:PANELS] if (details := group.shown.details)]
    shares = [_confusions(details.confusion) for _, details in examined]
    largest = max((float(wrong.max()) for wrong in shares if wrong is not None), default=0.0) or 1.0
    panels = zip(examined, shares, strict=True)
    return [
        _confusion_panel(draft, group, details, wrong, largest, number)
        for number, ((group, details), wrong) in enumerate(panels)
    ]


def _confusions(counts: list[list[int]] | None) -> Tensor | None:
    """Of each true class the share taken for each other one, [C, C]."""
    if not counts:
        return None
    matrix = torch.tensor(counts, dtype=torch.float64)
    return (matrix / matrix.sum(1, keepdim=True).clamp_min(1)).fill_diagonal_(0)


def _confusion_panel(
    draft: Draft, group: Group, details: Details, wrong: Tensor | None, largest: float, number: int
) -> dict[str, Any]:
    """`largest` of all panels has the full colour: the same colour is the same share everywhere."""
    name = class_names(group.shown)
    matrix = None
    if wrong is not None:
        shades = (wrong / largest).sqrt()  # a single error is to be seen too
        text = [[f"{n}" if n else "·" for n in row] for row in details.confusion or []]
        about = f"Confusions of {group.label}: rows are true, columns taken for; the worst stand below."
        words = "rows are true, columns what they are taken for", about, "% of the first are taken for the second"
        matrix = _matrix(draft, f"confusion-{number}", wrong, shades, text, name, words)
    return {
        "group": group,
        "details": details,
        "what": EXAMPLES[group.shown.tested_on],
        "matrix": matrix,
        "name": name,
        "pairs": [_with_sound_images(pair) for pair in details.pairs[:_PAIRS]],
    }


def _with_sound_images(pair: Pair) -> Pair:
    """At most four of its images, and none beyond its examples."""
    images = [image for image in pair.images if _is_base64(image)]
    return pair.model_copy(update={"images": images[: min(4, len(pair.examples))]})


def _share_above(cosine: Cosines, limit: float) -> str:
    """Of the histogram's pairs."""
    first = round((limit + 1) * BINS / 2)
    return percent(sum(cosine.histogram[first:]) / max(1, sum(cosine.histogram)))


def _at(motion: Motion, round_num: int) -> str:
    earlier = [value for r, value in zip(motion.rounds, motion.largest, strict=True) if r <= round_num]
    return three(earlier[-1]) if earlier else "–"


def _is_base64(text: str) -> bool:
    return text.replace("+", "A").replace("/", "A").rstrip("=").isalnum() and text.isascii() and len(text) < 60_000
