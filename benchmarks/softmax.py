"""The softmax oracle over very many classes: loss and gradients in blocks, beside PyTorch's and the bare products.

    python benchmarks/softmax.py [--examples 8000] [--classes 17913] [--dims 512] [--threads 2]

Best of several, taken in turn; the bound is the three matrix products that nobody can avoid: scores, and the gradients
of embeddings and of W.
"""

import argparse
import os
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from fedaws.core.losses import softmax_cross_entropy

SCALE = 16.0


def seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, number in (("examples", 8000), ("classes", 17_913), ("dims", 512), ("threads", 2), ("repeats", 4)):
        parser.add_argument(f"--{name}", type=int, default=number)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"load {os.getloadavg()[0]:.2f}, torch {torch.__version__}, {options.threads} threads")
    g, W = (
        F.normalize(torch.randn(n, options.dims), dim=1).requires_grad_() for n in (options.examples, options.classes)
    )
    labels = torch.randint(options.classes, (options.examples,))
    block = max(1, 8_000_000 // options.classes)
    scores, of_g, of_W = torch.empty(block, options.classes), torch.empty(block, options.dims), torch.zeros_like(W)

    def products() -> None:
        with torch.no_grad():
            for part in g.split(block):
                n = len(part)
                torch.mm(part, W.T, out=scores[:n])
                torch.mm(scores[:n], W, out=of_g[:n])
                of_W.addmm_(scores[:n].T, part)
            of_W.zero_()

    def pytorch() -> None:
        torch.autograd.grad(F.cross_entropy(SCALE * g @ W.T, labels), (g, W))

    def ours() -> None:
        torch.autograd.grad(softmax_cross_entropy(g, labels, W, SCALE).mean(), (g, W))

    runs = {"three products": products, "PyTorch's cross-entropy": pytorch, "in blocks": ours}
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(options.repeats):
        for name, run in runs.items():
            best[name] = min(best[name], seconds(run))
    for name, time_of in best.items():
        print(f"{name:26} {time_of:6.2f} s   {time_of / best['three products']:.2f} × the products")


if __name__ == "__main__":
    main()
