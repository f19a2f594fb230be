"""When is training W worth it? precision@1 by embedding dimension, rows fixed or trained: docs/results/code-family.*.

    python benchmarks/code_family.py [--out runs/code-family] [--sets digits,delicious] [--dims 64,256] [--seconds N]
    python benchmarks/code_family.py --page       # only write the page and the figure of what is there

Sets, data and budgets are those of benchmarks/methods.py, and so is what a set's recipe has beside the step size. Each
method has three step sizes at each dimension, the same for all, on held-out training rows (seed 0); the best trains on
all of them with three seeds and is tested, as it is and after the closed-form last step that held-out rows chose.
A cell is a file in `--out`, written after every run: a killed benchmark goes on where it was.
"""

import argparse
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import matplotlib as mpl
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

import fedaws
import grouped
from fedaws import Config, FedawsError, Method, Reporter, config
from fedaws.core.method import StartRows
from fedaws.core.methods import feduv, method_of
from fedaws.experiments.fingerprint import fingerprint
from fedaws.files import write_text
from fedaws.record.made_with import made_with
from fedaws.report.colours import PALETTE, colour_of
from methods import RIDGES, SEEDS, TITLES, fill, last_steps
from methods import SETS as BASES

NAME = "code-family"
METHODS = ("fixed", "fixed-spread", "feduv", "fedaws", "softmax")
CONTROL = "fedaws, preset's spread"  # where the recipe has one
ROWS = (*METHODS, CONTROL)
DIMS = (16, 32, 64, 128, 256, 512, 1024)
ORDER = (64, 256, 16, 1024, 32, 128, 512)  # in which they are run
CODES = {
    15: (0b10011, ((5, 7), (11, 3))),
    31: (0b100101, ((6, 15), (11, 11))),
    63: (0b1000011, ((7, 31), (10, 27), (16, 23))),
    1023: (0b10000001001, ((66, 379),)),
}
"""Of lengths that `feduv` itself does not have a primitive polynomial, and codes: bits of the message and distance."""


@dataclass(frozen=True)
class Recipe:
    """What a method has beside its step size: of its best try among those of methods.json, held-out rows chose it."""

    classes: int
    steps: tuple[str, str, str]  # tried at every dimension by every method
    fedaws: str
    softmax: str
    fixed_spread: str = ""
    control: str = ""

    def settings(self, row: str) -> str:
        own = {"fedaws": self.fedaws, "softmax": self.softmax, "fixed-spread": self.fixed_spread, CONTROL: self.control}
        return own.get(row, "")

    @property
    def rows(self) -> tuple[str, ...]:
        return ROWS if self.control else METHODS


_NEAREST = "spread.regularizer=nearest spread.neighbors=auto"
RECIPES = {
    "digits": Recipe(
        10,
        ("clients.lr=1", "clients.lr=3", "clients.lr=10"),
        f"{_NEAREST} spread.weight=10 spread.center=true clients.class_lr=0.3",
        "clients.scale=4",
    ),
    "delicious": Recipe(
        983,
        ("server.table_lr=1", "server.table_lr=3", "server.table_lr=10"),
        "spread.regularizer=moments spread.neighbors=auto spread.center=false spread.whiten=false clients.class_lr=0.3",
        "clients.scale=8",
        control="spread.weight=10 clients.class_lr=0.3",
    ),
    "omniglot": Recipe(
        1623,
        ("server.lr=0.05", "server.lr=0.1", "server.lr=0.2"),
        "spread.regularizer=softmax spread.weight=1 spread.center=true spread.whiten=true clients.class_lr=2",
        "clients.scale=8",
        "spread.regularizer=nearest",
    ),
    "cifar100": Recipe(
        100,
        ("server.lr=0.02", "server.lr=0.05", "server.lr=0.1"),
        f"{_NEAREST} spread.weight=1 spread.center=true spread.whiten=true clients.class_lr=0.5",
        "clients.scale=8",
        "spread.regularizer=nearest",
    ),
}


# --- codewords of any length ------------------------------------------------------------------------------------------


