"""`fedaws flower …`: a federation's files, and a trial of it on this machine."""

from pathlib import Path
from typing import Annotated

import typer

from fedaws.cli import console
from fedaws.cli.common import App, Json, Settings, configured, show_run
from fedaws.errors import FedawsError

app = App(help="FedAwS over real devices, with Flower.", rich_markup_mode="rich")


@app.command("init", epilog="Example: fedaws flower init trial --clients 10 && fedaws flower up trial")
def init_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.")],
    clients: Annotated[int, typer.Option(min=2, help="Nodes, each with examples of one class.")],
    classes: Annotated[int | None, typer.Option(min=2, help="Only the first so many classes of the data.")] = None,
    source: Annotated[str, typer.Option("--config", metavar="PRESET|FILE.toml", help="The run.")] = "digits-flower",
    settings: Settings = None,
    host: Annotated[list[str] | None, typer.Option(help="A name or address of the server; repeatable.")] = None,
    no_data: Annotated[
        bool, typer.Option("--no-data", help="The examples are on the nodes already; read and deal out none.")
    ] = False,
    example_shape: Annotated[
        str | None, typer.Option(metavar="N,N,…", help="With --no-data: the shape of one example, as in 1,28,28.")
    ] = None,
    example_dtype: Annotated[str, typer.Option(help="With --no-data: float32, or uint8 for bytes.")] = "float32",
    same_rows: Annotated[
        bool, typer.Option("--same-rows", help="Start W as `fedaws train` does, from the seed; nodes could compute it.")
    ] = False,
) -> None:
    """Write what a federation needs: certificates, keys, who is who, and a data split for a trial on this machine."""
    from fedaws.flower.setup import create

    cfg = configured(source, settings)
    shape = _shape(no_data, example_shape, example_dtype)
    secret = {"secret-rows": not same_rows}
    place = create(folder, cfg, clients, classes, host or (), shape, example_dtype, console.warn, **secret)
    nodes = f"{clients} nodes in {place.root}"
    if no_data:
        console.say(
            f"{nodes}; give each machine its folder, start the SuperLink, then: fedaws flower register {folder}"
        )
    else:
        console.say(f"{nodes}; try them on this machine with: fedaws flower up {folder}")


@app.command("register", epilog="Example: fedaws flower register trial")
def register_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder with the server's part of a federation.")],
) -> None:
    """Tell the SuperLink that flwr/config.toml names which nodes there are, with their names and public keys."""
    from fedaws.flower.up import register

    console.say(f"{len(register(folder))} nodes registered; start theirs, and then a run: flwr run")


@app.command("superlink", epilog="Example: fedaws flower superlink trial --host 0.0.0.0")
def superlink_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder with the server's part of a federation.")],
    host: Annotated[str, typer.Option(help="The address to listen at; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8000,
    database: Annotated[Path | None, typer.Option(help="Its memory, if it is not DIR/server/state.db.")] = None,
) -> None:
    """Be Flower's SuperLink, guarded: only its own user controls it, and bodies are bounded before they are read."""
    from fedaws.flower.superlink import run_superlink

    run_superlink(folder, host, port, database)


@app.command("node", epilog="Example: fedaws flower node node-3 --superlink server.example:8000")
def node_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The node's folder: key, ca.crt, data.npz.")],
    superlink: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where the SuperLink is.")],
    class_id: Annotated[int | None, typer.Option(min=0, help="Refuse to train for any other class.")] = None,
    data: Annotated[Path | None, typer.Option(help="Its examples, if they are not in DIR/data.npz.")] = None,
    key: Annotated[Path | None, typer.Option(help="Its private key, if it is not DIR/key.")] = None,
    own: Annotated[
        str | None, typer.Option("--app", metavar="MODULE:NAME", help="A ClientApp of your own, from DIR or a package.")
    ] = None,
    poll: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks for a message, at most.")] = 3.0,
) -> None:
    """Be a node: one process that stays, runs no code of the server's and opens no port; Ctrl-C ends it."""
    from fedaws.flower.node import OWN_APP, run_node

    run_node(folder, superlink, app=own or OWN_APP, class_id=class_id, data=data, key=key, poll=poll)


@app.command("up", epilog="Example: fedaws flower up trial")
def up_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder by `fedaws flower init`.")], json: Json = False
) -> None:
    """Run a federation on this machine: SuperLink and nodes on loopback, with TLS and keys; or go on with it."""
    from fedaws.flower.up import up
    from fedaws.record.folder import RunFolder

    last = up(folder, console.say)[-1]
    run = folder / "run"
    show_run(RunFolder(run).config(), last, run, str(run), json)


def _shape(no_data: bool, text: str | None, dtype: str) -> tuple[int, ...] | None:
    """The shape of an example where the data are on the nodes; None where they are here."""
    if not no_data:
        if text is not None:
            raise FedawsError("--example-shape goes with --no-data; otherwise the data show their shape")
        return None
    sizes = [part.strip() for part in (text or "").split(",")]
    if not all(size.isascii() and size.isdigit() and 0 < int(size) < 2**31 for size in sizes):
        raise FedawsError(f"--example-shape: got {text or 'nothing'!r:.40}; wanted sizes, as in 64 or 1,28,28")
    if dtype not in ("float32", "uint8"):
        raise FedawsError(f"--example-dtype: got {dtype!r:.40}; wanted float32 or uint8")
    return tuple(map(int, sizes))
