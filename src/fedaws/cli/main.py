"""The command line: thin, over `fedaws.train`, `compare` and `load`."""

import json as json_module
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from fedaws import config as configuration
from fedaws.cli import console
from fedaws.cli import flower as cli_flower
from fedaws.cli import people as cli_people
from fedaws.cli import privacy as cli_privacy
from fedaws.cli.audit import audit_command
from fedaws.cli.common import (
    App,
    Json,
    Settings,
    Source,
    configured,
    one_place,
    print_error,
    print_json,
    reported,
    show_run,
)
from fedaws.cli.places import RUNS, one_folder, run_folder
from fedaws.cli.settings import described, settings_page
from fedaws.cli.suggest import suggest
from fedaws.cli.tables import comparison_table, metrics_table, results_table, text_table
from fedaws.cli.tune import tune_command
from fedaws.config import Config
from fedaws.errors import FedawsError
from fedaws.machine.started import started_ranks

if TYPE_CHECKING:
    from fedaws.experiments.reproduce import Job
    from fedaws.ranks import Ranks
    from fedaws.training.session import Reporter

# What needs torch, matplotlib or scikit-learn is imported inside the commands: help is there at once.
app = App(
    name="fedaws",
    help="Federated learning with only positive labels (FedAwS, ICML 2020).",
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.add_typer(cli_flower.app, name="flower")
app.add_typer(cli_privacy.app, name="privacy")
app.command("tune", epilog="Example: fedaws tune digits --only spread.weight=1,10,100 --seeds 3")(tune_command)
app.command("audit", epilog="Example: fedaws audit runs/first --attacks inversion,membership")(audit_command)

Out = Annotated[Path | None, typer.Option("--out", help="Folder of the run; by default a new one below runs/.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run in --out, or with the newest such one.")]


def _print_version(given: bool) -> None:
    if given:
        print(f"fedaws {metadata.version('fedaws')}")
        raise typer.Exit


@app.callback()
def fedaws_command(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Federated learning with only positive labels (FedAwS, ICML 2020)."""
    if started_ranks() > 1 and ctx.invoked_subcommand != "train":
        if os.environ["RANK"] == "0":
            print_error(f"torchrun starts `train` only, got {ctx.invoked_subcommand}; run it without torchrun")
        raise typer.Exit(2)


@app.command("train", epilog="Example: fedaws train digits -s spread.weight=100 --out runs/first")
def train_command(
    source: Source, settings: Settings = None, out: Out = None, resume: Resume = False, json: Json = False
) -> None:
    """Train one model."""
    cfg = configured(source, settings)
    from fedaws.ranks.launch import joined
    from fedaws.record.folder import RunFolder
    from fedaws.training.train import train

    stop = console.Stop()
    with (
        joined(agreed=(typer.Exit,)) as ranks,
        one_folder(ranks, f"{cfg.name}-{cfg.method}", out, resume, cfg) as folder,
        _interruptible(stop, f"--resume --out {folder}", quiet=not _speaks(ranks)),
        console.progress(stop) as reporter,
    ):
        if resume and _speaks(ranks) and not RunFolder(folder).started:
            console.say(f"no run in {folder} yet: starting one")
        run = train(config=cfg, folder=folder, resume=resume, reporter=reporter(f"{cfg.method} on {cfg.name}"))
    if not _speaks(ranks):
        return
    title = f"{cfg.method} on {cfg.name} after {cfg.train.rounds} rounds"
    show_run(cfg, run.metrics[-1], folder, title, json)
    if not json:
        console.say(f"saved in {folder}")


@app.command("compare", epilog="Example: fedaws compare digits --methods positive-only,fedaws --seeds 3")
def compare_command(
    source: Source,
    methods: Annotated[str, typer.Option(help="Comma-separated.")] = "positive-only,fixed,fedaws,softmax",
    seeds: Annotated[int, typer.Option(min=1, help="Seeds per method.")] = 1,
    settings: Settings = None,
    out: Out = None,
    resume: Resume = False,
    json: Json = False,
) -> None:
    """Train several methods and show them side by side, as the paper's tables do."""
    cfg = configured(source, settings)
    from fedaws.experiments.compare import compare, parse_methods
    from fedaws.experiments.plots import plot_comparison
    from fedaws.files import write_text

    names = parse_methods(methods)
    stop = console.Stop()
    number = count(1)
    with (
        run_folder(f"{cfg.name}-compare", out, resume) as folder,
        _interruptible(stop, f"--resume --out {folder}"),
        console.progress(stop) as reporter,
    ):

        def numbered(one: Config) -> "Reporter":
            return reporter(f"{next(number)}/{len(names) * seeds} {one.method}, seed {one.seed}")

        comparison = compare(names, config=cfg, seeds=seeds, folder=folder, resume=resume, reporter=numbered)
    summary = {"methods": comparison.summary, "rounds": cfg.train.rounds, "seeds": seeds}
    write_text(folder / "compare.json", json_module.dumps(summary, indent=2) + "\n")
    plot_comparison(comparison.histories, folder / "compare.png", f"{cfg.name}: every client has one class")
    report = reported(folder)
    if json:
        print_json(summary | {"folder": str(folder), "report": report})
    else:
        console.out.print(comparison_table(summary, f"{cfg.name}, {cfg.train.rounds} rounds"))
        console.say(f"plot: {folder / 'compare.png'}    figures: {folder / 'compare.json'}")
        console.say_if("report", report)


@app.command("evaluate", epilog="Example: fedaws evaluate runs/first --json")
def evaluate_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")], json: Json = False
) -> None:
    """Measure a saved model on its test set."""
    from fedaws.training.run import load

    loaded = load(run)
    measures = loaded.evaluate()
    if loaded.metrics:
        measures = {"loss": loaded.metrics[-1]["loss"], **measures}
    if json:
        print_json({"method": loaded.config.method, **measures})
    else:
        console.out.print(metrics_table(measures, f"{run}"))


@app.command("report", epilog="Example: fedaws report runs/digits-compare-1 && open runs/digits-compare-1/report.html")
def report_command(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN…", help="Run folders, or folders of them: of a comparison, a table, a federation."),
    ],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="FILE.html", help="By default report.html in the one RUN.")
    ] = None,
) -> None:
    """Show what runs did, in one HTML file that needs no network; of unfinished and damaged runs what there is."""
    target = one_place(runs, out, "report.html", "report; name it: -o report.html")
    from fedaws.report.page import write_report

    print(write_report(runs, target))