def code_of(length: int, classes: int) -> tuple[int, int]:
    """Bits of the message and designed distance: of codes with room for all classes that with the largest distance."""
    if length in feduv.CODES:
        return feduv.CODES[length][:2]
    return next(code for code in CODES[length][1] if 2 ** code[0] >= classes)


def codewords(rows: Tensor) -> Tensor:
    """A codeword a class at unit length, as `feduv` has it: its number in bits, and signs of its random row."""
    classes, length = rows.shape
    if length in feduv.CODES:
        return feduv.codewords(rows)
    bits, distance = code_of(length, classes)
    number = min(bits, 32)
    message = torch.cat([torch.arange(classes)[:, None] >> torch.arange(number) & 1, rows[:, : bits - number] > 0], 1)
    polynomial = feduv.generator_polynomial(length, distance, CODES[length][0])
    generator = torch.tensor([int(bit) for bit in f"{polynomial:b}"], dtype=rows.dtype)
    shifts = torch.zeros(bits, length, dtype=rows.dtype)
    for place in range(bits):
        shifts[place, place : place + len(generator)] = generator
    return (message.to(rows.dtype) @ shifts % 2).mul_(2).sub_(1).mul_(length**-0.5)


# --- one cell ---------------------------------------------------------------------------------------------------------


def configured(name: str, row: str, dim: int = 64, tried: str = "", tuning: bool = False) -> Config:
    where, method = BASES[name], row.partition(",")[0]
    words = [where.settings, RECIPES[name].settings(row), tried, where.held_out if tuning else ""]
    words += [f"method={method} model.embedding_dim={length_of(method, dim)}"]
    return config.load(where.base).override(" ".join(words).split())


def length_of(method: str, dim: int) -> int:
    """Codes are one shorter than the power of two."""
    return dim - 1 if method == "feduv" else dim


def run(name: str, method: str, dim: int, tried: str, seed: int, best: dict[str, Any] | None) -> dict[str, Any]:
    """precision@1 of one run, as it is and after the last steps: of a try after all of them, else after the chosen."""
    where, tuning = BASES[name], best is None
    cfg = configured(name, method, dim, tried, tuning).override([f"seed={seed}"])
    data = grouped.everybody(where.parts(tuning)) if where.parts else None
    encoder = where.encoder(cfg.model.embedding_dim, seed) if where.encoder else None
    began, quiet = time.process_time(), Reporter(on_warning=lambda _: None)
    try:
        trained = fedaws.train(data, encoder, cfg, method=_made(cfg, name), reporter=quiet)
    except FedawsError as error:
        return {"failed": str(error)}
    found = {"precision@1": round(trained.metrics[-1]["precision@1"], 4)}
    found["max_cosine"] = round(trained.metrics[-1]["max_cosine"], 4)
    found["seconds"] = round(time.process_time() - began, 1)
    if best is None:
        return {**found, "last_steps": last_steps(trained, RIDGES, None)}
    weights = {kind: max(by, key=lambda weight: by[weight]) for kind, by in best["last_steps"].items()}
    steps = last_steps(trained, None, {kind: float(weight) for kind, weight in weights.items()})
    return {**found, "last_step": {kind: next(iter(by.values())) for kind, by in steps.items()}}


def _made(cfg: Config, name: str) -> Method | None:
    """The method, with codewords of any length, and with rows that are spread once for all tries."""
    if cfg.method == "feduv":
        return replace(method_of(cfg), name="feduv of any length", start=codewords)
    if cfg.method == "fixed-spread":
        method = method_of(cfg)
        start = partial(_once, (name, cfg.model.embedding_dim, cfg.seed), method.start)
        return replace(method, name="fixed-spread kept", start=start)
    return None


_SPREAD: dict[tuple[str, int, int], Tensor] = {}


def _once(key: tuple[str, int, int], start: StartRows, rows: Tensor) -> Tensor:
    if key not in _SPREAD:
        _SPREAD.clear()
        _SPREAD[key] = start(rows)
    return _SPREAD[key].clone()


# --- the page ---------------------------------------------------------------------------------------------------------

