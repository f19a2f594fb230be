"""`fedaws tune PRESET`: the same number of tries for every method."""

import json as json_module
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedaws.cli import console
from fedaws.cli.common import Json, Settings, Source, configured, print_json
from fedaws.cli.tables import text_table
from fedaws.config import SPARSE
from fedaws.errors import FedawsError
from fedaws.files import read_json, write_text

if TYPE_CHECKING:
    from fedaws.training.session import Reporter

_MEASURES = ("precision@1", "precision@3", "precision@5")


def tune_command(
    source: Source,
    methods: Annotated[str, typer.Option(help="Comma-separated.")] = "positive-only,fixed,fedaws,softmax",
    tries: Annotated[int, typer.Option(min=1, max=10_000, help="Tries of each method, of one seed.")] = 30,
    measure: Annotated[str | None, typer.Option(help="What is to be large; precision@1, of label sets @5.")] = None,
    vary: Annotated[
        list[str] | None, typer.Option(metavar="KEY=A,B", help="A setting to vary beside the usual; repeatable.")
    ] = None,
    settings: Settings = None,
    out: Annotated[Path, typer.Option(help="Folder of the tries.")] = Path("runs/tune"),
    json: Json = False,
) -> None:
    """Give every method the same number of tries, on training rows held out, or go on with it."""
    cfg = configured(source, settings)
    from fedaws.experiments.compare import parse_methods
    from fedaws.experiments.tune import tune, tuning_page
    from fedaws.training.session import Interrupted

    names = parse_methods(methods)
    varied = _varied(vary or [])
    measure = measure or ("precision@5" if cfg.data.name in SPARSE else "precision@1")
    if measure not in _MEASURES:
        raise FedawsError(f"--measure {measure}; wanted one of {', '.join(_MEASURES)}")
    summary = out / "tuning.json"
    results: dict[str, Any] = read_json(summary) if summary.exists() else {}
    if not isinstance(results, dict) or not all(isinstance(each, dict) for each in results.values()):
        raise FedawsError(f"{summary} has no results of a tuning; move it away, the tries themselves are kept")
    stop = console.Stop()
    with console.progress(stop) as progress:

        def reporter(label: str) -> "Reporter":
            quiet = progress(label)
            quiet.on_warning = lambda message: None  # of a hundred tries some are odd
            return quiet

        for name in names:
            one = cfg.with_(method=name)
            try:
                result = tune(one, tries, out / cfg.name / f"{name}.jsonl", measure, varied, reporter=reporter)
            except Interrupted:
                print("stopped; go on with the same command", file=sys.stderr)
                raise typer.Exit(130) from None
            results.setdefault(cfg.name, {})[name] = result
            write_text(summary, json_module.dumps(results, indent=1) + "\n")
            write_text(out / "tuning.md", tuning_page(results))
    if json:
        print_json(results[cfg.name])
        return
    rows = [(name, _percents(r["values"]), " ".join(r["settings"])) for name, r in results[cfg.name].items()]
    console.out.print(text_table(["method", f"{measure}, held out", "best found"], rows))
    console.say(f"page: {out / 'tuning.md'}    tries: {out / cfg.name}")


def _percents(values: list[float]) -> str:
    return ", ".join(f"{100 * value:.1f}" for value in values)


def _varied(texts: list[str]) -> dict[str, list[str]]:
    pairs = [text.partition("=") for text in texts]
    wrong = [text for text, (key, _, values) in zip(texts, pairs, strict=True) if not key or not values]
    if wrong:
        raise FedawsError(f"--vary {wrong[0]}; wanted KEY=A,B, as in clients.per_round=50,300")
    return {key: values.split(",") for key, _, values in pairs}
