"""`fedaws trials`: error rates on people who took no part, and thresholds."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fedaws.cli import console
from fedaws.cli.common import Json, print_json, user_errors
from fedaws.cli.tables import text_table
from fedaws.errors import FedawsError

Ask = Annotated[
    int,
    typer.Option(min=1, help="Examples that are asked about at once, as `verify` and `identify` take several as one."),
]


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
    ask: Ask = 1,
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
        from fedaws.evaluate.trials import write_scores
        from fedaws.people.trials import examined, measure, try_list, try_people, try_run

        people = trials is not None and (trials.is_dir() or trials.suffix.lower() == ".npz")
        listed = trials is not None and not people
        if out is not None and not listed:
            raise FedawsError("--out writes the scores of a list; people have no names for them")
        if ask > 1 and listed:
            raise FedawsError(f"--ask {ask}: a list says itself what is asked about; name folders of examples in it")
        if trials is None:
            tried = try_run(source, enroll, ask)
        elif people:
            tried = try_people(source, trials, enroll or 5, ask)
        else:
            tried = try_list(source, trials, files or trials.parent)
        if tried.warning:
            console.warn(tried.warning)
        told = measure(tried, far, frr, p_target, draws)  # all that can be refused is, before anything is written
        if out is not None:
            write_scores(out, tried.scores)
        _keep(source, examined(tried))
        print_json(told) if json else _show(told)


def _keep(source: Path, people: dict[str, Any] | None) -> None:
    """Beside the run, for its report."""
    from fedaws.files import only_writer
    from fedaws.record.folder import RunFolder

    folder = RunFolder(source)
    if people is not None and folder.started:
        with only_writer(source):
            folder.save_people(people)


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
    at_once = f", {told['ask']} examples at once" if (told["ask"] or 1) > 1 else ""
    print(f"{told['targets']:,} comparisons of one person, {told['nontargets']:,} of two{whose}{at_once}")
    if threshold:
        print(f"threshold {threshold['threshold']:.6f}")


def _cells(figure: dict[str, Any]) -> tuple[str, str]:
    value, low, high = figure["value"], figure["low"], figure["high"]
    return f"{value:.4f}", "–" if low is None else f"{low:.4f} … {high:.4f}"
