"""What a single figure hides: which classes are hard, which are taken for which, and examples of it."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedaws.config import Config
from fedaws.data.federated import as_input
from fedaws.evaluate.measures import TestSet
from fedaws.evaluate.model import Model
from fedaws.evaluate.precision import right
from fedaws.sparse import Rows, SparseRows

MOST_EXAMPLES, MOST_SCORES = 20_000, 400_000_000
"""No more test examples are looked at than these, and than give so many scores: beyond that every n-th one."""
MOST_LISTED, MOST_CONFUSED, MOST_PAIRS, SHOWN = 2_048, 100, 24, 4
"""Classes listed one by one; classes of a whole confusion matrix; pairs that are told; examples shown of each."""
_BINS, _SIDE, _WITH_IMAGES, _FOR_SETS = 20, 48, 12, 5


@torch.no_grad()
def examine(model: Model, test: TestSet, cfg: Config, embeddings: Tensor | None = None) -> dict[str, Any]:
    """Per-class precision, confusions and the pairs most confused, as plain data (images as tensors), bounded in size.

    The figure of a class c is the share of its test examples whose best class is c; where examples have sets of labels,
    of those that have c among theirs, the share with c among the best five. `embeddings` of the test examples need not
    be computed again where they are known.
    """
    W, total = model.W, len(test.x)
    keep = max(1, min(MOST_EXAMPLES, MOST_SCORES // len(W)))
    chosen = torch.arange(0, total, -(-total // keep), device=W.device)
    x, y = test.x.index_select(0, chosen), test.y.index_select(0, chosen)
    embeddings = model.embed(x) if embeddings is None else embeddings.index_select(0, chosen)
    k = min(_FOR_SETS if isinstance(y, SparseRows) else 1, len(W))
    best = model.rank(embeddings, k).classes  # [N, k]
    labels = y.indices if isinstance(y, SparseRows) else y
    counts = torch.bincount(labels, minlength=len(W))
    hits = torch.bincount(best[right(best, y)], minlength=len(W))
    own = _best_label(embeddings, W, y) if isinstance(y, SparseRows) else y
    return {
        "examples": len(chosen),
        "test_examples": total,
        "label_sets": isinstance(y, SparseRows),
        "best_of": k,
        **_by_class(hits, counts),
        **_confused(own, best[:, 0], len(W), chosen, _images(x, cfg)),
    }


def _by_class(hits: Tensor, counts: Tensor) -> dict[str, Any]:
    """A histogram of the classes' figures, and the classes themselves: all of them, or the hardest."""
    seen = counts.nonzero().squeeze(1)
    share = hits[seen] / counts[seen]
    hardest = (share - counts[seen] * 1e-9).sort(stable=True).indices[:MOST_LISTED]
    listed = seen[hardest].sort().values
    bins = torch.bincount((share * _BINS).long().clamp_max(_BINS - 1), minlength=_BINS)
    return {
        "classes_tested": len(seen),
        "histogram": bins.tolist(),
        "classes": listed.tolist(),
        "right": hits[listed].tolist(),
        "count": counts[listed].tolist(),
    }


def _best_label(embeddings: Tensor, W: Tensor, labels: SparseRows) -> Tensor:
    """Of each example's labels the one with the highest score; −1 for an example without any."""
    rows, own = labels.row_of_each, labels.indices
    parts = zip(rows.split(MOST_EXAMPLES), own.split(MOST_EXAMPLES), strict=True)
    scores = torch.cat([(embeddings[r] * W[c]).sum(1) for r, c in parts])
    order = scores.argsort(stable=True)
    best = dict(zip(rows[order].tolist(), own[order].tolist(), strict=True))  # the last of a row stays
    return torch.tensor([best.get(row, -1) for row in range(len(labels))], device=W.device)


def _confused(own: Tensor, best: Tensor, classes: int, chosen: Tensor, images: Tensor | None) -> dict[str, Any]:
    """Who is taken for whom: the whole matrix of few classes, and of any number the most frequent pairs."""
    wrong = ((own != best) & (own >= 0)).nonzero().squeeze(1)
    codes = own[wrong] * classes + best[wrong]
    pairs, of_each, counts = codes.unique(return_inverse=True, return_counts=True)
    frequent = counts.sort(descending=True, stable=True).indices[:MOST_PAIRS].tolist()
    told = []
    for place, pair in enumerate(frequent):
        at = wrong[of_each == pair][:SHOWN]
        shown = images is not None and place < _WITH_IMAGES
        told.append(
            {
                "true": int(pairs[pair]) // classes,
                "taken": int(pairs[pair]) % classes,
                "count": int(counts[pair]),
                "examples": chosen[at].tolist(),
                "images": _thumbnails(images[at]) if shown and images is not None else [],
            }
        )
    confusions: dict[str, Any] = {"errors": len(wrong), "pairs": told}
    if classes <= MOST_CONFUSED:
        known = own >= 0
        flat = torch.bincount(own[known] * classes + best[known], minlength=classes**2)
        confusions["confusion"] = flat.view(classes, classes).tolist()
    return confusions


def _images(x: Rows, cfg: Config) -> Tensor | None:
    """The examples as images [N, channels, height, width], if they are any."""
    if not isinstance(x, Tensor):
        return None
    if cfg.data.name == "digits" and tuple(x.shape[1:]) == (64,):  # the one set of ours whose images come as rows
        x = x.view(-1, 1, 8, 8)
    elif x.ndim == 3:
        x = x[:, None]
    return x if x.ndim == 4 and x.shape[1] in (1, 3) else None


def _thumbnails(images: Tensor) -> list[Tensor]:
    """Small uint8 images [height, width, 1 or 3]; numbers of unknown scale are stretched to the full one."""
    pictures = as_input(images).float()
    if images.dtype != torch.uint8:
        low, high = float(pictures.min()), float(pictures.max())
        pictures = (pictures - low) / max(high - low, 1e-12)
    side = max(pictures.shape[-2:])
    if side > _SIDE:
        size = [max(1, round(s * _SIDE / side)) for s in pictures.shape[-2:]]
        pictures = F.interpolate(pictures, size=size, mode="area")
    return list((pictures * 255).round().to(torch.uint8).permute(0, 2, 3, 1).cpu())
