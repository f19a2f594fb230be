"""W, and scores, in 16 bits: how much of a finished run's ranking changes.

    python benchmarks/half.py RUN [EXAMPLES]

Ranks the run's test examples (or so many of them, the first) by W as trained, by W rounded to float16 and to bfloat16
with products in float32 (what `Run.save_half_rows` keeps is the first), by W and embeddings in 16 bits, and by scores
that are rounded too, which is what a GPU's product gives back. Rounding is done by hand: no product in 16 bits is run.
"""

import sys
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

import fedaws
from fedaws.data.load import load_label_sets
from fedaws.evaluate.precision import Ranking, precision_at
from fedaws.sparse import SparseRows

TOP, TILE = 5, 1 << 14


class Form(NamedTuple):
    """What is rounded, and to what."""

    rows: torch.dtype = torch.float32
    embeddings: torch.dtype = torch.float32
    scores: torch.dtype = torch.float32


FORMS = {"float32": Form()}
for _name, _type in {"float16": torch.float16, "bfloat16": torch.bfloat16}.items():
    FORMS |= {
        f"{_name}: W": Form(_type),
        f"{_name}: W and embeddings": Form(_type, _type),
        f"{_name}: W, embeddings and scores": Form(_type, _type, _type),
    }


def ranked(embeddings: Tensor, W: Tensor, shift: Tensor | None, form: Form) -> Ranking:
    """As `fedaws.evaluate.rank`, with everything rounded as the form says."""
    queries = embeddings.to(form.embeddings).float()
    best = Ranking(torch.empty(len(queries), 0, dtype=torch.int64), torch.empty(len(queries), 0))
    for first, tile in tiles(W):
        scores = queries @ tile.to(form.rows).float().T
        if shift is not None:
            scores -= shift[first : first + len(tile)]
        scores, classes = scores.to(form.scores).float().topk(min(TOP, len(tile)), dim=1)
        both = torch.cat([best.scores, scores], 1), torch.cat([best.classes, classes + first], 1)
        top, order = both[0].topk(TOP, dim=1)
        best = Ranking(both[1].gather(1, order), top)
    return best


def tiles(W: Tensor) -> Iterator[tuple[int, Tensor]]:
    return ((first, W[first : first + TILE]) for first in range(0, len(W), TILE))


def compared(exact: Ranking, found: Ranking, labels: SparseRows) -> str:
    """Precision, the share of examples with another best class, of best five, and the error of the best scores."""
    precisions = " | ".join(f"{100 * precision_at(found, labels, k):.2f}" for k in (1, 3, 5))
    first = float((found.classes[:, 0] != exact.classes[:, 0]).float().mean())
    kept = float((found.classes[:, :, None] == exact.classes[:, None]).any(2).float().mean())
    error = float((found.scores - exact.scores).abs().max())
    return f"{precisions} | {100 * first:.2f} % | {100 * (1 - kept):.2f} % | {error:.1e}"


@torch.no_grad()
def main() -> None:
    run = fedaws.load(sys.argv[1])
    _, test, _ = load_label_sets(run.config)
    count = min(len(test.x), int(sys.argv[2]) if len(sys.argv) > 2 else len(test.x))
    x, labels = test.x[:count], test.labels[:count]
    embeddings = run.embed(x)
    print(f"{run.config.name}: {count:,} test examples, {len(run.W):,} classes, d = {run.W.shape[1]}")
    print("| in 16 bits | P@1 | P@3 | P@5 | other best class | others of the best five | score off by at most |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    exact: Ranking | None = None
    for name, form in FORMS.items():
        found = ranked(embeddings, run.W, run.model.shift, form)
        exact = exact or found
        print(f"| {name} | {compared(exact, found, labels)} |", flush=True)


if __name__ == "__main__":
    main()
