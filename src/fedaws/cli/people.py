"""`fedaws enroll | verify | identify | remove | forget | trials | predict | demo | export`: a model after training."""

from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from fedaws.cli import console
from fedaws.cli.common import Json, print_json, user_errors
from fedaws.cli.tables import text_table
from fedaws.errors import FedawsError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedaws.data.strangers import Part
    from fedaws.evaluate.error_rates import Comparisons, Threshold
    from fedaws.evaluate.trials import Scored
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
    app.command("enroll", epilog="Example: fedaws enroll people.safetensors Ada ada/*.wav -m runs/first")(
        enroll_command
    )
    app.command("verify", epilog="Example: fedaws verify people.safetensors Ada new.wav -m runs/first -t 0.6")(
        verify_command
    )
    app.command("identify", epilog="Example: fedaws identify people.safetensors new.wav -m runs/first -t 0.6")(
        identify_command
    )
    app.command("remove", epilog="Example: fedaws remove people.safetensors Ada")(remove_command)
    app.command("forget", epilog="Example: fedaws forget runs/first Ada --gallery people.safetensors")(forget_command)
    app.command("trials", epilog="Example: fedaws trials runs/first strangers --far 0.01 --json > measured.json")(
        trials_command
    )
    app.command("predict", epilog="Example: fedaws predict runs/delicious test.txt --top 5")(predict_command)
    app.command("demo", epilog="Example: fedaws demo voices")(demo_command)
    app.command("export", epilog="Example: fedaws export runs/first --out phone --thresholds measured.json")(
        export_command
    )


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
    with user_errors():
        people, x = _opened(gallery, model, files)
        score, limit = people.score(name, x), people.threshold_of(name, threshold)
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
    with user_errors():
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


def trials_command(
    source: Annotated[
        Path, typer.Argument(metavar="RUN|EXPORTED|SCORES", help="A model's folder, or a file of scores of the list.")
    ],
    trials: Annotated[
        Path | None,
        typer.Argument(
            metavar="[LIST|PEOPLE]",
            help="A trial list (Kaldi, VoxCeleb, LFW) whose names are files; a folder with a folder for each person; "
            "or an .npz with x and whose each is, y; none: the run's own strangers, or without them its own test "
            "examples, of people who trained.",
        ),
    ] = None,
    files: Annotated[
        Path | None, typer.Option(help="The folder of the list's files; the list's own by default.")
    ] = None,
    enroll: Annotated[
        int | None, typer.Option(min=1, help="Examples that enrol a person, the first ones; 5, or as the run has it.")
    ] = None,
    far: Annotated[
        float | None,
        typer.Option(
            help="Also the threshold for this false acceptance rate; wants five people and 10/FAR comparisons of two."
        ),
    ] = None,
    frr: Annotated[float | None, typer.Option(help="Or for this false rejection rate.")] = None,
    p_target: Annotated[float, typer.Option(help="Of minDCF.")] = 0.01,
    draws: Annotated[int, typer.Option(min=1, help="Of the bootstrap over people.")] = 300,
    out: Annotated[Path | None, typer.Option("--out", metavar="SCORES", help="Write the list's scores here.")] = None,
    json: Json = False,
) -> None:
    """Measure error rates on people who took no part in training, with intervals over people.

    Of a run folder they are kept there, and `fedaws report RUN` shows them.
    """
    with user_errors():
        from fedaws.evaluate.error_rates import min_cllr
        from fedaws.evaluate.trials import write_scores
        from fedaws.people.strangers import final, threshold_among

        people = trials is not None and (trials.is_dir() or trials.suffix.lower() == ".npz")
        if out is not None and (trials is None or people):
            raise FedawsError("--out writes the scores of a list; people have no names for them")
        sure, trained, parts = True, False, dict["Part", "Named"]()
        if trials is None:
            parts, trained = _of_the_run(source, enroll)
        elif people:
            parts["strangers"] = _compared_all(source, trials, enroll or 5)
        else:
            scores = _scored(source, trials, files or trials.parent)
            parts["strangers"] = _compared(scores)
            sure = parts["strangers"].sure
            if out is not None:
                write_scores(out, scores)
        compared = {part: named.found for part, named in parts.items()}
        part, found = final(compared)
        if (names := parts[part].names) is not None:
            _keep(source, found, names, trained)
        measured = _figures(found, sure, far, p_target, draws)
        told: dict[str, Any] = {"targets": len(found.targets), "nontargets": len(found.nontargets), **measured}
        if trials is None and not trained:
            told["people"] = part
        told["min_cllr"] = {"value": min_cllr(found.targets, found.nontargets), "low": None, "high": None}
        if far is not None or frr is not None:
            if not sure:
                raise FedawsError(
                    "a threshold is measured over people; name examples person/file, of five people or more"
                )
            told["threshold"] = _threshold_dict(threshold_among(compared, far=far, frr=frr, draws=draws))
        print_json(told) if json else _show(told)


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
    json: Json = False,
) -> None:
    """Print the likeliest classes of each example in a file: a line each, `class score` from the best on."""
    with user_errors():
        from fedaws.people.predict import predict
        from fedaws.training.run import load

        loaded = load(run, rows=rows)
        if save_rows is not None:
            loaded.save_half_rows(save_rows)
        guesses = predict(loaded, file, top, batch)
        if json:
            print_json({"examples": [[guess._asdict() for guess in each] for each in guesses]})
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
    with_rows: Annotated[
        bool, typer.Option("--with-rows", help="Also the rows of W, as enrolled people: templates of everybody.")
    ] = False,
    json: Json = False,
) -> None:
    """Write the encoder for devices, as ONNX for `fedaws.device` (no torch) or any other runtime."""
    with user_errors():
        if quantize not in (None, "int8"):
            raise FedawsError(f"--quantize {quantize}; wanted int8, or nothing")
        from fedaws.people.export import export, read_threshold
        from fedaws.training.run import load

        if thresholds is not None and (far is not None or frr is not None):
            raise FedawsError("--thresholds has been measured, --far and --frr are to be; give one of them")
        threshold = None if thresholds is None else read_threshold(thresholds)
        loaded = load(run)
        if far is not None or frr is not None:
            from fedaws.people.strangers import run_threshold

            threshold = run_threshold(loaded, far=far, frr=frr)
        folder = export(loaded, out, quantize="int8" if quantize else None, threshold=threshold, with_rows=with_rows)
        size = (folder / "encoder.onnx").stat().st_size
        if json:
            print_json({"folder": str(folder), "bytes": size, "quantized": quantize})
        else:
            print(f"{folder / 'encoder.onnx'} ({size:,} bytes) and model.json are written")


