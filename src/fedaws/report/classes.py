"""The classes one by one: where they go, how close they end, which are hard, and what is taken for what."""

import math
from collections.abc import Callable
from typing import Any

import torch
from markupsafe import Markup

from fedaws.evaluate.catalogue import format_value
from fedaws.report import charts
from fedaws.report.charts import Axes, Line
from fedaws.report.collect import Details, Group, Pair, RunData, Trace, class_matrix, traces
from fedaws.report.draft import PANELS, Draft
from fedaws.report.figures import Figure, Table, class_names, num_classes, spaced, three, two
from fedaws.report.geometry import BINS, Cosines, Motion, cosines, motions
from fedaws.report.words import EXAMPLES

_IN_A_TABLE = 8  # rounds
_CELLS = 16  # classes of a matrix that is written out in figures
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
        "panels": [_plane(draft, g, run, moved[i], i, zoom) for i, (g, run, _) in enumerate(chosen)],
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


def _plane(draft: Draft, group: Group, run: RunData, motion: Motion, number: int, zoom: float) -> dict[str, Any]:
    """A panel, and what the slider needs."""
    colour = draft.colours[group.label]
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
        "label": group.label,
        "swatch": charts.swatch(colour),
        "svg": charts.plane(motion.places, names, colour, number, zoom, about),
        "last": f"largest cosine {ends[1][0]}\nmean {two(motion.mean[-1], before=1)}",
    }


def _plane_note(panels: list[tuple[Group, RunData, Motion]]) -> str:
    """Which classes are drawn, and how much of them a plane can show."""
    seeds = dict.fromkeys(run.config.seed for _, run, _ in panels)
    drawn = dict.fromkeys(
        f"{len(motion.classes)} of {total:,} classes" if (total := num_classes(run) or 0) > len(motion.classes)
        else f"all {len(motion.classes)} classes"
        for _, run, motion in panels
    )  # fmt: skip
    shares = ", ".join(f"{format_value(motion.share, 'percent')} ({group.label})" for group, _, motion in panels)
    if len(panels) > 4:  # too many to be read one by one
        parts = [motion.share for _, _, motion in panels]
        shares = f"{format_value(min(parts), 'percent')} to {format_value(max(parts), 'percent')}"
    seed = f"Seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
    part = "A plane shows only a part of so many dimensions, of the rows' squared length"
    return f"{seed}; {', '.join(drawn)}. {part} {shares}."


def cosine_section(draft: Draft) -> dict[str, Any] | None:
    """Matrices of few classes; histogram and nearest pairs of many."""
    groups = [group for group in draft.groups[:PANELS] if group.shown.weights is not None]
    pairs = [(g, cosines(W, len(groups))) for g in groups if (W := class_matrix(g.shown, draft.notices)) is not None]
    if not pairs:
        return None
    many = [(group, cosine) for group, cosine in pairs if cosine.classes > _CELLS]
    return {
        "panels": [_cosine_panel(draft, group, cosine, number) for number, (group, cosine) in enumerate(pairs)],
        "histogram": _histogram(draft, many) if many else None,
    }


def _cosine_panel(draft: Draft, group: Group, cosine: Cosines, number: int) -> dict[str, Any]:
    name = class_names(group.shown)
    count = cosine.classes
    panel: dict[str, Any] = {"label": group.label, "swatch": charts.swatch(draft.colours[group.label])}
    panel |= {"heat": None, "image": None, "pairs": None}
    if cosine.matrix is not None and count <= _CELLS:
        cells = cosine.matrix.clone().fill_diagonal_(0).tolist()
        text = [["" if i == j else two(v) for j, v in enumerate(row)] for i, row in enumerate(cells)]
        caption = f"seed {group.shown.config.seed}"
        return panel | {"heat": charts.heat_table(cells, [name(i)[:6] for i in range(count)], text, caption, "")}
    if cosine.matrix is not None:
        matrix = cosine.matrix.clone().fill_diagonal_(0)
        about = f"Cosines between all {count} classes of {group.label}; the nearest pairs stand below."
        panel["image"] = charts.heat_image(matrix, about, f"cosine-{number}")
        _keep_matrix(draft, f"cosine-{number}", matrix.tolist(), name, "cosine")
    among = "" if cosine.searched == count else f", searched for {cosine.searched:,} of them"
    rows = [[name(a), name(b), three(value)] for a, b, value in cosine.pairs]
    return panel | {"pairs": Table(f"Nearest pairs of {count:,} classes{among}", ["class", "class", "cosine"], rows)}


