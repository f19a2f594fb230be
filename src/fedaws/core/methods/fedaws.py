r"""FedAwS (Yu, Rawat, Menon, Kumar, ICML 2020): Algorithm 1. A client trains θ and its own row on its positives,

.. math:: \ell(x) = \max(0,\ 0.9 - g(x) \cdot w_i)^2,

and the server pushes the rows apart by what `[spread]` says: eq. (6), eq. (7) or another function of the rows. With
`privacy.rows = "private"` no row leaves its client, and each client pushes its own (`core/sums.py`).
"""

from fedaws.config import Config
from fedaws.core import spreadout
from fedaws.core.method import Method, positive_loss
from fedaws.core.private_rows import make_sum_spread
from fedaws.types import ClassFacts


def method(cfg: Config, _: ClassFacts | None) -> Method:
    """What `[spread]` says; whether that is the paper's, `fedaws reproduce` tells."""
    loss = positive_loss(cfg)
    if cfg.privacy.rows == "private":
        return Method("fedaws", "rows that stay at home", "private", loss, own_spread=make_sum_spread(cfg))
    return Method("fedaws", "FedAwS", "own", loss, spread=spreadout.make_spread(cfg))
