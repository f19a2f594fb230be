"""The server step at scale against its bare matrix product.

    python benchmarks/spread.py [C] [d]

By default C = 100,000 classes, d = 256, a cohort of 1,000, k = 10, candidates = all. The bare product is 1,000 × C × d
in the same tiles with a reused buffer: the fastest way to get the scores at all.
"""

import os
import sys

import torch
import torch.nn.functional as F

from common import bare_product, best_times, peak_mb
from fedaws.config import SpreadConfig
from fedaws.core import spreadout


def main() -> None:
    classes, dim = (int(a) for a in (sys.argv[1:] or ["100000", "256"])[:2])
    W = F.normalize(torch.randn(classes, dim), dim=1)
    cohort, rng = torch.randperm(classes)[:1000].sort().values, torch.Generator()
    variants = {
        "eq. (7), k = 10": SpreadConfig(regularizer="nearest", neighbors=10),
        "eq. (6) mined, k = 10": SpreadConfig(regularizer="margin", neighbors=10),
        "eq. (7) centred, k = 10": SpreadConfig(regularizer="nearest", neighbors=10, center=True),
        "moments": SpreadConfig(regularizer="moments"),
    }
    calls = {name: lambda cfg=cfg: spreadout.spread_(W, cohort, cfg, 0.01, rng) for name, cfg in variants.items()}
    before = peak_mb(reset=True)
    spreadout.spread_(W, cohort, variants["eq. (7), k = 10"], 0.01, rng)
    memory = peak_mb() - before
    times = best_times({"bare": lambda: bare_product(W[cohort], W), **calls}, turns=5)
    print(
        f"load {os.getloadavg()[0]:.2f}, {torch.get_num_threads()} threads; C = {classes:,}, d = {dim}, |C^t| = 1,000"
    )
    print(
        f"bare product {times['bare']:.3f} s; one step of eq. (7) took {memory:.0f} MB above W "
        f"({W.nbytes / 2**20:.0f} MB)"
    )
    for name in calls:
        print(f"{name:24s} {times[name]:.3f} s = {times[name] / times['bare']:.2f} x the bare product")


if __name__ == "__main__":
    main()
