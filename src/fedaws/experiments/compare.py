"""Several methods and seeds side by side: the runs, their means, and where they lie."""

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedaws.config import Config, parse
from fedaws.core.methods import method_names
from fedaws.errors import FedawsError
from fedaws.record.journal import Metrics
from fedaws.training.session import Reporter
from fedaws.training.train import train

SHOWN = (
    "precision@1",
    "precision@3",
    "precision@5",
    "psp@1",
    "psp@3",
    "psp@5",
    "loss",
    "min_separation",
    "max_cosine",
    "positive_radius",
    "error_bound",
)

Histories = dict[str, list[list[Metrics]]]
"""Method → one list of metric rows per seed."""


def parse_methods(text: str) -> list[str]:
    """The methods in a comma-separated list, checked.

    >>> parse_methods("fedaws, fixed")
    ['fedaws', 'fixed']
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in method_names()]
    if unknown or not names:
        raise FedawsError(f"unknown method {', '.join(unknown) or text!r}; there are {', '.join(method_names())}")
    return list(dict.fromkeys(names))


def compare(
    cfg: Config, methods: Sequence[str], seeds: int, folder: Path, resume: bool, reporter: Callable[[Config], Reporter]
) -> Histories:
    """Train every method with every seed, each in a folder of its own below `folder`."""
    first = cfg.seed
    # All of them before the first run: a mistake in the last one shows at once.
    configs = [parse(cfg.model_dump() | {"method": m, "seed": s}) for m in methods for s in range(first, first + seeds)]
    histories: Histories = {}
    for one in configs:
        place = folder / f"{one.method}-seed{one.seed}"
        run = train(config=one, folder=place, resume=resume, reporter=reporter(one))
        histories.setdefault(one.method, []).append(run.metrics)
    return histories


def summarize(histories: Histories) -> dict[str, dict[str, dict[str, Any]]]:
    """Mean, standard deviation and single figures of the last round, per method and measure."""
    return {
        method: {name: _statistics([rows[-1][name] for rows in runs]) for name in SHOWN if name in runs[0][-1]}
        for method, runs in histories.items()
    }


def _statistics(values: list[float]) -> dict[str, Any]:
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return {"mean": statistics.fmean(values), "std": spread, "runs": values}
