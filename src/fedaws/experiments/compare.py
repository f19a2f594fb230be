"""Several methods and seeds side by side: the runs, their means, and where they lie."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from fedaws.config import Config
from fedaws.core.method import Method
from fedaws.core.methods import method_names, method_of, named_after
from fedaws.data import FederatedData
from fedaws.errors import FedawsError
from fedaws.evaluate import Measure
from fedaws.evaluate.catalogue import format_mean, measures_in
from fedaws.record.journal import Metrics
from fedaws.training.session import Reporter
from fedaws.training.train import train
from fedaws.training.warm_start import Start


@dataclass(frozen=True)
class Comparison:
    """What methods came to.

    Attributes
    ----------
    histories
        Method → one list of metric rows per seed.
    """

    histories: dict[str, list[list[Metrics]]]

    @property
    def summary(self) -> dict[str, dict[str, dict[str, Any]]]:
        """For each method and measure the `mean`, `std` (None of one run) and `runs` of the last round."""
        return {
            method: {name: _statistics([rows[-1][name] for rows in runs]) for name in measures_in(runs[0][-1])}
            for method, runs in self.histories.items()
        }

    def __str__(self) -> str:
        figures = {method: measures["precision@1"] for method, measures in self.summary.items()}
        lines = [
            f"{method}: precision@1 {format_mean(v['mean'], v['std'], 'percent')}" for method, v in figures.items()
        ]
        return "\n".join(lines)


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
    methods: Sequence[str | Method],
    data: FederatedData | None = None,
    encoder: nn.Module | None = None,
    config: Config | None = None,
    *,
    seeds: int = 1,
    start: Start | None = None,
    measures: Mapping[str, Measure] | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    reporter: Callable[[Config], Reporter] = lambda _: Reporter(),
) -> Comparison:
    """Train several methods with the same data, encoder and settings.

    Parameters
    ----------
    methods
        Names of the package's methods, or methods of your own.
    data, encoder, config, start, measures
        As in :func:`fedaws.train`. Every run starts from a copy of the encoder.
    seeds
        Runs for each method, with `config.seed` and the numbers after it.
    folder
        Where the runs are recorded, each in a folder of its own below it; `fedaws report FOLDER` shows them together.
    resume
        Go on with what is there.
    reporter
        Makes a reporter for each run, from its configuration.

    Returns
    -------
    Comparison
        The metrics of every run and their means.
    """
    cfg = config or Config()
    if isinstance(methods, str) or not isinstance(seeds, int):
        raise FedawsError(f"got methods={methods!r:.100} and seeds={seeds!r:.100}; wanted a list and a number")
    if seeds < 1 or not methods:
        raise FedawsError(f"got {len(methods)} methods and seeds={seeds}; wanted at least one of each")
    # All of them before the first run: a mistake in the last one shows at once.
    several = len(methods) > 1
    jobs = [
        (named.with_(seed=seed), method)
        for method in methods
        for named in [cfg.with_(method=method) if isinstance(method, str) else named_after(method, cfg, several)]
        for seed in range(cfg.seed, cfg.seed + seeds)
    ]
    names = [one.method for one, _ in jobs[::seeds]]
    if len(set(names)) < len(names):
        raise FedawsError(f"two methods have one name, of {', '.join(names)}; give each a name of its own")
    for one, method in jobs:
        if isinstance(method, str):
            method_of(one)
    histories: dict[str, list[list[Metrics]]] = {}
    for one, method in jobs:
        run = train(
            data,
            deepcopy(encoder),
            one,
            method=None if isinstance(method, str) else method,
            start=start,
            measures=measures,
            folder=None if folder is None else Path(folder) / f"{one.method}-seed{one.seed}",
            resume=resume,
            reporter=reporter(one),
        )
        histories.setdefault(one.method, []).append(run.metrics)
    return Comparison(histories)


def _statistics(values: list[float]) -> dict[str, Any]:
    spread = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.fmean(values), "std": spread, "runs": values}