Cell = dict[str, Any]


def whole(cell: Cell | None) -> list[dict[str, Any]]:
    """The seeds of a finished cell; none of one that is not, or that diverged."""
    seeds = (cell or {}).get("seeds", [])
    return seeds if len(seeds) == SEEDS and all("precision@1" in seed for seed in seeds) else []


def chosen_step(cell: Cell) -> str:
    """The kind of last step, ridge or lda, that held-out rows prefer."""
    steps = best_try(cell)["last_steps"]
    return max(steps, key=lambda kind: max(steps[kind].values()))


def best_try(cell: Cell) -> dict[str, Any]:
    found: dict[str, Any] = max(cell["tries"], key=lambda each: each.get("precision@1", -1.0))
    return found


def figures(cell: Cell | None, after: bool) -> list[float]:
    """Per cent, by seed."""
    seeds = whole(cell)
    if not seeds or cell is None:
        return []
    kind = chosen_step(cell)
    return [100 * (seed["last_step"][kind] if after else seed["precision@1"]) for seed in seeds]


def page(results: dict[str, Any]) -> str:
    """The page, in Markdown."""
    lines = [
        "# When is training W worth it?",
        "",
        *answer(results),
        "",
        f"![test precision@1 by dimension: fixed rows, spread rows, codewords, trained rows, oracle]({NAME}.png)",
        "",
        "*Bands: the lowest and highest of three seeds. Dashed: the same runs after the closed-form last step.*",
        "",
        *ABOUT,
    ]
    for name, found in results["sets"].items():
        made = next(cell["made_with"] for cells in found.values() for cell in cells.values())
        about = f"{BASES[name].about} One thread of {made['machine']}, torch {made['torch']}."
        lines += ["", f"## {TITLES[name]}", "", about, "", *_recipes(name), ""]
        dims = [dim for dim in DIMS if any(str(dim) in cells for cells in found.values())]
        lines += [f"| | d = {' | '.join(f'{dim:,}' for dim in dims)} |", f"|---|{'---:|' * len(dims)}"]
        for after in (False, True):
            for method in RECIPES[name].rows:
                cells = [found.get(method, {}).get(str(dim)) for dim in dims]
                label = f"`{method}`" + (" (oracle)" if method == "softmax" else "") + (", last step" if after else "")
                lines.append(f"| {label} | {' | '.join(_figure(cell, after) for cell in cells)} |")
        lines += ["", "The step size that held-out rows chose, of three:", ""]
        lines += [f"| | d = {' | '.join(f'{dim:,}' for dim in dims)} |", f"|---|{'---:|' * len(dims)}"]
        for method in RECIPES[name].rows:
            cells = [found.get(method, {}).get(str(dim)) for dim in dims]
            lines.append(f"| `{method}` | {' | '.join(_chosen(cell) for cell in cells)} |")
    missing = [TITLES[name] for name in RECIPES if name not in results["sets"]]
    lines += ["", f"Not measured yet: {', '.join(missing)}."] if missing else []
    return "\n".join(lines) + "\n"


def _figure(cell: Cell | None, after: bool) -> str:
    values = figures(cell, after)
    if not values or cell is None:
        return "–"
    told = f"{fmean(values):.1f} ± {stdev(values):.1f}" + (f" {chosen_step(cell)}" if after else "")
    return f"{told} (stale)" if cell.get("stale") else told  # of code that would come to another figure today


def _chosen(cell: Cell | None) -> str:
    return best_try(cell)["settings"].rpartition("=")[2] if cell is not None and whole(cell) else "–"


def _recipes(name: str) -> list[str]:
    recipe = RECIPES[name]
    codes = [f"{dim - 1} ({', '.join(map(str, code_of(dim - 1, recipe.classes)))})" for dim in DIMS]
    spread = f", `fixed-spread` `{recipe.fixed_spread}`" if recipe.fixed_spread else ""
    return [
        f"Tried by all: `{'`, `'.join(recipe.steps)}`. `fedaws` has `{recipe.fedaws}`, the oracle `{recipe.softmax}`"
        f"{spread}. Lengths of the codes (bits of the message, designed distance): {', '.join(codes)}.",
    ]


