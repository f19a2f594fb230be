r"""What a server may do against clients that cheat, where it sees their rows and updates one by one.

On rows, as a part of the spreading step (:func:`guarded`), in this order:

- **a bounded move**: a row stays within a cosine of the row that its client was sent;
- **anchors**: the server spreads rows a_c of its own, and the client's row stays within a cosine of its anchor,

  .. math:: w_c \leftarrow \arg\max_{\|w\| = 1,\ w \cdot a_c \ge \beta} w \cdot w_c

- **rows kept apart**: a row that has come within a cosine of another class's row is refused, and stays as it was sent.

On updates (:func:`clip_to_median`): a change of θ that is longer than the median of the cohort's is cut to it.
"""

from collections.abc import Iterable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from fedaws.config import Config
from fedaws.core.method import Method, Spread, When
from fedaws.core.mining import best_columns
from fedaws.errors import FedawsError
from fedaws.types import Memory, Update

SENT, ANCHORS, INNER = "sent", "anchors", "inner/"


def guarded(method: Method, cfg: Config) -> Method:
    """The method, its rows guarded as `[defence]` says; refused if it shows rows that `[privacy]` has stay private."""
    if cfg.privacy.rows == "private" and method.rows != "private":
        raise FedawsError(
            f"method={method.name} keeps no row with its client, as privacy.rows=private wants; set method=fedaws or "
            "privacy.rows=clear"
        )
    guard, inner = cfg.defence, method.spread
    if not (guard.row_step or guard.anchor or guard.apart < 1) or not method.trains_own_row:
        return method  # rows that no client moves need no guard
    if method.own_spread:
        raise FedawsError(
            "defence.row_step, anchor and apart look at single rows, which privacy.rows=private shows to nobody; leave "
            "them out"
        )

    def init(W: Tensor) -> Memory:
        memory = {SENT: W.clone()} | ({ANCHORS: W.clone()} if guard.anchor else {})
        return memory | {INNER + name: tensor for name, tensor in (inner.init(W) if inner else {}).items()}

    def step(W: Tensor, classes: Tensor, when: When, rng: torch.Generator, memory: Memory) -> Memory:
        sent = memory[SENT]
        rows = W[classes]
        if guard.row_step:
            rows = within(rows, sent[classes], guard.row_step)
        if guard.anchor:
            rows = within(rows, memory[ANCHORS][classes], guard.anchor)
        if guard.apart < 1:
            rows = kept_apart(rows, sent, classes, guard.apart)
        W[classes] = rows
        spread = memory[ANCHORS].clone() if guard.anchor else W
        kept = {name.removeprefix(INNER): tensor for name, tensor in memory.items() if name.startswith(INNER)}
        after = inner.step(spread, classes, when, rng, kept) if inner else kept
        if not isinstance(after, dict):
            return after  # refused by whoever takes it
        if guard.anchor:
            W.copy_(within(W, spread, guard.anchor))
        own = {SENT: W.clone()} | ({ANCHORS: spread} if guard.anchor else {})
        return own | {INNER + name: tensor for name, tensor in after.items()}

    return replace(method, spread=Spread(step, init))


def within(rows: Tensor, centres: Tensor, cosine: float) -> Tensor:
    r"""The unit vectors nearest to `rows` within this cosine of their centres, all of unit length, [m, d].

    .. math:: w \leftarrow \beta c + \sqrt{1 - \beta^2}\, \frac{w - (w \cdot c) c}{\|w - (w \cdot c) c\|}
              \quad \text{where } w \cdot c < \beta

    >>> within(torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, 0.0]]), cosine=0.8)
    tensor([[0.8000, 0.6000]])
    """
    score = (rows * centres).sum(1, keepdim=True)
    aside = F.normalize(rows - score * centres, dim=1)
    return torch.where(score < cosine, cosine * centres + (1 - cosine**2) ** 0.5 * aside, rows)


def kept_apart(rows: Tensor, sent: Tensor, classes: Tensor, cosine: float) -> Tensor:
    """The rows of these classes, but as they were sent where they have come within this cosine of another's, [m, d].

    Who was so near already may go farther away, but not nearer.

    >>> W = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> kept_apart(torch.tensor([[0.6, 0.8]]), W, torch.tensor([0]), cosine=0.5)
    tensor([[1., 0.]])
    """
    if len(sent) < 2 or not len(classes):
        return rows
    before, after = (best_columns(r, sent, 1, own=classes)[0] for r in (sent[classes], rows))
    return torch.where((after > cosine) & (after > before), sent[classes], rows)


def clip_to_median(updates: Iterable[Update]) -> list[Update]:
    """The clients' updates, with no change of θ longer than their median.

    The median of an even number is the lower one of the two in the middle.
    """
    each = list(updates)
    if any(len(update.cohort) > 1 for update in each):
        raise FedawsError("defence.clip=median needs the clients' updates one by one; set train.runner=serial")
    if not each:
        return each
    norms = torch.stack([_norm(update) for update in each])
    scales = (norms.median() / norms.clamp_min(1e-30)).clamp_max(1)
    return [
        update if scale == 1 else replace(update, delta={k: d * scale for k, d in update.delta.items()})
        for update, scale in zip(each, scales, strict=True)
    ]


def _norm(update: Update) -> Tensor:
    parts = [d.coalesce().values() if d.is_sparse else d for d in update.delta.values()]
    norm: Tensor = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(part) for part in parts]))
    return norm