def _histogram(draft: Draft, many: list[tuple[Group, Cosines]]) -> Figure:
    centres = [-1 + (2 * i + 1) / BINS for i in range(BINS)]
    lines = [
        Line(g.label, draft.colours[g.label], centres, [n / max(1, sum(c.histogram)) for n in c.histogram])
        for g, c in many
    ]
    axes = Axes("Cosines between classes", "cosine", "percent", 0.0)
    svg, draft.data["charts"]["cosines"] = _shifted(charts.steps_chart(lines, axes, "cosines"))
    rows = [[g.label, three(c.mean), three(c.pairs[0][2]) if c.pairs else "–", _share_above(c, 0.5)] for g, c in many]
    head = ["method", "mean cosine", "largest", "pairs above 0.5"]
    note = "Share of pairs by cosine; of many classes the pairs of a thousand."
    return Figure("Cosines between classes", note, svg, Table("Cosines between classes", head, rows))


def _keep_matrix(draft: Draft, key: str, rows: list[list[float]], name: Callable[[int], str], what: str) -> None:
    """Values under the pointer."""
    values = [[round(100 * v) for v in row] for row in rows]
    draft.data["matrices"][key] = {"values": values, "names": [name(i)[:24] for i in range(len(rows))], "what": what}


def class_section(draft: Draft) -> dict[str, Any] | None:
    """Per-class precision: dots of few classes, a histogram of many and the hardest of them."""
    examined = [(group, details) for group in draft.groups if (details := group.shown.details)]
    if not examined:
        return None
    first, details = examined[0]
    comparable = [(g, d) for g, d in examined if _subject(g.shown) == _subject(first.shown)]
    tested = sorted({c for _, d in comparable for c in d.classes})
    dots = len(tested) <= _DOTS
    plot, table = _dots(draft, comparable, tested) if dots else _class_histogram(draft, comparable)
    what = EXAMPLES[first.shown.tested_on]
    share = f"that carry its label, the share for which it is among the best {details.best_of}"
    note = f"Of the {what} {share if details.label_sets else 'of a class, the share whose best class it is'}."
    if details.examples < details.test_examples:
        note += f" {details.examples:,} of {details.test_examples:,} {what}, evenly spaced."
    if len(comparable) < len(draft.groups):
        note += f" Only examined runs on the data of {first.label}."
    title = "Share of each class that is right" if dots else "Share of the classes by their precision"
    return {"title": title, "plot": plot, "table": table, "note": note}


def _subject(run: RunData) -> tuple[object, ...]:
    """Runs of different subjects have different classes."""
    return run.own_data, run.config.data.name, num_classes(run), run.tested_on


Examined = list[tuple[Group, Details]]


def _dots(draft: Draft, examined: Examined, tested: list[int]) -> tuple[Markup, Table]:
    name = class_names(examined[0][0].shown)
    series: list[tuple[str, int, list[float | None]]] = []
    for group, d in examined:
        share = {c: right / n for c, right, n in zip(d.classes, d.right, d.count, strict=True) if n}
        series.append((group.label, draft.colours[group.label], [share.get(c) for c in tested]))
    worst = min((v for _, _, values in series for v in values if v is not None), default=0.0)
    about = f"Share of each class's examples that are right: {len(tested)} classes, {len(examined)} methods."
    plot = charts.dot_plot([name(c) for c in tested], series, 0.5 if worst >= 0.5 else 0.0, about)
    rows = [[name(c), *(_percent(values[i]) for _, _, values in series)] for i, c in enumerate(tested)]
    return plot, Table("Per class", ["class", *(label for label, _, _ in series)], rows)


def _percent(value: float | None) -> str:
    return "–" if value is None else format_value(value, "percent")