ABOUT = [
    f"Made by `python benchmarks/code_family.py` from [{NAME}.json]({NAME}.json), and not by hand. Test precision@1 in",
    "per cent, mean ± standard deviation over three seeds, by the embedding dimension d. `fixed` has random rows,",
    "`fixed-spread` rows that are spread once (from d + 1 ≥ C on the regular simplex), `feduv` codewords, `fedaws`",
    "trained rows; clients of the `softmax` oracle hold and train all rows. Data and budgets are those of [every",
    "method](methods.md): short, and the same for all.",
    "",
    "*What was tuned.* At every d each method had three tries, on held-out training rows and seed 0: three step sizes,",
    "the same for all. All else that a method has is of its best held-out try in [every method](methods.md), at one d",
    "between 32 and 256, and the same at every d: for `fedaws` the regulariser, its weight and the rows' step, for",
    "the oracle its scale. *Last step*: W made anew in closed form from sums of the same runs' embeddings",
    "(`train.last_step`), by `ridge` or `lda`, which, like its λ (0.01, 0.1, 1 or 10), held-out rows chose. The steps",
    "are chosen by what the run is before it. A dash is a cell that was not measured, or diverged.",
    "",
    "*Codewords* are of BCH codes, whose length is one less than the d of their column. `feduv` is made for 127, 255",
    "and 511; there the message has the class's number and bits that are its client's secret. 1,023 is made alike.",
    "Shorter codes have room for the number alone, or little more: their words can be guessed, and the figures only",
    "say what such rows are good for. So do those after the last step: for it clients of `feduv` would have to send",
    "sums that tell their secret, which the package refuses.",
    "",
    "*What this does not show.* Budgets are short, tries and seeds few: a difference of a point says nothing.",
    "`fedaws` has one regulariser a set, which was chosen at another d than most here; the test rows of [every",
    "method](methods.md#delicious) put `nearest` two points before the `moments` that it has on Delicious. The row",
    "`preset's spread` is the control for that, added after a first look. On omniglot most methods chose the largest",
    "of their three steps: the grid ends too early there.",
]


def answer(results: dict[str, Any]) -> list[str]:
    """What training W, and what the last step, is worth: in words, and as tables of differences in points."""
    delicious, omniglot = results["sets"]["delicious"], results["sets"]["omniglot"]
    first, second, third, *rest = [gain(delicious, dim, False) or 0.0 for dim in DIMS]
    after = [gain(delicious, dim, True) or 0.0 for dim in DIMS]
    (most, most_after), (least, least_after) = (
        [gain(omniglot, dim, after_it) or 0.0 for after_it in (False, True)] for dim in (64, 256)
    )
    every = [points for row in METHODS for points in added(delicious.get(row, {}))]
    lines = [
        "**Where classes far outnumber dimensions, or have few examples, and W stays as training left it.** On",
        f"Delicious, 983 labels, trained rows are {first:.1f} points ahead of fixed ones with 16 dimensions,",
        f"{second:.1f} with 32, {third:.1f} with 64, and not ahead from 128 on ({_between(rest)}). On omniglot,",
        f"1,623 classes of 15 examples, they are {most:.1f} ahead with 64 dimensions and {least:.1f} with 256;",
        "on digits, ten classes, nowhere. After the closed-form last step training W gains nothing on Delicious",
        f"({_between(after)}; with the preset's spread about level), and still",
        f"{most_after:.1f} and {least_after:.1f} points on omniglot.",
        "",
        "Does the last step win everywhere? On Delicious every method gains by it at every d, by",
        f"{min(every):.1f} to {max(every):.1f} points, if held-out rows choose between ridge and lda, and on",
        "omniglot at both d. On digits no: there it takes as often as it gives. Nor for the oracle on",
        "[CIFAR-100](methods.md#cifar-100-resnet-8), by ridge.",
        "",
        "Trained rows less fixed ones, in points of test precision@1: `fedaws` less that of the three kinds of fixed",
        "rows which held-out rows prefer, at the same d; in brackets both after their last step.",
        "",
        f"| | classes | d = {' | '.join(f'{dim:,}' for dim in DIMS)} |",
        f"|---|---:|{'---:|' * len(DIMS)}",
    ]
    for name, found in results["sets"].items():
        gains = [_gain(found, dim) for dim in DIMS]
        lines.append(f"| {TITLES[name]} | {RECIPES[name].classes:,} | {' | '.join(gains)} |")
    lines += [
        "",
        "What the last step adds to a method's mean: at the d where it adds least, and where it adds most.",
        "",
    ]
    lines += [f"| | {' | '.join(f'`{method}`' for method in METHODS)} |", f"|---|{'---:|' * len(METHODS)}"]
    for name, found in results["sets"].items():
        lines.append(f"| {TITLES[name]} | {' | '.join(_added(found.get(row, {})) for row in METHODS)} |")
    return lines


