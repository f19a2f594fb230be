r"""GLaS (Guo et al. 2019) on the server: the rows' cosines follow the labels' correlations, not all go to 0.

.. math:: \sum_{c \ne y} (w_c \cdot w_y - a_{cy})^2, \qquad \varphi' = 2 (s - a_{cy}), \quad \varphi'' = 2

The clients are FedAwS's. The server must know how often labels stand together (`core/correlation.py`).
"""

from fedaws.config import Config
from fedaws.core.correlation import correlated_spread
from fedaws.core.method import Method, positive_loss
from fedaws.core.methods import wanted_fact
from fedaws.types import ClassFacts


def method(cfg: Config, classes: ClassFacts | None) -> Method:
    """FedAwS, its rows kept at the cosines of their labels' correlations."""
    counts = wanted_fact(classes, "cooccurrence")
    spread = correlated_spread(lambda scores, a: 2 * (scores - a), 2.0, counts, cfg.spread.weight)
    loss = positive_loss(cfg)
    return Method("glas", "GLaS, knows label pairs", "own", loss, spread, needs=frozenset({"cooccurrence"}))
