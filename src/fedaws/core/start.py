r"""Before the first round: W⁰, and every owner's memory."""

import os
from collections.abc import Collection
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from fedaws.config import Config
from fedaws.core.embedding_tables import init_tables
from fedaws.core.guard import following
from fedaws.core.method import Method, Spread, When
from fedaws.core.optimizers import Optimizer, make_optimizer
from fedaws.core.rows import changed, here, ids_of
from fedaws.errors import FedawsError
from fedaws.hashing import hash64
from fedaws.types import Memory, Params, ServerState, Sums

_DRAWN = 65_536  # rows


def random_rows(cfg: Config, num_classes: int, first: int = 0, step: int = 1) -> Tensor:
    """Random unit rows [C, d], from the seed; or of them every `step`-th from the `first` on.

    The paper does not say how W starts.
    Drawn in blocks, which gives the same numbers as all at once and needs no memory for rows that are not kept.
    """
    rng, dim = torch.Generator().manual_seed(hash64(cfg.seed, "class embeddings")), cfg.model.embedding_dim
    kept = torch.empty(len(range(first, num_classes, step)), dim)
    starts = range(0, max(1, num_classes - _DRAWN // 2), _DRAWN)  # fewer than 16 numbers at once are drawn otherwise
    for start, stop in pairwise([*starts, num_classes]):
        rows = torch.randn(stop - start, dim, generator=rng)[(first - start) % step :: step]
        at = len(range(first, start, step))
        torch.div(
            rows, torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp_min(1e-12), out=kept[at : at + len(rows)]
        )
    return kept


def mean_rows(sums: Sums, rows: Tensor) -> Tensor:
    """The directions of the classes' mean embeddings; of a class without examples its row stays."""
    means = F.normalize(here(sums.sums), dim=1)
    known = sums.counts[ids_of(rows, torch.arange(len(means), device=means.device)), None] > 0
    return changed(rows, lambda own: torch.where(known, means, own))


def secret_rows(count: int, dim: int) -> Tensor:
    """Random unit rows [count, d] from what nobody knows: no seed gives them again.

    >>> secret_rows(3, 5).norm(dim=1).allclose(torch.ones(3))
    True
    """
    bits = torch.frombuffer(bytearray(os.urandom(4 * count * dim)), dtype=torch.int32).view(count, dim)
    # Uniform on (−1, 1), then normal: not by torch's generator, whose 32 bits of state can be tried out from one row.
    return F.normalize(((bits.double() + 0.5) / 2**31).erfinv(), dim=1).float()


def simplex(rows: Tensor) -> Tensor:
    r"""The regular simplex: C ≤ d + 1 unit rows at equal cosines −1/(C − 1), turned as the random `rows` say.

    >>> W = simplex(torch.randn(4, 3, generator=torch.Generator().manual_seed(0)))
    >>> torch.allclose(W @ W.T, torch.full((4, 4), -1 / 3).fill_diagonal_(1), atol=1e-6)
    True
    """
    count = len(rows)
    basis = torch.linalg.qr(rows[: count - 1].T.double()).Q  # [d, C − 1], orthonormal columns
    centred = torch.eye(count, dtype=torch.float64, device=rows.device) - 1 / count
    corners = torch.linalg.qr(centred[:, : count - 1]).Q  # [C, C − 1], orthonormal columns at right angles to 1
    return F.normalize(corners @ basis.T, dim=1).to(rows.dtype)


def spread_first(rows: Tensor, spread: Spread, steps: int, lr: float) -> Tensor:
    """Rows that the method's spreading has kept apart for so many rounds before any data are seen."""
    W, everybody = rows.clone(), torch.arange(len(rows), device=rows.device)
    rng, memory = torch.Generator().manual_seed(0), spread.init(rows)
    for step in range(steps):
        factor = 1 - step / steps
        memory = spread.step(W, everybody, When(step, factor * lr, factor), rng, memory)
    return W


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
    if (
        not isinstance(W, Tensor)
        or W.shape != rows.shape
        or W.dtype != rows.dtype
        or not bool(here(W).isfinite().all())
    ):
        got = f"{W.dtype} {tuple(W.shape)}" if isinstance(W, Tensor) else type(W).__name__
        raise FedawsError(f"the method's start gave {got}; wanted finite rows {rows.dtype} {tuple(rows.shape)}")
    dense = {k: v for k, v in theta.items() if k not in tables}
    sampled = cfg.clients.sampled_classes is not None
    all_rows = {"W": W} if method.rows == "all" else {}
    server = server_optimizer(cfg, method)
    return ServerState(
        round_num=0,
        theta=theta,
        W=W,
        class_of=class_of,
        optimizer=server.init(dense) if dense else {},
        row_optimizer=init_tables(all_rows, cfg.server) if sampled else server.init(all_rows) if all_rows else {},
        tables=init_tables({k: theta[k] for k in tables}, cfg.server),
        spread=_spread_memory(method, W, len(W if class_of is None else class_of)),
        weighting=method.weighting.init(W) if method.weighting else {},
        clip={} if cfg.privacy.clip_quantile is None else following(cfg.privacy.clip or 0.0),
        average={k: v.clone() for k, v in dense.items()} if cfg.server.average else {},
    )


def _spread_memory(method: Method, W: Tensor, clients: int) -> Memory:
    if method.own_spread:
        return method.own_spread.memory.init(method.own_spread, W, clients)
    return method.spread.init(W) if method.spread else {}


def server_optimizer(cfg: Config, method: Method) -> Optimizer:
    """The method's own, or the configured one."""
    return method.server or make_optimizer(cfg.server.optimizer, cfg.server.momentum)