def _between(points: list[float]) -> str:
    return f"{_signed(min(points))} to {_signed(max(points))}"


def gain(cells: dict[str, dict[str, Cell]], dim: int, after: bool) -> float | None:
    """Points by which trained rows are ahead of the fixed ones that held-out rows prefer."""
    fixed = [cell for method in METHODS[:3] if whole(cell := cells.get(method, {}).get(str(dim), {}))]
    trained = cells.get("fedaws", {}).get(str(dim))
    if len(fixed) < 3 or not whole(trained):
        return None
    best = max(fixed, key=lambda cell: _held_out(cell, after))
    return fmean(figures(trained, after)) - fmean(figures(best, after))


def _held_out(cell: Cell, after: bool) -> float:
    tried = best_try(cell)
    return float(max(tried["last_steps"][chosen_step(cell)].values()) if after else tried["precision@1"])


def _gain(cells: dict[str, dict[str, Cell]], dim: int) -> str:
    bare, after = (gain(cells, dim, which) for which in (False, True))
    return "–" if bare is None or after is None else f"{_signed(bare)} ({_signed(after)})"


def added(cells: dict[str, Cell]) -> list[float]:
    """Points that the last step adds to the mean, by dimension."""
    finished = [cell for dim in DIMS if whole(cell := cells.get(str(dim), {}))]
    return [fmean(figures(cell, True)) - fmean(figures(cell, False)) for cell in finished]


def _added(cells: dict[str, Cell]) -> str:
    found = added(cells)
    return f"{_signed(min(found))} … {_signed(max(found))}" if found else "–"


def _signed(points: float) -> str:
    return f"{points:+.1f}".replace("-", "−")


def plot(results: dict[str, Any], path: Path) -> None:
    look: Any = {"font.size": 11, "axes.spines.top": False, "axes.spines.right": False}
    names = list(results["sets"])
    with mpl.rc_context(look):
        figure = Figure(figsize=(max(6.4, 3.4 * len(names) + 0.6), 3.9), layout="constrained")
        for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
            for method in METHODS:
                _lines(axes, results["sets"][name].get(method, {}), method)
            axes.set_xscale("log", base=2)
            axes.set_xticks(DIMS, [str(dim) for dim in DIMS], rotation=45)
            axes.minorticks_off()
            axes.set(title=f"{TITLES[name]}, {RECIPES[name].classes:,} classes", xlabel="embedding dimension d")
        figure.axes[0].set_ylabel("test precision@1 (%)")
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=5 if len(names) > 2 else 3, frameon=False)
        figure.savefig(path, dpi=130)


MARKS = {"fixed": "o", "fixed-spread": "s", "feduv": "^", "fedaws": "D", "softmax": "v"}
SAID = {
    "fixed": "fixed, random",
    "fixed-spread": "fixed, spread",
    "feduv": "codewords",
    "fedaws": "trained (fedaws)",
    "softmax": "oracle (softmax)",
}


