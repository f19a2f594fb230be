r"""FedAwS (Yu, Rawat, Menon, Kumar, ICML 2020): Algorithm 1. A client trains θ and its own row on its positives,

.. math:: \ell(x) = \max(0,\ 0.9 - g(x) \cdot w_i)^2,

and the server pushes the rows apart by what `[spread]` says: eq. (6), eq. (7) or another function of the rows.
"""

from functools import partial

from fedaws.config import Config
from fedaws.core import losses, spreadout
from fedaws.core.method import Method
from fedaws.types import ClassFacts


def method(cfg: Config, _: ClassFacts | None) -> Method:
    """The paper's own."""
    loss = partial(losses.positive_hinge, margin=cfg.clients.margin)
    return Method("fedaws", "the paper's", "own", loss, spread=spreadout.make_spread(cfg))
