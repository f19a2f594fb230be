"""What a person sees while a run goes on: progress and messages."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

if TYPE_CHECKING:
    from fedaws.training.session import Reporter  # and with it torch, which takes seconds

out = Console()
err = Console(stderr=True)


class Stop:
    """Set by Ctrl-C or SIGTERM: the run ends after its round, with a checkpoint. A second Ctrl-C ends it at once."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __call__(self) -> bool:
        return self.signal is not None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Catch the signals while inside."""
        old = {s: signal.signal(s, self._caught) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)

    def _caught(self, number: int, _frame: FrameType | None) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number


@contextmanager
def progress(stop: Stop) -> Iterator[Callable[[str], "Reporter"]]:
    """Makes a reporter per run, by its label: live bars on a terminal, plain lines elsewhere."""
    with stop.listening():
        if err.is_interactive and err.file.isatty():  # rich takes FORCE_COLOR in a log for a terminal
            with _bar() as bar:
                yield lambda label: _bar_reporter(bar, label, stop)
        else:
            yield lambda label: _line_reporter(label, stop)


def _bar() -> Progress:
    bar = [BarColumn(bar_width=None)] if err.width >= 100 else []  # the figures come first, also in 80 columns
    return Progress(
        TextColumn("[bold]{task.description}"),
        *bar,
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[rate]}"),
        TextColumn("{task.fields[figures]}"),
        TimeRemainingColumn(table_column=Column(no_wrap=True)),
        console=err,
        refresh_per_second=5,
    )


class _Pace:
    """How far a run is, and how long it will take: with its measurements, which its rate of training leaves out."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.began = time.monotonic()
        self.first = self.total = 0

    def start(self, done: int, total: int) -> None:
        self.began = time.monotonic()
        self.first = done
        self.total = total
        if done:
            say(f"{self.label}  goes on after round {done}/{total}" if done < total else f"{self.label}  is done")

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def line(self, metrics: dict[str, Any]) -> str:
        """All of it for a log."""
        done = metrics["round"]
        figures = _figures(metrics, metrics["loss"])
        line = f"{self.label}  round {done}/{self.total}  {_rate(metrics):.3g} rounds/s  {figures}"
        left = (self.total - done) * self.seconds / max(done - self.first, 1)
        return line if self.ended(metrics) else f"{line}  {left:.0f} s left"

    def ended(self, metrics: dict[str, Any]) -> bool:
        """Whether these are the last: of all rounds, or of the model that is kept."""
        return metrics["round"] == self.total or "kept_round" in metrics


def _rate(metrics: dict[str, Any]) -> float:
    """Rounds in a second of training, over all sittings."""
    return float(metrics["round"]) / max(float(metrics["seconds"]), 1e-3)


def _bar_reporter(bar: Progress, label: str, stop: Stop) -> "Reporter":
    """A bar while the run goes on, and a line at its end: a terminal may have fewer rows than there are runs."""
    from fedaws.training.session import Reporter

    room = max(8, err.width - 62)
    task = bar.add_task(escape(label[:room]), total=None, rate="", figures="")
    pace = _Pace(label)
    latest: dict[str, Any] = {}
    drawn = 0.0

    def on_start(done: int, rounds: int) -> None:
        pace.start(done, rounds)
        bar.update(task, total=rounds, completed=done, visible=done < rounds)

    def on_round(done: int, loss: float) -> None:
        nonlocal drawn
        if pace.seconds - drawn < 0.2:  # drawing is dearer than a small round
            return
        drawn = pace.seconds
        bar.update(task, completed=done, figures=_figures(latest, loss))

    def on_metrics(metrics: dict[str, Any]) -> None:
        latest.update(metrics)
        rate = _rate(metrics)
        text = f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.2g}/s"
        bar.update(task, completed=metrics["round"], rate=text, figures=_figures(latest, metrics["loss"]))
        if pace.ended(metrics):
            bar.update(task, visible=False)
            say(pace.line(metrics))

    return Reporter(on_start, on_round, on_metrics, warn, stop)


def _line_reporter(label: str, stop: Stop) -> "Reporter":
    from fedaws.training.session import Reporter

    pace = _Pace(label)
    printed = -60.0

    def on_metrics(metrics: dict[str, Any]) -> None:
        nonlocal printed
        if pace.seconds - printed < 2 and not pace.ended(metrics):  # a log wants few lines
            return
        printed = pace.seconds
        say(pace.line(metrics))

    return Reporter(on_start=pace.start, on_metrics=on_metrics, on_warning=warn, should_stop=stop)


def _figures(metrics: dict[str, Any], loss: float) -> str:
    figures = f"loss {loss:.3g}"
    if "precision@1" in metrics:
        figures += f"  P@1 {100 * metrics['precision@1']:.1f} %  max cos {metrics['max_cosine']:+.2f}"
    if "strangers_eer" in metrics:
        figures += f"  EER {100 * metrics['strangers_eer']:.1f} %"
    if "kept_round" in metrics:
        figures += f"  kept: round {metrics['kept_round']}"
    if "dp_epsilon" in metrics:
        figures += f"  ε {metrics['dp_epsilon']:.2f}{' (rows: none)' if 'dp_rows_in_clear' in metrics else ''}"
    return figures


def warn(message: str) -> None:
    """Print one line of warning on stderr."""
    err.print(f"[yellow]warning:[/] {escape(message)}", highlight=False, soft_wrap=True)


def say(message: str) -> None:
    """A plain line beside the results."""
    err.print(escape(message), highlight=False, soft_wrap=True)


def say_if(name: str, place: object) -> None:
    """Where something lies, if it was made."""
    if place is not None:
        say(f"{name}: {place}")
