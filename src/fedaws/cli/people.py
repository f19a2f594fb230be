"""`fedaws enroll | verify | identify | remove | forget | predict | demo | export`: a model after training."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedaws.cli import console
from fedaws.cli.common import Json, print_json, user_errors
from fedaws.cli.trials import Ask, trials_command
from fedaws.errors import FedawsError

if TYPE_CHECKING:
    from fedaws.people.gallery import Gallery

GalleryFile = Annotated[Path, typer.Argument(metavar="GALLERY", help="The file of who is enrolled.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Any text without control characters.")]
Files = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE…", help="Examples of one person: sounds, pictures, .npz files with an array x, or folders."
    ),
]
ModelFolder = Annotated[
    Path, typer.Option("--model", "-m", metavar="RUN|EXPORTED", help="A run folder, or one by `fedaws export`.")
]
Limit = Annotated[
    float | None,
    typer.Option(
        "--threshold",
        "-t",
        help="Accept from this score on, a cosine (see `fedaws trials`); else the person's own or the exported one.",
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for name, command, example in (
        ("enroll", enroll_command, "people.safetensors Ada ada/*.wav -m runs/first"),
        ("verify", verify_command, "people.safetensors Ada new.wav -m runs/first -t 0.6"),
        ("identify", identify_command, "people.safetensors new.wav -m runs/first -t 0.6"),
        ("remove", remove_command, "people.safetensors Ada"),
        ("forget", forget_command, "runs/first Ada --gallery people.safetensors"),
        ("trials", trials_command, "runs/first strangers --far 0.01 --json > measured.json"),
        ("predict", predict_command, "runs/delicious test.txt --top 5"),
        ("demo", demo_command, "voices"),
        ("export", export_command, "runs/first --out phone --thresholds measured.json"),
    ):
        app.command(name, epilog=f"Example: fedaws {name} {example}")(command)


def enroll_command(
    gallery: GalleryFile,
    name: Name,
    files: Files,
    model: ModelFolder,
    add: Annotated[bool, typer.Option("--add", help="More examples of somebody who is enrolled.")] = False,
    min_cohesion: Annotated[
        float | None, typer.Option(help="The least mean cosine of an example with the person's others; 0 by default.")
    ] = None,
    json: Json = False,
) -> None:
    """Enrol somebody, who need not have been in the training, by a few examples; no training is needed."""
    with user_errors():
        people, x = _opened(gallery, model, files)
        given = {} if min_cohesion is None else {"min_cohesion": min_cohesion}
        person = people.add(name, x, **given) if add else people.enroll(name, x, **given)
        if json:
            print_json({"name": person.name, "examples": person.count, "people": len(people)})
        else:
            print(f"{person.name}: {person.count} examples; {len(people)} enrolled in {gallery}")


def verify_command(
    gallery: GalleryFile, name: Name, files: Files, model: ModelFolder, threshold: Limit = None, json: Json = False
) -> None:
    """Is this who they say? Exit code 1 if not. Several examples are asked about as one."""
    with user_errors(), _doubts_shown():
        people, x = _opened(gallery, model, files)
        score, limit = people.score(name, x), people.threshold_of(name, threshold, len(x))
        accepted = score >= limit
        if json:
            print_json({"name": name, "accepted": accepted, "score": score, "threshold": limit})
        else:
            print(f"{'yes' if accepted else 'no'}: {name} scores {score:.3f}, threshold {limit:.3f}")
        raise typer.Exit(0 if accepted else 1)


def identify_command(
    gallery: GalleryFile,
    files: Files,
    model: ModelFolder,
    threshold: Limit = None,
    margin: Annotated[float, typer.Option(help="The least lead over the second.")] = 0.0,
    json: Json = False,
) -> None:
    """Who is this? Exit code 1 for nobody who is enrolled. Several examples are asked about as one."""
    with user_errors(), _doubts_shown():
        people, x = _opened(gallery, model, files)
        found = people.identify(x, threshold, margin)
        nearest = people.nearest(x)
        if json:
            scores = [{"name": name, "score": score} for name, score in nearest]
            limit = people.threshold_of(nearest[0][0], threshold) if nearest else threshold
            print_json({"name": found, "nearest": scores, "threshold": limit, "margin": margin})
        else:
            shown = ", ".join(f"{name} {score:.3f}" for name, score in nearest) or "nobody is enrolled"
            print(f"{'nobody' if found is None else found} (nearest: {shown})")
        raise typer.Exit(1 if found is None else 0)


def remove_command(gallery: GalleryFile, name: Name, json: Json = False) -> None:
    """Forget somebody: nothing of them is left in the gallery. The model is not needed."""
    with user_errors():
        from fedaws.device.errors import DeviceError
        from fedaws.device.gallery import remove

        try:
            left = remove(gallery, name)
        except DeviceError as error:
            raise FedawsError(str(error)) from None
        print_json({"removed": name, "people": left}) if json else print(f"{name} is gone; {left} left in {gallery}")


def forget_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, finished or not.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of a class; its number where classes have no names.")],
    gallery: Annotated[
        list[Path] | None, typer.Option("--gallery", metavar="GALLERY", help="Also remove them here; repeatable.")
    ] = None,
    json: Json = False,
) -> None:
    """Somebody leaves: no row, name or picture of theirs stays in a run's folder, and it goes on without them.

    What θ has learnt from them stays; benchmarks/unlearning.py measures it.
    """
    with user_errors():
        from fedaws.device.errors import DeviceError
        from fedaws.device.gallery import remove
        from fedaws.people.forget import forget

        found = forget(run, name)
        try:
            left = {str(path): remove(path, name) for path in gallery or ()}
        except DeviceError as error:
            raise FedawsError(f"gone from {run}, but {error}") from None
        if json:
            print_json({"forgotten": name, "class": found.number, "files": len(found.files), "galleries": left})
        else:
            print(f"{name} is gone from {len(found.files)} files of {run}; θ still has what it learnt from them")


def predict_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="Examples: a text of the XC repository or a matrix by scipy.sparse.save_npz where they are sparse, "
            "else an .npz with an array x, a picture, a sound, or a folder of them.",
        ),
    ],
    top: Annotated[int, typer.Option(min=1, help="So many classes of each example.")] = 5,
    rows: Annotated[
        Path | None, typer.Option(metavar="FILE", help="W in half precision, by --save-rows: it is not held in memory.")
    ] = None,
    save_rows: Annotated[
        Path | None, typer.Option(metavar="FILE", help="First write W there in half precision, for --rows.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Examples at a time.")] = 4096,
    names: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Names of the classes, one per line, the first of class 0.")
    ] = None,
    json: Json = False,
) -> None:
    """Print the likeliest classes of each example in a file: a line each, `class score` from the best on."""
    with user_errors():
        from fedaws.data.sources.xc import read_names
        from fedaws.people.predict import predict, read_file, rows_without_features
        from fedaws.training.run import load

        loaded = load(run, rows=rows)
        called = None if names is None else read_names(names, len(loaded.model.W))
        if save_rows is not None:
            loaded.save_half_rows(save_rows)
        x = read_file(loaded, file)
        empty = rows_without_features(x)
        if empty:
            console.warn(
                f"{len(empty):,} of {len(x):,} rows have no features, the first is row {empty[0]} (from 0 on); their "
                "classes and scores mean nothing"
            )
        guesses = predict(loaded, x, top, batch, called)
        if json:
            examples = [[guess._asdict() for guess in each] for each in guesses]
            print_json({"examples": examples, "rows_without_features": empty})
            return
        for each in guesses:
            print("\t".join(f"{guess.name} {guess.score:.4f}" for guess in each))


def demo_command(
    what: Annotated[str, typer.Argument(metavar="voices", help="What the door knows people by: voices.")],
    model: Annotated[
        Path | None,
        typer.Option("--model", "-m", metavar="RUN|EXPORTED", help="A model of sound; by default one of made voices."),
    ] = None,
    threshold: Limit = None,
    gallery: Annotated[
        Path | None, typer.Option(help="Keep who is enrolled in this file; by default they are forgotten at the end.")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 0,
) -> None:
    """Show enrolling, opening, rejecting and forgetting on a page of this computer's own; Ctrl-C ends it."""
    with user_errors(), TemporaryDirectory() as aside:
        if what != "voices":
            raise FedawsError(f"demo {what}; wanted voices")
        from fedaws.people.demo import Door, made_model, server
        from fedaws.people.inputs import load_model

        if model is None:
            console.say("training on thirty voices that nobody has …")
            loaded, measured = made_model()
            door = Door(loaded, gallery or Path(aside, "people"), measured if threshold is None else threshold)
        else:
            door = Door(load_model(model), gallery or Path(aside, "people"), threshold)
        with server(door, port) as page:
            print(f"open http://127.0.0.1:{page.server_port}/ in a browser; Ctrl-C ends it", flush=True)
            with suppress(KeyboardInterrupt):
                page.serve_forever()


