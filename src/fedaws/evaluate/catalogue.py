"""The catalogue of measures: for each column of metrics.jsonl its name, meaning, form, direction and limits.

A measure that is not here is a user's own: it goes by its own name. To show measures elsewhere:
`for key in measures_in(row): print(measure_of(key).title, format_value(row[key], measure_of(key).form))`.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Form = Literal["percent", "cosine", "distance", "number", "seconds"]


@dataclass(frozen=True)
class Measure:
    """One measure. `{examples}` in a note stands for what the model was tested on."""

    key: str
    title: str
    note: str
    form: Form = "number"
    better: Literal["higher", "lower"] | None = None
    low: float | None = None  # limits that a chart shows whatever the values are
    high: float | None = None
    short: str = ""  # the head of a narrow column
    log: bool = False  # drawn on a logarithmic scale where it spans decades
    bounds: str = ""  # the measure that this one is an upper bound of
    own: bool = False  # a user's


def _precision(k: int, note: str, high: float | None = None) -> Measure:
    return Measure(f"precision@{k}", f"Precision@{k}", note, "percent", "higher", 0.0, high, f"precision@{k}")


def _propensity_scored(k: int) -> Measure:
    title = f"Propensity-scored precision@{k}"
    return Measure(f"psp@{k}", title, "Rare labels count more.", "percent", "higher", 0.0, short=f"psp@{k}")


def _error_bound(key: str, title: str, note: str, short: str) -> Measure:
    return Measure(key, title, note, "percent", "lower", 0.0, 1.0, short, bounds="error")


_MEASURES = (
    _precision(1, "Share of {examples} whose best class is right.", high=1.0),
    _precision(3, "At most a third where every example has one label."),
    _precision(5, "At most a fifth where every example has one label."),
    Measure("strangers_eer", "Strangers: equal error rate", "Of people who took no part, to choose by.",
            "percent", "lower", 0.0, short="strangers' EER"),
    Measure("strangers_frr", "Strangers: FRR at FAR 1 %", "Of people who took no part, to choose by.",
            "percent", "lower", 0.0, short="strangers' FRR at FAR 1 %"),
    Measure("test_strangers_eer", "Test strangers: equal error rate", "Of others who took no part; nothing is chosen "
            "by them.", "percent", "lower", 0.0, short="test strangers' EER"),
    Measure("test_strangers_frr", "Test strangers: FRR at FAR 1 %", "Of others who took no part; nothing is chosen by "
            "them.", "percent", "lower", 0.0, short="test strangers' FRR at FAR 1 %"),
    _propensity_scored(1),
    _propensity_scored(3),
    _propensity_scored(5),
    Measure("error", "Error", "Share of {examples} whose best class is wrong.", "percent", "lower", 0.0, 1.0, "error"),
    Measure("loss", "Training loss", "Mean over clients and rounds since the row before; methods differ in it.",
            better="lower", short="loss", log=True),
    Measure("test_loss", "Positive hinge", "On {examples}; the same loss for all methods.",
            better="lower", short="hinge", log=True),
    Measure("max_cosine", "Largest class cosine", "Of the two closest classes. At 1 they have fallen together.",
            "cosine", "lower", high=1.0, short="largest cosine"),
    Measure("min_separation", "ρ, least distance of two classes", "Euclidean, between class embeddings.",
            "distance", "higher", 0.0, short="ρ"),
    Measure("positive_radius", "ε, mean distance of an example to its class", "Euclidean, on {examples}.",
            "distance", "lower", 0.0, short="ε"),
    _error_bound("error_bound", "Proposition 1: error ≤ 2ε/ρ",
                 "Dotted: the error itself. A bound of 100 % says nothing.", "≤ 2ε/ρ"),
    _error_bound("error_bound_cosine", "Proposition 1, cosine distance",
                 "As corrected. Dotted: the error itself.", "≤ cosine form"),
    _error_bound("lemma1_bound", "Lemma 1: error by the contrastive loss",
                 "In its tight form. Dotted: the error itself.", "≤ Lemma 1"),
    Measure("theorem1_gap", "Theorem 1: gap to the contrastive loss", "The gap itself.",
            better="lower", low=0.0, short="Theorem 1 gap"),
    Measure("theorem1_bound", "Theorem 1: gap to the contrastive loss", "The bound; dotted: the gap itself.",
            better="lower", low=0.0, short="≤ bound", bounds="theorem1_gap"),
    Measure("dp_epsilon", "ε spent", "User-level differential privacy of what is released, of all rounds so far.",
            better="lower", low=0.0, short="ε spent"),
)  # fmt: skip

CATALOGUE: dict[str, Measure] = {measure.key: measure for measure in _MEASURES}
"""All measures of the package by their keys, in the order in which people read them."""

SUMMARY = ("precision@1", "max_cosine", "min_separation")
"""What a method is summed up by, and"""

OPEN_SET = ("strangers_eer", "test_strangers_eer")
"""where there are strangers, by these."""

BOOKKEEPING = {"round", "kept_round", "seconds", "replies", "rejected", "largest_change", "round_seconds",
               "import_seconds", "compute_seconds", "server_seconds", "left_out"}  # fmt: skip
"""Columns of metrics.jsonl that measure no model."""


def measure_of(key: str) -> Measure:
    """The measure of this key; one that the catalogue does not know is a user's own.

    >>> measure_of("max_cosine").title, measure_of("eer").title, measure_of("eer").own
    ('Largest class cosine', 'eer', True)
    """
    return CATALOGUE.get(key) or Measure(key, key, "A measure of your own.", short=key, own=True)


def measures_in(keys: Iterable[str]) -> list[str]:
    """The measures among the columns of a row: the catalogue's in its order, then a user's own.

    >>> measures_in({"round": 3, "eer": 0.1, "max_cosine": 0.2, "precision@1": 0.9, "seconds": 4.0})
    ['precision@1', 'max_cosine', 'eer']
    """
    columns = dict.fromkeys(keys)
    known = [key for key in CATALOGUE if key in columns]
    return known + [key for key in columns if key not in CATALOGUE and key not in BOOKKEEPING]


def format_value(value: float, form: Form = "number") -> str:
    """A value as people read it.

    >>> format_value(0.97333, "percent"), format_value(-0.11106, "cosine"), format_value(2.4e-05), format_value(999.7)
    ('97.3 %', '−0.111', '2.4e−5', '1,000')
    >>> format_value(0.25, "seconds"), format_value(0.0)
    ('0.25 s', '0')
    """
    if form == "percent":
        return f"{100 * value:.1f} %"
    if form == "seconds":
        return f"{value:.2f} s" if value >= 0.1 else f"{1000 * value:.3g} ms"
    if value and not 1e-3 <= abs(value) < 1e5:
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa.removesuffix('.0')}e{int(exponent)}".replace("-", "−")
    return (f"{value:.3g}" if abs(value) < 999.5 else f"{value:,.0f}").replace("-", "−")


def format_mean(mean: float, spread: float | None, form: Form = "number") -> str:
    """A mean and its standard deviation, if there is one, as people read them; of a plain number two digits of it.

    >>> format_mean(0.85, 0.071, "percent"), format_mean(-0.111, 0.004, "cosine"), format_mean(0.0437, 0.00707)
    ('85.0 ± 7.1 %', '−0.11 ± 0.00', '0.0437 ± 0.0071')
    >>> format_mean(12345.6, 120.0), format_mean(2.5, 0.0), format_mean(3e-9, 1e-9)
    ('12,346 ± 120', '2.5 ± 0', '3e−9 ± 1e−9')
    """
    if spread is None:
        return format_value(mean, form)
    if form == "percent":
        return f"{100 * mean:.1f} ± {100 * spread:.1f} %"
    if form in ("cosine", "distance"):
        return f"{mean:.2f} ± {spread:.2f}".replace("-", "−")
    if spread < 1e-6:
        return f"{format_value(mean, form)} ± {format_value(spread, form)}"
    digits = max(0, 1 - math.floor(math.log10(spread)))
    return f"{mean:,.{digits}f} ± {spread:,.{digits}f}".replace("-", "−")


def duration(seconds: float) -> str:
    """As exact as one wants to know it.

    >>> [duration(s) for s in (4.2, 100, 600, 9000)]
    ['4.2 s', '100 s', '10 min', '2.5 h']
    """
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
