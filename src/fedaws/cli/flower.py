"""`fedaws flower …`: a federation's files, and a trial of it on this machine."""

from pathlib import Path
from typing import Annotated

import typer

from fedaws.cli import console
from fedaws.cli.common import Json, Settings, configured, print_json, reported, user_errors
from fedaws.cli.tables import metrics_table

app = typer.Typer(help="FedAwS over real devices, with Flower.", rich_markup_mode="rich")


@app.command("init", epilog="Example: fedaws flower init trial --clients 10 && fedaws flower up trial")
def init_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.")],
    clients: Annotated[int, typer.Option(min=2, help="Nodes, each with examples of one class.")],
    classes: Annotated[int | None, typer.Option(min=2, help="Only the first so many classes of the data.")] = None,
    source: Annotated[str, typer.Option("--config", metavar="PRESET|FILE.toml", help="The run.")] = "digits-flower",
    settings: Settings = None,
    host: Annotated[list[str] | None, typer.Option(help="A name or address of the server; repeatable.")] = None,
    same_rows: Annotated[
        bool, typer.Option("--same-rows", help="Start W as `fedaws train` does, from the seed; nodes could compute it.")
    ] = False,
) -> None:
    """Write what a federation needs: certificates, keys, who is who, and a data split for a trial on this machine."""
    with user_errors():
        from fedaws.flower.setup import create

        cfg = configured(source, settings)
        place = create(folder, cfg, clients, classes, host or (), **{"secret-rows": not same_rows})
        console.say(f"{clients} nodes in {place.root}; try them on this machine with: fedaws flower up {folder}")


@app.command("up", epilog="Example: fedaws flower up trial")
def up_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder by `fedaws flower init`.")], json: Json = False
) -> None:
    """Run a federation on this machine: SuperLink and SuperNodes on loopback, with TLS and keys; or go on with it."""
    with user_errors():
        from fedaws.flower.up import up
        from fedaws.record.folder import RunFolder

        last = {k: v for k, v in up(folder, console.say)[-1].items() if k != "round"}
        run = folder / "run"
        report = reported(run)
        if json:
            cfg = RunFolder(run).config()
            told = {"method": cfg.method, "rounds": cfg.train.rounds, "seed": cfg.seed, **last}
            print_json({**told, "folder": str(run), "report": report})
        else:
            console.out.print(metrics_table(last, f"{run}"))
            console.say_if("report", report)
