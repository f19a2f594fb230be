"""Identifying with an approximate index of the classes against ranking all of them: time, and what it misses.

    python benchmarks/index.py [C] [d]

By default C = 131,072, d = 512. Classes come in groups of 64 (cosine about 0.4 within a group); an example has a
cosine of 0.5 with its own class, of about 0.2 with its group. Needs faiss: pip install 'fedaws[index]'.
"""

import os
import sys
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F

from common import best_times, clock
from fedaws.evaluate.index import ClassIndex
from fedaws.evaluate.precision import Ranking, rank

EXAMPLES, K = 500, 5


def make(classes: int, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(0)
    groups = F.normalize(torch.randn(classes // 64 + 1, dim, generator=rng), dim=1)
    W = torch.randn(classes, dim, generator=rng).div_(dim**0.5)
    W.mul_(0.6**0.5).add_(groups[torch.arange(classes) % len(groups)], alpha=0.4**0.5)
    W /= W.norm(dim=1, keepdim=True)
    own = W[torch.randperm(classes, generator=rng)[:EXAMPLES]]
    noise = F.normalize(torch.randn(EXAMPLES, dim, generator=rng), dim=1)
    return W, F.normalize(own + 3**0.5 * noise, dim=1)


def recall(found: Ranking, exact: Ranking) -> float:
    return float((found.classes[:, :, None] == exact.classes[:, None]).any(2).double().mean())


def main() -> None:
    classes, dim = (int(a) for a in (sys.argv[1:] or ["131072", "512"])[:2])
    W, examples = make(classes, dim)
    started = clock()
    index = ClassIndex(W)
    print(f"load {os.getloadavg()[0]:.2f}, {torch.get_num_threads()} threads; C = {classes:,}, d = {dim}")
    print(f"built in {clock() - started:.1f} s")
    exact = rank(examples, W, K)
    calls: dict[str, Callable[[torch.Tensor], Ranking]] = {"all classes": partial(rank, W=W, k=K)}
    for probes in (1, 4, 16, 64):
        calls[f"{probes} cells"] = partial(index.rank, k=K, probes=probes)
    for name, call in calls.items():
        times = best_times({"one": partial(call, examples[:1]), "all": partial(call, examples)}, turns=3)
        one, all_ = (1000 * seconds / n for seconds, n in ((times["one"], 1), (times["all"], EXAMPLES)))
        top = float((call(examples).classes[:, 0] == exact.classes[:, 0]).double().mean())
        print(
            f"{name:12s} {one:8.2f} ms for one example, {all_:6.3f} ms an example of {EXAMPLES}; "
            f"finds {top:.3f} of the best, {recall(call(examples), exact):.3f} of the {K} best"
        )


if __name__ == "__main__":
    main()