# --- inside -----------------------------------------------------------------------------------------------------------


def _opened(gallery: Path, model: Path, files: list[Path]) -> "tuple[Gallery, Any]":
    """The gallery and the examples."""
    from fedaws.people.gallery import Gallery
    from fedaws.people.inputs import load_model, read_examples

    loaded = load_model(model)
    return Gallery(gallery, loaded), read_examples(files, loaded)


class Named(NamedTuple):
    """Comparisons, and the people's names if they are known."""

    found: "Comparisons"
    names: "Sequence[str] | None"

    @property
    def sure(self) -> bool:
        """Whether there are intervals over people."""
        return self.names is not None and self.found.num_people >= 5


def _compared_all(source: Path, path: Path, enroll: int) -> Named:
    """All comparisons of people's examples."""
    import numpy as np

    from fedaws.evaluate.error_rates import comparisons
    from fedaws.people.gallery import embeddings_of
    from fedaws.people.inputs import load_model, read_people

    model = load_model(source)
    x, people = read_people(path, model)
    names = [str(name) for name in np.unique(people)]
    known = sorted(set(names) & set(getattr(model, "class_names", None) or ()))
    if known:
        few = ", ".join(known[:3]) + (", …" if len(known) > 3 else "")
        who = f"{len(known)} of {len(names)} people have the names of people who trained ({few})"
        console.warn(f"{who}; leave them out")
    return Named(comparisons(embeddings_of(model, x), people, enroll), names)