@app.command(
    "tensorboard", epilog="Example: fedaws tensorboard runs/first && tensorboard --logdir runs/first/tensorboard"
)
def tensorboard_command(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN…", help="Run folders, or folders of them.")],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="DIR", help="By default tensorboard in the one RUN.")
    ] = None,
) -> None:
    """Write runs for TensorBoard: every measure by round, and W for its projector; also of runs that go on."""
    target = one_place(runs, out, "tensorboard", "events; name it: -o DIR")
    from fedaws.report.tensorboard import export

    for notice in export(runs, target):
        console.warn(notice)
    print(target)


@app.command("presets", epilog="Example: fedaws presets --labels 5000 --rows 200000")
def presets_command(
    labels: Annotated[
        int | None, typer.Option(min=2, help="Suggest one for so many labels of sparse examples …")
    ] = None,
    rows: Annotated[int | None, typer.Option(min=1, help="… and so many training rows.")] = None,
    json: Json = False,
) -> None:
    """List the experiments that come with the package; with --labels and --rows, suggest one for data of your own."""
    if (labels is None) != (rows is None):
        raise FedawsError("--labels and --rows belong together; give both, as in --labels 5000 --rows 200000")
    if labels and rows:
        suggestion = suggest(labels, rows)
        print_json(suggestion._asdict()) if json else print(suggestion.text)
        return
    about = {name: configuration.preset_text(name).partition("\n")[0].strip("# ") for name in configuration.presets()}
    print_json(about) if json else console.out.print(text_table(["preset", "what it is"], about.items()))