def export_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where encoder.onnx and model.json go.")],
    quantize: Annotated[str | None, typer.Option(help="int8: weights of eight bits, a quarter of the size.")] = None,
    thresholds: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="What `fedaws trials … --far … --json` printed.")
    ] = None,
    far: Annotated[
        float | None,
        typer.Option(help="A threshold for this FAR, by the run's own strangers (data.strangers), five or more."),
    ] = None,
    frr: Annotated[float | None, typer.Option(help="Or for this FRR.")] = None,
    ask: Ask = 1,
    with_rows: Annotated[
        bool, typer.Option("--with-rows", help="Also the rows of W, as enrolled people: templates of everybody.")
    ] = False,
    json: Json = False,
) -> None:
    """Write the encoder for devices, as ONNX for `fedaws.device` (no torch) or any other runtime."""
    with user_errors():
        if quantize not in (None, "int8"):
            raise FedawsError(f"--quantize {quantize}; wanted int8, or nothing")
        from fedaws.people.export import export
        from fedaws.people.threshold_file import read_threshold
        from fedaws.training.run import load

        if thresholds is not None and (far is not None or frr is not None):
            raise FedawsError("--thresholds has been measured, --far and --frr are to be; give one of them")
        if ask > 1 and far is None and frr is None:
            raise FedawsError(f"--ask {ask} is for a threshold that is measured; give --far or --frr")
        threshold = None if thresholds is None else read_threshold(thresholds)
        loaded = load(run)
        if far is not None or frr is not None:
            from fedaws.people.strangers import run_threshold

            threshold = run_threshold(loaded, far=far, frr=frr, ask=ask)
        folder = export(loaded, out, quantize="int8" if quantize else None, threshold=threshold, with_rows=with_rows)
        size = (folder / "encoder.onnx").stat().st_size
        if json:
            print_json({"folder": str(folder), "bytes": size, "quantized": quantize})
        else:
            print(f"{folder / 'encoder.onnx'} ({size:,} bytes) and model.json are written")


# --- inside -----------------------------------------------------------------------------------------------------------


@contextmanager
def _doubts_shown() -> Iterator[None]:
    """A decision by a threshold that was measured otherwise has a line beside it."""
    from fedaws.device.errors import DeviceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("always", DeviceWarning)
        warnings.showwarning = lambda message, *_, **__: console.warn(str(message))
        yield


def _opened(gallery: Path, model: Path, files: list[Path]) -> "tuple[Gallery, Any]":
    """The gallery and the examples."""
    from fedaws.people.gallery import Gallery
    from fedaws.people.inputs import load_model, read_examples

    loaded = load_model(model)
    return Gallery(gallery, loaded), read_examples(files, loaded)
