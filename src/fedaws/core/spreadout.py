r"""The server-side step that keeps class embeddings apart: eq. (6), eq. (7), their gradients, and the bounded step.

All are sums over pairs of classes of a function of the score s = w_c · w_y (`core/pairs.py`):

=========  ==========================================  =========================  =====================
eq. (6)    all ordered pairs                           φ(s) = max(0, ν − 1 + s)²  φ' = 2 (ν − 1 + s)₊
eq. (7)    c ∈ C^t with its k nearest y within C′      φ(s) = −‖w_c − w_y‖²       φ' = 2 (on the sphere)
=========  ==========================================  =========================  =====================

Each may be summed over all pairs or over mined ones. Gradients are closed forms; nothing of size C × C or C × k × d is
ever whole in memory. Why the bounded step never raises the regulariser is proved in docs/bounded-step.md, whose letters
(ρ, σ, M) stand here.
"""

import math
from collections.abc import Iterator
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedaws.config import Config, SpreadConfig
from fedaws.core.method import Spread, When
from fedaws.core.mining import nearest as nearest  # noqa: PLC0414 - callers say spreadout.nearest
from fedaws.core.mining import nearest_known_
from fedaws.core.moments import apart_, due, moments_, to_sphere_
from fedaws.core.optimizers import make_optimizer
from fedaws.core.pairs import Pair, hinge, make_pair
from fedaws.core.rows import gram, here, ids_of, kept_beside, largest, places_of, summed, total, whole
from fedaws.machine import blocks
from fedaws.types import Memory

Distance = Literal["cosine", "euclidean"]

NEIGHBORS = "neighbors"
"""The memory of mining: the neighbours of each class as far as they were found, [C, k]; −1: none yet."""


# --- the regularisers -----------------------------------------------------------------------------------------------


def spreadout(W: Tensor, margin: float, distance: Distance = "cosine") -> Tensor:
    r"""Eq. (6), summed over ordered pairs.

    .. math:: reg_{sp}(W) = \sum_c \sum_{c' \ne c} \max(0, \nu - d(w_c, w_{c'}))^2

    >>> spreadout(torch.tensor([[1.0, 0.0], [0.6, 0.8]]), margin=1.0)  # 2 × 0.6²
    tensor(0.7200)
    """
    total = W.new_zeros(())
    for rows in row_blocks(len(W), len(W)):
        distances = 1 - W[rows] @ W.T if distance == "cosine" else torch.cdist(W[rows], W)
        gap = (margin - distances).clamp_min(0).square()
        own = torch.arange(rows.start, rows.stop, device=W.device)
        total = total + gap.scatter(1, own[:, None], 0.0).sum()
    return total


def spreadout_nearest(
    W: Tensor, cohort: Tensor, candidates: Tensor | None, num_neighbors: int, distance: Distance = "euclidean"
) -> Tensor:
    r"""Eq. (7): each class of the cohort against its k nearest among the candidates (None: all classes).

    .. math:: reg_{sp}^{top}(W) = -\sum_{c \in C^t} \sum_{y \in N_k(c)} d^2(w_c, w_y)

    d² is read as squared Euclidean distance; the square of the cosine distance, also offered, has no gradient left
    where two classes have nearly collapsed.

    >>> W = torch.tensor([[1.0, 0.0], [0.6, 0.8], [-1.0, 0.0]])
    >>> spreadout_nearest(W, torch.tensor([0]), None, num_neighbors=1)  # −‖w_0 − w_1‖² = −(2 − 2 × 0.6)
    tensor(-0.8000)
    """
    neighbors = nearest(W.detach(), cohort, candidates, num_neighbors)
    own, others = W[cohort][:, None], W[neighbors]
    if distance == "cosine":
        return -(1 - (own * others).sum(-1)).square().sum()
    return -(own - others).square().sum()


# --- gradients ------------------------------------------------------------------------------------------------------


def spreadout_gradient(W: Tensor, margin: float) -> tuple[Tensor, Tensor]:
    r"""∇ of eq. (6) with cosine distance, and ρ_c = Σ_{c'} φ'(s_{cc'}), in row blocks.

    .. math:: \nabla_c = 4 \sum_{c' \ne c} (\nu - 1 + w_c \cdot w_{c'})_+\, w_{c'}

    (each pair stands twice in the sum over ordered pairs).
    """
    return pairs_gradient(W, hinge(margin))