def _class_histogram(draft: Draft, examined: Examined) -> tuple[Markup, Table]:
    lines = []
    rows = []
    for group, d in examined:
        bins = len(d.histogram)
        name = class_names(group.shown)
        centres = [(2 * i + 1) / (2 * bins) for i in range(bins)]
        part = [n / max(1, sum(d.histogram)) for n in d.histogram]
        lines.append(Line(group.label, draft.colours[group.label], centres, part))
        ranked = sorted(zip(d.classes, d.right, d.count, strict=True), key=lambda c: (c[1] / max(1, c[2]), -c[2]))
        rows += [[group.label, name(c), f"{right} of {n}"] for c, right, n in ranked[:5]]
    axes = Axes("Share of the classes by their precision", "share of a class's examples that are right", "percent", 0.0)
    plot, draft.data["charts"]["classes"] = _shifted(charts.steps_chart(lines, axes, "classes"))
    return plot, Table("The hardest classes, those with most examples first", ["method", "class", "right"], rows)


def confusion_section(draft: Draft) -> list[dict[str, Any]]:
    """What is taken for what: a matrix of few classes, and the worst pairs with examples."""
    examined = [(group, details) for group in draft.groups[:PANELS] if (details := group.shown.details)]
    wrong = [_wrong(details.confusion or []) for _, details in examined]
    largest = max((share for matrix in wrong for row in matrix for share in row), default=0.0) or 1.0
    return [
        _confusion_panel(draft, group, details, wrong[number], largest, number)
        for number, (group, details) in enumerate(examined)
    ]


def _wrong(counts: list[list[int]]) -> list[list[float]]:
    """Of each true class the share taken for each other one."""
    return [[0.0 if i == j else n / max(1, sum(row)) for j, n in enumerate(row)] for i, row in enumerate(counts)]


def _confusion_panel(
    draft: Draft, group: Group, details: Details, wrong: list[list[float]], largest: float, number: int
) -> dict[str, Any]:
    """`largest` of all panels has the full colour: the same colour is the same share everywhere."""
    name = class_names(group.shown)
    counts = details.confusion
    heat = None
    image = None
    if counts:
        if len(counts) <= _CELLS:
            text = [[f"{n}" if n else "·" for n in row] for row in counts]
            names = [name(i)[:6] for i in range(len(counts))]
            cells = [[math.sqrt(share / largest) for share in row] for row in wrong]  # a single error is to be seen too
            heat = charts.heat_table(cells, names, text, "rows are true, columns what they are taken for", "")
        else:
            about = f"Confusions of {group.label}: rows are true, columns taken for; the worst stand below."
            image = charts.heat_image(torch.tensor(wrong) / largest, about, f"confusion-{number}")
            _keep_matrix(draft, f"confusion-{number}", wrong, name, "% of the first are taken for the second")
    return {
        "label": group.label,
        "swatch": charts.swatch(draft.colours[group.label]),
        "seed": group.shown.config.seed,
        "errors": details.errors,
        "examples": details.examples,
        "what": EXAMPLES[group.shown.tested_on],
        "heat": heat,
        "image": image,
        "pairs": [_pair(pair, name) for pair in details.pairs[:_PAIRS]],
    }


def _pair(pair: Pair, name: Callable[[int], str]) -> dict[str, Any]:
    images = [image for image in pair.images if _is_base64(image)][:4]
    return {
        "true": name(pair.true),
        "taken": name(pair.taken),
        "count": pair.count,
        "examples": [(image, number) for image, number in zip(images, pair.examples, strict=False)],
    }


def _shifted(drawn: tuple[Markup, dict[str, Any]]) -> tuple[Markup, dict[str, Any]]:
    """The page's script tells a histogram's values by bin."""
    return drawn[0], drawn[1] | {"bins": True}


def _share_above(cosine: Cosines, limit: float) -> str:
    """Of the histogram's pairs."""
    first = round((limit + 1) * BINS / 2)
    return format_value(sum(cosine.histogram[first:]) / max(1, sum(cosine.histogram)), "percent")


def _at(motion: Motion, round_num: int) -> str:
    earlier = [value for r, value in zip(motion.rounds, motion.largest, strict=True) if r <= round_num]
    return three(earlier[-1]) if earlier else "–"


def _is_base64(text: str) -> bool:
    return text.replace("+", "A").replace("/", "A").rstrip("=").isalnum() and text.isascii() and len(text) < 60_000
