r"""GLaS (Guo et al. 2019) on the server: the rows' cosines follow the labels' correlations, not all go to 0.

.. math:: \sum_{c \ne y} (w_c \cdot w_y - a_{cy})^2, \qquad \varphi' = 2 (s - a_{cy}), \quad \varphi'' = 2

The clients are FedAwS's. The server must know how often labels stand together (`core/correlation.py`).
"""

from fedaws.config import Config
from fedaws.core.correlation import correlated_spread
from fedaws.core.method import Method, Spread, positive_loss
from fedaws.core.methods import wanted_fact
from fedaws.types import ClassFacts


def method(cfg: Config, classes: ClassFacts | None) -> Method:
    """FedAwS, its rows kept at the cosines of their labels' correlations."""
    loss = positive_loss(cfg)
    return Method(
        "glas", "GLaS, knows label pairs", "own", loss, spread(cfg, classes), needs=frozenset({"cooccurrence"})
    )


def spread(cfg: Config, classes: ClassFacts | None) -> Spread:
    """The step of the server; without facts its description alone is wanted."""
    counts = wanted_fact(classes, "cooccurrence")
    if counts is None:
        return Spread(lambda W, _, __, ___, memory: memory)
    return correlated_spread(lambda scores, a: 2 * (scores - a), 2.0, counts, cfg.spread.weight)
