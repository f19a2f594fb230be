r"""Before the first round: W⁰, and every owner's memory."""

from collections.abc import Collection

import torch
import torch.nn.functional as F
from torch import Tensor

from fedaws.config import Config
from fedaws.core.embedding_tables import init_tables
from fedaws.core.method import Method
from fedaws.core.optimizers import Optimizer, make_optimizer
from fedaws.hashing import hash64
from fedaws.types import Params, ServerState


def random_rows(cfg: Config, num_classes: int) -> Tensor:
    """Random unit rows [C, d], from the seed. The paper does not say how W starts."""
    rng = torch.Generator().manual_seed(hash64(cfg.seed, "class embeddings"))
    return F.normalize(torch.randn(num_classes, cfg.model.embedding_dim, generator=rng), dim=1)


def start_state(
    cfg: Config,
    method: Method,
    theta: Params,
    rows: Tensor,
    class_of: Tensor | None = None,
    tables: Collection[str] = (),
) -> ServerState:
    """The state before round 0: θ, W⁰ from random `rows`, and the memories that the run's checkpoints will have.

    `tables` are the names of embedding tables among θ.
    """
    W = method.start(rows)
    dense = {k: v for k, v in theta.items() if k not in tables}
    sampled = cfg.clients.sampled_classes is not None
    all_rows = {"W": W} if method.rows == "all" else {}
    server = server_optimizer(cfg, method)
    return ServerState(
        round_num=0,
        theta=theta,
        W=W,
        class_of=class_of,
        optimizer=server.init(dense),
        row_optimizer=init_tables(all_rows, cfg.server) if sampled else server.init(all_rows) if all_rows else {},
        tables=init_tables({k: theta[k] for k in tables}, cfg.server),
        spread=method.spread.init(W) if method.spread else {},
        weighting=method.weighting.init(W) if method.weighting else {},
        average={k: v.clone() for k, v in dense.items()} if cfg.server.average else {},
    )


def server_optimizer(cfg: Config, method: Method) -> Optimizer:
    """The method's own, or the configured one."""
    return method.server or make_optimizer(cfg.server.optimizer, cfg.server.momentum)
