r"""FedALC (An et al. 2025), after its abstract: correlated classes are pulled together, others pushed to the margin.

.. math:: \sum_{c \ne y} (1 - a_{cy}) \max(0, \nu - 1 + s)^2 + a_{cy}\, \|w_c - w_y\|^2, \qquad
          \varphi' = 2 (1 - a)(\nu - 1 + s)_+ - 2a, \quad \varphi'' \le 2

The paper's exact weights are not public; a_cy is GLaS's. The server must know how often labels stand together.
"""

from torch import Tensor

from fedaws.config import Config
from fedaws.core.correlation import correlated_spread
from fedaws.core.method import Method, positive_loss
from fedaws.core.methods import wanted_fact
from fedaws.types import ClassFacts


def method(cfg: Config, classes: ClassFacts | None) -> Method:
    """FedAwS with pairs weighted by their labels' correlation."""
    shift = cfg.spread.margin - 1

    def slopes(scores: Tensor, a: Tensor) -> Tensor:
        return 2 * (1 - a) * (scores + shift).clamp_min(0) - 2 * a

    spread = correlated_spread(slopes, 2.0, wanted_fact(classes, "cooccurrence"), cfg.spread.weight)
    loss = positive_loss(cfg)
    return Method("fedalc", "FedALC, knows label pairs", "own", loss, spread, needs=frozenset({"cooccurrence"}))
