"""`fedaws tune PRESET`: the same number of tries for every method, or a grid of some settings alone."""

import json as json_module
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedaws.cli import console
from fedaws.cli.common import Json, Settings, Source, configured, print_json
from fedaws.cli.tables import text_table
from fedaws.config import SPARSE, Config
from fedaws.errors import FedawsError
from fedaws.files import read_json, write_text

if TYPE_CHECKING:
    from fedaws.training.session import Reporter

_METHODS = "positive-only,fixed,fedaws,softmax"
_MEASURES = ("precision@1", "precision@3", "precision@5")


def tune_command(
    source: Source,
    methods: Annotated[
        str | None, typer.Option(help=f"Comma-separated; {_METHODS}, with --only the configuration's own.")
    ] = None,
    tries: Annotated[
        int | None, typer.Option(min=1, max=10_000, help="Tries of each method, of one seed; 30 by default.")
    ] = None,
    measure: Annotated[str | None, typer.Option(help="What is to be large; precision@1, of label sets @5.")] = None,
    vary: Annotated[
        list[str] | None, typer.Option(metavar="KEY=A,B", help="A setting to vary beside the usual; repeatable.")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=A,B", help="No search: a grid of these settings alone, all else as it is; repeatable."
        ),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(metavar="N|A,B", help="With --only: so many seeds, or these; 1 by default.")
    ] = None,
    settings: Settings = None,
    out: Annotated[Path, typer.Option(help="Folder of the tries.")] = Path("runs/tune"),
    json: Json = False,
) -> None:
    """Give every method the same number of tries, on training rows held out, or go on with it; or try a grid."""
    if only and (vary or tries):
        raise FedawsError("--only is a grid of its own; leave out --vary and --tries")
    if seeds and not only:
        raise FedawsError("--seeds is for --only; a search has one seed for its tries and three for the best")
    varied = _parse_values(only or vary or [], "--only" if only else "--vary")
    cfg = configured(source, settings)
    measure = measure or ("precision@5" if cfg.data.name in SPARSE else "precision@1")
    if measure not in _MEASURES:
        raise FedawsError(f"--measure {measure}; wanted one of {', '.join(_MEASURES)}")
    from fedaws.experiments.compare import parse_methods

    names = parse_methods(methods or (cfg.method if only else _METHODS))
    if only:
        _show_grid(cfg, names, varied, _parse_seeds(seeds or "1"), measure, out, json)
    else:
        _search(cfg, names, varied, tries or 30, measure, out, json)


def _show_grid(
    cfg: Config,
    names: Sequence[str],
    only: dict[str, list[str]],
    seeds: Sequence[int],
    measure: str,
    out: Path,
    json: bool,
) -> None:
    from fedaws.experiments.tune import combinations, grid

    choices = combinations(only)
    for choice in choices:
        cfg.override(choice)  # a mistake is told before anything is run
    runs = len(choices) * len(seeds) * len(names)
    console.say(
        f"{runs} runs (choices × seeds × methods: {len(choices)} × {len(seeds)} × {len(names)}), less those that are "
        f"kept in {out / cfg.name}"
    )
    with _timed((runs, runs)) as reporter:
        results = {
            name: grid(cfg.with_(method=name), choices, seeds, _file(out, cfg, name), measure, reporter)
            for name in names
        }
    if json:
        print_json({"measure": measure, "seeds": list(seeds), "methods": results})
        return
    rows = [
        (name, *(setting.partition("=")[2] for setting in one["settings"]), *_figures(one["values"], one["errors"]))
        for name, each in results.items()
        for one in each
    ]
    console.out.print(
        text_table(["method", *only, f"{measure}, held out", f"seeds {', '.join(map(str, seeds))}"], rows)
    )
    console.say(f"tries: {out / cfg.name}")


def _search(
    cfg: Config, names: Sequence[str], vary: dict[str, list[str]], tries: int, measure: str, out: Path, json: bool
) -> None:
    from fedaws.experiments.tune import cost_of, tune, tuning_page

    summary = out / "tuning.json"
    results: dict[str, Any] = read_json(summary) if summary.exists() else {}
    if not isinstance(results, dict) or not all(isinstance(each, dict) for each in results.values()):
        raise FedawsError(f"{summary} has no results of a tuning; move it away, the tries themselves are kept")
    (fewest, most), (shortest, longest) = cost_of(tries)
    console.say(
        f"{fewest * len(names)} to {most * len(names)} runs of {', '.join(names)}, less those that are kept in "
        f"{out / cfg.name}"
    )
    with _timed((shortest * len(names), longest * len(names))) as reporter:
        for name in names:
            result = tune(cfg.with_(method=name), tries, _file(out, cfg, name), measure, vary, reporter)
            results.setdefault(cfg.name, {})[name] = result
            write_text(summary, json_module.dumps(results, indent=1) + "\n")
            write_text(out / "tuning.md", tuning_page(results))
    if json:
        print_json(results[cfg.name])
        return
    rows = [(name, _percents(r["values"]), " ".join(r["settings"])) for name, r in results[cfg.name].items()]
    console.out.print(text_table(["method", f"{measure}, held out", "best found"], rows))
    console.say(f"page: {out / 'tuning.md'}    tries: {out / cfg.name}")


@contextmanager
def _timed(times: tuple[int, int]) -> "Iterator[Callable[[str], Reporter]]":
    """Makes a reporter per run; after the first run it says how long all take, in times of the first."""
    from fedaws.evaluate.catalogue import duration
    from fedaws.training.session import Interrupted

    stop = console.Stop()
    begun: list[float] = []
    with console.progress(stop) as progress:

        def reporter(label: str) -> "Reporter":
            begun.append(time.monotonic())
            if len(begun) == 2:
                first = begun[1] - begun[0]
                total = " to ".join(dict.fromkeys(duration(each * first) for each in times))
                console.say(f"the first run took {duration(first)}: all take about {total}")
            quiet = progress(label)
            quiet.on_warning = lambda message: None  # of a hundred tries some are odd
            return quiet

        try:
            yield reporter
        except Interrupted:
            print("stopped; go on with the same command", file=sys.stderr)
            raise typer.Exit(130) from None


def _file(out: Path, cfg: Config, method: str) -> Path:
    return out / cfg.name / f"{method}.jsonl"


def _figures(values: list[float | None], errors: list[str]) -> tuple[str, str]:
    """The mean over seeds, and each; or why there is none."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return "–", next(filter(None, errors), "not measured")
    return _percents([statistics.fmean(known)]), _percents(known)


def _percents(values: list[float]) -> str:
    return ", ".join(f"{100 * value:.1f}" for value in values)


def _parse_values(texts: list[str], option: str) -> dict[str, list[str]]:
    """KEY=A,B as a key and its values; commas inside brackets are a value's own."""
    pairs = [text.partition("=") for text in texts]
    wrong = [text for text, (key, _, values) in zip(texts, pairs, strict=True) if not key or not values]
    if wrong:
        raise FedawsError(f"{option} {wrong[0]}; wanted KEY=A,B, as in clients.per_round=50,300")
    return {key: re.split(r",(?![^\[]*\])", values) for key, _, values in pairs}


def _parse_seeds(text: str) -> Sequence[int]:
    parts = text.split(",")
    if not all(part.isdecimal() and len(part) < 10 for part in parts) or text == "0":
        raise FedawsError(f"--seeds {text}; wanted a number of seeds, as in 3, or a list of them, as in 0,4,7")
    return range(int(text)) if len(parts) == 1 else [int(part) for part in parts]