def _lines(axes: Axes, cells: dict[str, Cell], method: str) -> None:
    at = [dim for dim in DIMS if whole(cells.get(str(dim)))]
    colour = PALETTE[colour_of(method, METHODS)]
    for after in (False, True) if clearly_other([cells[str(dim)] for dim in at]) else (False,):
        values = [figures(cells[str(dim)], after) for dim in at]
        look: Any = {"linestyle": "--" if after else "-", "linewidth": 1.2 if after else 2}
        look |= {"marker": MARKS[method], "markersize": 3 if after else 4.5, "label": None if after else SAID[method]}
        axes.plot(at, [fmean(each) for each in values], color=colour, **look)
        axes.fill_between(at, [*map(min, values)], [*map(max, values)], color=colour, alpha=0.15, linewidth=0)


def clearly_other(cells: list[Cell]) -> bool:
    """Whether the last step moves the mean by more than a point at half of the dimensions or more."""
    moved = [abs(fmean(figures(cell, True)) - fmean(figures(cell, False))) > 1 for cell in cells]
    return 2 * sum(moved) >= len(moved) > 0


# --- the command ------------------------------------------------------------------------------------------------------


def collect(out: Path, before: dict[str, Any]) -> dict[str, Any]:
    """All finished cells that are there, and those of `before` that are not."""
    sets: dict[str, Any] = before.get("sets", {})
    for name, recipe in RECIPES.items():
        for row, dim in product(recipe.rows, DIMS):
            place = _place(out, name, row, dim)
            if place.exists() and whole(cell := begun(place, name, row)):
                sets.setdefault(name, {}).setdefault(row, {})[str(dim)] = cell
    return {"seeds": SEEDS, "sets": {name: sets[name] for name in RECIPES if name in sets}}


def _place(out: Path, name: str, method: str, dim: int) -> Path:
    return out / name / f"{re.sub('[^a-z]+', '-', method)}-{dim}.json"


def begun(place: Path, name: str, row: str) -> Cell:
    """A cell as far as it is; with the fingerprint of its row, but for codes, whose lengths a small run cannot have."""
    if place.exists():
        cell: Cell = json.loads(place.read_text(encoding="utf-8"))
        return cell
    stamp = {} if row == "feduv" else {"fingerprint": fingerprint(configured(name, row))}
    return {"made_with": made_with(), **stamp, "tries": [], "seeds": []}


def work(sets: list[str], dims: list[int]) -> Iterator[tuple[str, str, int, Callable[..., dict[str, Any]]]]:
    """Cells in the order in which they are run."""
    for name in sets:
        for dim in (dim for dim in ORDER if dim in dims):
            for method in RECIPES[name].rows:
                yield name, method, dim, partial(run, name, method, dim)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--sets", default=",".join(RECIPES))
    arguments.add_argument("--dims", default=",".join(map(str, DIMS)))
    arguments.add_argument("--seconds", type=float, default=float("inf"), help="begin no run after so many")
    arguments.add_argument("--page", action="store_true", help="only write the page and the figure of what is there")
    arguments.add_argument("--out", type=Path, default=Path("runs/code-family"))
    arguments.add_argument("--results", type=Path, default=Path("docs/results"))
    given = arguments.parse_args()
    torch.set_num_threads(1)
    began = time.monotonic()
    sets, dims = given.sets.split(","), [int(dim) for dim in given.dims.split(",")]
    for name, method, dim, runs in () if given.page else work(sets, dims):
        place = _place(given.out, name, method, dim)
        cell = begun(place, name, method)
        place.parent.mkdir(parents=True, exist_ok=True)
        if time.monotonic() - began > given.seconds:
            break
        for _ in fill(cell, list(RECIPES[name].steps), runs, "precision@1"):
            write_text(place, json.dumps(cell) + "\n")
            if time.monotonic() - began > given.seconds:
                break
        print(name, method, dim, _figure(cell, False), _figure(cell, True), flush=True)
    written = given.results / f"{NAME}.json"
    before = json.loads(written.read_text(encoding="utf-8")) if written.exists() else {}
    results = collect(given.out, before)
    write_text(written, json.dumps(results, indent=1) + "\n")
    write_text(given.results / f"{NAME}.md", page(results))
    plot(results, given.results / f"{NAME}.png")


if __name__ == "__main__":
    main()