@app.command("settings", epilog="Example: fedaws settings spread.weight")
def settings_command(
    key: Annotated[
        str | None,
        typer.Argument(
            metavar="KEY",
            help="A setting, a table, or a word to look for.",
            autocompletion=lambda: [*configuration.settings()],
        ),
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print all as the page docs/settings.md.")] = False,
    json: Json = False,
) -> None:
    """Show what can be set: every setting's meaning, default and range."""
    chosen = described(key)
    if json:
        print_json({setting.key: setting._asdict() for setting in chosen})
    elif markdown:
        print(settings_page(), end="")
    else:
        rows = [[part.replace("`", "") for part in setting] for setting in chosen]
        console.out.print(text_table(["setting", "default", "wanted", "what it does"], rows))


@app.command("reproduce", epilog="Example: fedaws reproduce table1 --rows cifar10-resnet8 --methods fedaws,softmax")
def reproduce_command(
    source: Annotated[
        str, typer.Argument(metavar="TABLE|FILE.toml", help="table1, table3, table4, or a TOML file like theirs.")
    ],
    rows: Annotated[str | None, typer.Option(help="Comma-separated; all by default.")] = None,
    methods: Annotated[str | None, typer.Option(help="Comma-separated; all by default.")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Instead of the presets' own.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds per method.")] = 1,
    settings: Settings = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the runs; runs/TABLE by default.")] = None,
    results: Annotated[
        Path | None,
        typer.Option(help="Folder of data, page and plots; that of the runs by default."),
    ] = None,
    as_paper: Annotated[
        bool, typer.Option("--as-paper", help="Run the paper's configuration in place of ours.")
    ] = False,
    show: Annotated[bool, typer.Option("--show", help="Run nothing, write nothing: show what there is.")] = False,
    json: Json = False,
) -> None:
    """Run a table of the paper, or go on with it, and set ours beside the paper's."""
    from fedaws.experiments.paper_tables import choose, load_table
    from fedaws.experiments.reproduce import plan, reproduce
    from fedaws.experiments.results import gather, write_results

    if source == "table2":  # a name of before, kept for one version
        console.warn("table2 is the paper's Table 3 and is called so now: fedaws reproduce table3")
        source = "table3"
    table = load_table(source)
    chosen_rows = choose(list(table.rows), rows, "row", table.name)
    chosen_methods = choose(table.methods, methods, "method", table.name)
    out = out or RUNS / table.name
    place = results or out
    jobs = [] if show else plan(table, out, chosen_rows, chosen_methods, seeds, rounds, settings or [], as_paper)
    figures = gather(table, out, place)  # a file that cannot be used shows before the hours, not after
    stop = console.Stop()
    begun = 0

    def numbered(job: "Job") -> "Reporter":
        nonlocal begun
        begun += 1
        return reporter(f"{begun}/{len(jobs)} {job.label}")

    def changed() -> None:
        nonlocal figures
        figures = gather(table, out, place)
        write_results(figures, place)
        if stop() or begun < len(jobs):
            console.err.print(results_table(figures, chosen_rows, chosen_methods))

    with _interruptible(stop, "the same command"), console.progress(stop) as reporter:
        missing = reproduce(jobs, numbered, changed)
    if jobs and all(job.config.data.name in missing for job in jobs):
        raise FedawsError("; ".join(missing.values()))
    for message in missing.values():
        console.warn(f"left out: {message}")
    if not show:
        write_results(figures, place)
    if json:
        print_json(figures)
    else:
        console.out.print(results_table(figures, chosen_rows, chosen_methods))
        if not show:
            console.say(f"page: {place / table.name}.md    figures: {place / table.name}.json")


cli_people.register(app)

# click's class of all wrong usage; typer has it under a module of its own in some versions, but always as this one.
_UsageError = cast(type[typer.BadParameter], typer.BadParameter.__mro__[1])


def main() -> None:
    """Entry point."""
    try:
        sys.exit(app(sys.argv[1:] or ["--help"], standalone_mode=False))
    except _UsageError as error:
        command = error.ctx.command_path if error.ctx else "fedaws"
        print_error(f"{error.format_message()} (see {command} --help)")
        sys.exit(2)
    except typer.Abort:  # Ctrl-C outside of any command
        sys.exit(130)


def _speaks(ranks: "Ranks | None") -> bool:
    """Whether this process is the one that a person hears."""
    return ranks is None or ranks.first


@contextmanager
def _interruptible(stop: console.Stop, how: str, quiet: bool = False) -> Iterator[None]:
    from fedaws.training.session import Interrupted

    try:
        yield
    except Interrupted as stopped:
        if not quiet:
            print(f"stopped after round {stopped.round_num}; go on with {how}", file=sys.stderr)
        raise typer.Exit(143 if stop.signal == signal.SIGTERM else 130) from None