def _of_the_run(source: Path, enroll: int | None) -> "tuple[dict[Part, Named], bool]":
    """A run's strangers; where it has none its own test examples, of people who trained."""
    import numpy as np

    from fedaws.evaluate.error_rates import comparisons
    from fedaws.people.inputs import load_model, tested_people
    from fedaws.people.strangers import run_comparisons
    from fedaws.training.run import Run

    model = load_model(source)
    if not isinstance(model, Run):
        raise FedawsError(f"{source} is an exported model, which has no strangers; give people who took no part")
    if model.strangers:
        names = model.strangers
        return {part: Named(found, names[part].names) for part, found in run_comparisons(model, enroll).items()}, False
    console.warn("these people took part in training: of others more are accepted; give examples of strangers")
    embeddings, people = tested_people(model, enroll or 5)
    own = Named(comparisons(embeddings, people, enroll or 5), [str(name) for name in np.unique(people)])
    return {"strangers": own}, True


def _keep(source: Path, found: "Comparisons", names: "Sequence[str]", trained: bool) -> None:
    """Beside the run, for its report."""
    from fedaws.evaluate.people import examine_people
    from fedaws.files import only_writer
    from fedaws.record.folder import RunFolder

    folder = RunFolder(source)
    if folder.started:
        with only_writer(source):
            folder.save_people(examine_people(found, names, trained))


def _scored(source: Path, trials: Path, folder: Path) -> "list[Scored]":
    from fedaws.evaluate.trials import labelled, read_scores, read_trials
    from fedaws.people.inputs import load_model
    from fedaws.people.scoring import score_files

    known = read_trials(trials)
    if source.is_file():
        return labelled(read_scores(source), known)
    return score_files(load_model(source), known, folder)


def _compared(scores: "list[Scored]") -> Named:
    """The comparisons and the people's names; without, None, and every name is taken for a person of its own."""
    import numpy as np

    from fedaws.evaluate.error_rates import Comparisons
    from fedaws.evaluate.trials import compared, person_of

    try:
        found = compared(scores)
        if found.num_people < 5:
            console.warn(f"{found.num_people} people are too few for intervals; wanted five or more")
        return Named(found, sorted({person_of(n) for each in scores for n in (each.enrolled, each.tested)}))
    except FedawsError as error:
        console.warn(f"no intervals: {error}")
    target = np.array([bool(each.target) for each in scores])
    number = np.arange(len(scores))
    of_nobody = Comparisons(np.array([each.score for each in scores]), np.zeros_like(number), 1 - target, number)
    return Named(of_nobody, None)


def _figures(found: "Comparisons", sure: bool, far: float | None, p_target: float, draws: int) -> dict[str, Any]:
    from fedaws.evaluate.error_rates import auc, eer, frr_at_far, min_dcf, summary

    if sure and found.num_people >= 5:
        return {name: each._asdict() for name, each in summary(found, far, p_target, draws).items()}
    own, others = found.targets, found.nontargets
    values = {"eer": eer(own, others), "min_dcf": min_dcf(own, others, p_target), "auc": auc(own, others)}
    if far is not None:
        values["frr_at_far"] = frr_at_far(own, others, far)
    return {name: {"value": value, "low": None, "high": None} for name, value in values.items()}


def _threshold_dict(measured: "Threshold") -> dict[str, Any]:
    return {
        "threshold": measured.threshold,
        "far": measured.far._asdict(),
        "frr": measured.frr._asdict(),
        "people": measured.people,
    }


def _show(told: dict[str, Any]) -> None:
    titles = {
        "eer": "equal error rate",
        "min_dcf": "minDCF",
        "auc": "AUC",
        "frr_at_far": "FRR at that FAR",
        "min_cllr": "min Cllr",
    }
    rows = [(title, *_cells(told[key])) for key, title in titles.items() if key in told]
    threshold = told.get("threshold")
    if threshold:
        rows += [(f"FAR at {threshold['threshold']:.4f}", *_cells(threshold["far"]))]
        rows += [(f"FRR at {threshold['threshold']:.4f}", *_cells(threshold["frr"]))]
    console.out.print(text_table(["", "measured", "95 % interval over people"], rows))
    whose = f", of the run's {told['people'].replace('_', ' ')}" if "people" in told else ""
    print(f"{told['targets']:,} comparisons of one person, {told['nontargets']:,} of two{whose}")
    if threshold:
        print(f"threshold {threshold['threshold']:.6f}")


def _cells(figure: dict[str, Any]) -> tuple[str, str]:
    value, low, high = figure["value"], figure["low"], figure["high"]
    return f"{value:.4f}", "–" if low is None else f"{low:.4f} … {high:.4f}"
