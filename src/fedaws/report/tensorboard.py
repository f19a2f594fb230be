"""Runs for TensorBoard: every measure by round, and W for its projector. Made from the run folder, when asked."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fedaws.errors import FedawsError
from fedaws.report.collect import collect
from fedaws.report.run_data import RunData, class_matrix

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

MOST_CLASSES = 10_000
"""Of more the projector shows every so-manieth: it holds all numbers in the browser."""


def export(paths: Sequence[Path], target: Path) -> list[str]:
    """Write a folder of events for each run below `target`; returns what a reader should know of them.

    What an earlier export has written there is replaced, so that a run can be looked at while it goes on.
    """
    writer_class = _writer_class()
    collected = collect(paths)
    notices = list(collected.notices)
    names: list[str] = []
    for run in collected.runs:
        names.append(run.name)
        place = target / run.name
        if names.count(run.name) > 1:
            place = place.with_name(f"{place.name}-{names.count(run.name)}")
        for old in place.glob("events.out.tfevents.*"):
            old.unlink()
        with writer_class(str(place)) as writer:
            _scalars(run, writer)
            _projector(run, writer, notices)
    return notices


def _writer_class() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - an extra
    except ImportError:
        raise FedawsError("TensorBoard is not installed; install it: pip install 'fedaws[tensorboard]'") from None
    return SummaryWriter


def _scalars(run: RunData, writer: "SummaryWriter") -> None:
    for row in run.rows:
        for name, value in row.items():
            if name != "round":  # the time of a point is that of training so far
                writer.add_scalar(name.replace("@", "_at_"), value, int(row["round"]), walltime=row.get("seconds", 0.0))


def _projector(run: RunData, writer: "SummaryWriter", notices: list[str]) -> None:
    W = class_matrix(run, notices)
    if W is None or run.facts is None:
        return
    classes = torch.arange(0, len(W), -(-len(W) // MOST_CLASSES))
    if len(classes) < len(W):
        notices.append(f"{run.name}: {len(classes):,} of {len(W):,} classes are in the projector")
    names = run.facts.class_names or [str(c) for c in range(len(W))]
    labels = [" ".join(names[c].split()) or str(c) for c in classes.tolist()]
    writer.add_embedding(W[classes], metadata=labels, global_step=run.facts.round, tag="W")