def pairs_gradient(W: Tensor, pair: Pair) -> tuple[Tensor, Tensor]:
    r"""Over all ordered pairs: ∇_c = 2 Σ_{c'} φ'(s_{cc'}) w_{c'}, and ρ_c = Σ_{c'} φ'(s_{cc'}); of the rows here, in
    blocks.
    """
    own, everybody = here(W), whole(W)
    gradient, slopes = torch.empty_like(own), own.new_empty(len(own))
    for rows in row_blocks(len(own), len(everybody)):
        slope = pair.slope_(own[rows] @ everybody.T)
        itself = ids_of(W, torch.arange(rows.start, rows.stop, device=own.device))
        slope[torch.arange(len(slope), device=own.device), itself] = 0
        slopes[rows] = slope.sum(1)
        gradient[rows] = 2 * (slope @ everybody)
    return gradient, slopes


class Mined(NamedTuple):
    """What mined pairs do to the rows they touch, as far as these are here."""

    places: Tensor  # [u] of the rows in here(W), in order
    gradient: Tensor  # [u, d] ∇
    slopes: Tensor  # [u] ρ
    degrees: Tensor  # [u] n, pairs at the row


def mined_gradient(W: Tensor, cohort: Tensor, neighbors: Tensor, pair: Pair, queries: Tensor | None = None) -> Mined:
    r"""∇ over mined pairs, only for the rows they touch.

    Each pair (c, y) adds φ'(s) w_y to ∇_c and φ'(s) w_c to ∇_y; where φ is a function of the distance ‖w_c − w_y‖,
    −φ'(s) (w_c − w_y) and the opposite. ρ_c is half the sum of φ' over the pairs at c. Who has w_y works on the pair.
    """
    m, k = neighbors.shape
    others = places_of(W, neighbors)
    there = others >= 0
    c, y = there.nonzero()[:, 0], others[there]  # the pairs of this process
    ends = places_of(W, cohort)
    own = (ends >= 0).nonzero()[:, 0]  # the classes of the cohort whose rows are here
    places, local = torch.cat([ends[own], y]).unique(return_inverse=True)
    own_at, y_at = local[: len(own)], local[len(own) :]
    queries, rows = W[cohort] if queries is None else queries, here(W)[places]
    if pair.constant is None:
        scores = queries.new_zeros(m, k).masked_scatter_(there, _pair_scores(queries, c, rows, y_at))
        slope = pair.slope_(summed(W, scores))
    else:
        slope = queries.new_full((m, k), pair.constant)
    weights = torch.sparse_coo_tensor(
        torch.stack([y_at, c]), slope[there], (len(places), m), check_invariants=False
    ).coalesce()
    gradient = weights @ queries
    gradient.index_add_(0, own_at, summed(W, weights.T @ rows)[own])
    slopes = slope.new_zeros(len(places)).index_add_(0, y_at, slope[there]).index_add_(0, own_at, slope.sum(1)[own])
    degrees = torch.bincount(y_at, minlength=len(places)).index_add_(0, own_at, torch.full_like(own, k))
    slopes.mul_(0.5)
    if pair.of_distance:
        gradient -= 2 * slopes[:, None] * rows
    return Mined(places, gradient, slopes, degrees.to(gradient.dtype))


def _pair_scores(queries: Tensor, c: Tensor, rows: Tensor, y: Tensor) -> Tensor:
    """w_c · w_y for each pair, in blocks."""
    block = max(1, blocks.TILE // rows.shape[1])
    parts = zip(c.split(block), y.split(block), strict=True)
    return torch.cat([(queries[at] * rows[to]).sum(1) for at, to in parts])


# --- steps ----------------------------------------------------------------------------------------------------------


def make_spread(cfg: Config) -> Spread:
    """The configured way of keeping the classes apart."""

    def init(W: Tensor) -> Memory:
        memory, k = make_optimizer(cfg.spread.optimizer).init({"W": W}), resolve_neighbors(cfg.spread, len(W))
        mines = cfg.spread.regularizer != "moments" and cfg.spread.candidates != "all"
        if cfg.spread.remember and mines and k != "all":
            memory[NEIGHBORS] = kept_beside(W, (k,), -1, torch.int32)
        return memory

    def step(W: Tensor, classes: Tensor, when: When, rng: torch.Generator, memory: Memory) -> Memory:
        all_rows = due(cfg.spread.every, when.round_num, len(W), cfg.clients.per_round)
        spread_(W, classes, cfg.spread, when.lr, rng, when.factor, all_rows, memory)
        return memory

    return Spread(step, init)


def spread_(
    W: Tensor,
    cohort: Tensor,
    cfg: SpreadConfig,
    lr: float,
    rng: torch.Generator,
    factor: float = 1.0,
    moments_due: bool = True,
    memory: Memory | None = None,
) -> Tensor:
    r"""Algorithm 1, line 14, in place: :math:`W \leftarrow W - \lambda\eta \nabla reg(W)`, rows back on the sphere.

    `lr` is η (the schedule's `factor` already in it). A bounded step is at most `factor` / 2M: the bound keeps the step
    from diverging, the factor lets it come to rest with the schedule, whatever λ. Only where `moments_due` are all rows
    centred and whitened. `memory` has what the optimiser and mining remember, and is brought up to date; by default it
    is forgotten.
    """
    step, pair = cfg.weight * lr, make_pair(cfg)
    memory = make_optimizer(cfg.optimizer).init({"W": W}) if memory is None else memory
    for _ in range(cfg.steps):
        if moments_due and (cfg.center or cfg.whiten or pair is None):
            whiten = cfg.whiten or pair is None
            moments_(W, cfg.center or pair is None, factor * cfg.whitening if whiten else 0)
        if pair is None or step == 0:
            continue
        k = resolve_neighbors(cfg, len(W))
        mined = None if k == "all" or not len(cohort) else _mine(W, cohort, cfg, k, pair, rng, memory)
        if cfg.optimizer != "sgd":
            _optimizer_step_(W, _gradient_of_all(W, pair, k, mined), cfg, step, memory)
        elif k == "all":
            _step_on_all_(W, cfg, pair, step, factor)
        elif mined is not None:
            _mined_step_(W, cfg, pair, step, factor, mined)
    return W


def _mine(
    W: Tensor, cohort: Tensor, cfg: SpreadConfig, k: int, pair: Pair, rng: torch.Generator, memory: Memory
) -> Mined:
    """The cohort's nearest within C′, and the gradient of their pairs."""
    candidates, known, queries = sample_candidates(cfg, len(W), rng, W.device), memory.get(NEIGHBORS), W[cohort]
    if known is None:
        neighbors = nearest(W, cohort, candidates, k, queries)
    else:
        neighbors = nearest_known_(W, cohort, candidates, known, queries)
    return mined_gradient(W, cohort, neighbors, pair, queries)


def _step_on_all_(W: Tensor, cfg: SpreadConfig, pair: Pair, step: float, factor: float) -> None:
    if pair.of_distance:
        # ∇_c = −4 (C w_c − Σ w): at unit length again, the literal step takes away this much of Σ w, at most the mean.
        share = 4 * step / (1 + 4 * step * len(W))
        share = min(share, factor / len(W)) if cfg.bounded else share
        apart_(here(W), share * total(W), None)
        return
    gradient, slopes = pairs_gradient(W, pair)
    if cfg.bounded:
        bound = smoothness(float(largest(W, slopes.max())), spectral_square(W), pair.curvature)
        step = min(step, factor / (2 * bound)) if bound else step  # 0: of rows that training has lost
    to_sphere_(here(W), here(W).sub(gradient, alpha=step))


def _mined_step_(W: Tensor, cfg: SpreadConfig, pair: Pair, step: float, factor: float, mined: Mined) -> None:
    rows, steps = here(W)[mined.places], torch.full_like(mined.slopes, step)
    if cfg.bounded:
        steps = steps.minimum(factor / (2 * mined_smoothness(mined, pair)))
    moved = rows - steps[:, None] * mined.gradient
    here(W).index_copy_(0, mined.places, to_sphere_(rows, moved))


def _gradient_of_all(W: Tensor, pair: Pair, k: int | Literal["all"], mined: Mined | None) -> Tensor:
    """∇reg for all rows that are here: an optimiser's memory moves also those that no pair touches."""
    if k == "all":
        gradient = pairs_gradient(W, pair)[0]
        return gradient.sub_(here(W), alpha=4.0 * (len(W) - 1)) if pair.of_distance else gradient
    gradient = torch.zeros_like(here(W))
    return gradient if mined is None else gradient.index_copy_(0, mined.places, mined.gradient)


def _optimizer_step_(W: Tensor, gradient: Tensor, cfg: SpreadConfig, step: float, memory: Memory) -> None:
    """Line 14 by another optimiser (Remark 1), with λη as its learning rate; nothing bounds it."""
    own = {name: tensor for name, tensor in memory.items() if name != NEIGHBORS}
    moved, own = make_optimizer(cfg.optimizer).step({"W": W}, {"W": -gradient}, own, step)
    memory.update(own)
    to_sphere_(W, W + moved["W"])


def smoothness(slope: float, sigma_squared: float, curvature: float = 2.0) -> float:
    r"""M of the descent lemma over all pairs: ρ + x with x³ = 2 φ''σ² (x + ρ)², ρ = max ρ_c, φ'' at most `curvature`.

    >>> round(smoothness(0.0, 2.0), 6)  # eq. (6), no active pair: 4 σ²
    8.0
    """
    bound = 2 * curvature * sigma_squared
    x = bound
    for _ in range(100):  # a contraction by 2x / 3(x + ρ), from below
        x = (bound * (x + slope) ** 2) ** (1 / 3)
    return slope + x


def mined_smoothness(mined: Mined, pair: Pair) -> Tensor:
    r"""M_c of the descent lemma over a fixed set of pairs, row by row: ρ_c + φ'' n_c; 2 n_c for eq. (6), 0 for (7)."""
    return mined.slopes + pair.curvature * mined.degrees if pair.curvature else mined.slopes


def spectral_square(W: Tensor) -> float:
    """σ² = ‖W‖₂²."""
    products = gram(W) if len(W) >= W.shape[1] else whole(W) @ whole(W).T
    return float(torch.linalg.eigvalsh(products)[-1])


# --- choices --------------------------------------------------------------------------------------------------------


def resolve_neighbors(cfg: SpreadConfig, num_classes: int) -> int | Literal["all"]:
    """The k of a configuration: `auto` is all pairs for eq. (6), for eq. (7) the paper's 10 but at most a third of C′.

    (With k near all, eq. (7) only moves the centroid.)

    >>> resolve_neighbors(SpreadConfig(regularizer="nearest"), 10), resolve_neighbors(SpreadConfig(), 10)
    (3, 'all')
    """
    if cfg.neighbors != "auto":
        return cfg.neighbors
    if cfg.regularizer in ("margin", "uniformity", "energy"):
        return "all"
    available = num_classes if cfg.candidates == "all" else min(cfg.candidates, num_classes)
    return max(1, min(10, available // 3))


def sample_candidates(cfg: SpreadConfig, num_classes: int, rng: torch.Generator, device: torch.device) -> Tensor | None:
    """C′: None for all classes, else that many drawn without replacement, sorted."""
    if cfg.candidates == "all" or cfg.candidates >= num_classes:
        return None
    drawn = torch.randperm(num_classes, generator=rng)[: cfg.candidates]
    return drawn.sort().values.to(device)


def reachable_margin(num_classes: int, dim: int) -> float:
    r"""No ν above this lets eq. (6) be zero: 1 + 1/(C − 1) for C ≤ d + 1 (a simplex), 1 for C ≤ 2d.

    Beyond it is 1 − s, with the least s of Levenshtein's bound (1979),

    .. math:: C \le \frac{d\,(1 - s)(2 + (d + 1)\,s)}{1 - d s^2}, \qquad s \le \frac{\sqrt{d + 3} - 1}{d + 2},

    which is attained at C = 2d and by 16 points in five dimensions, and not in general.

    >>> reachable_margin(2, 8), reachable_margin(11, 8), round(reachable_margin(16, 5), 6)
    (2.0, 1.0, 0.8)
    """
    if num_classes <= dim + 1:
        return 1 + 1 / max(1, num_classes - 1)
    if num_classes <= 2 * dim:
        return 1.0
    low, high = 0.0, (math.sqrt(dim + 3) - 1) / (dim + 2)
    for _ in range(60):  # the right-hand side rises with s
        s = (low + high) / 2
        low, high = (low, s) if dim * (1 - s) * (2 + (dim + 1) * s) >= num_classes * (1 - dim * s**2) else (s, high)
    return 1 - low


def row_blocks(rows: int, columns: int) -> Iterator[slice]:
    """Slices of so many rows that a block with as many columns is a tile."""
    return blocks.slices(rows, max(1, blocks.TILE // max(1, columns)))
