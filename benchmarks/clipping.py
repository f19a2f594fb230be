"""What per-client clipping costs: the same round with and without it, as ratios in one run.

    OMP_NUM_THREADS=1 python benchmarks/clipping.py [--runners pooled,stacked,serial]

1,000 clients, MLP 64-128-32 and a bag of 20,000 features (75 in an example, 64 dimensions, a layer on top); everybody
takes part, one local step, rows fixed. `pooled` clips by ghost norms, `stacked` and `serial` what each client has.
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from common import best_times
from fedaws.config import Config
from fedaws.core.algorithm import run_round
from fedaws.core.methods import method_of
from fedaws.data import FederatedData, from_arrays
from fedaws.models import build_encoder
from fedaws.runners import make_runner
from fedaws.sparse import SparseRows
from fedaws.training.train import initial_state

CLIENTS, FEATURES, WORDS = 1000, 20_000, 75
MLP = ["model.name=mlp", "model.hidden=[128]", "model.embedding_dim=32"]
BAG = ["model.name=bag", "model.hidden=[64]", "model.embedding_dim=64"]
UNCLIPPED = "privacy.clip=none"


def dense(examples: int) -> FederatedData:
    y = torch.arange(CLIENTS).repeat_interleave(examples)
    return from_arrays(torch.randn(len(y), 64), y)


def sparse(examples: int) -> FederatedData:
    data = dense(examples)
    count = len(data.y)
    # Squares: some words are in nearly every example, most in few.
    words = (torch.rand(count * WORDS).square() * FEATURES).long()
    starts = torch.arange(count + 1) * WORDS
    rows = SparseRows(words, torch.rand(count * WORDS) + 0.1, starts, FEATURES)
    return replace(data, x=rows, x_test=rows[:10], y_test=data.y[:10])


def round_of(data: FederatedData, settings: list[str]) -> Callable[[], object]:
    cfg = Config().override(["method=fixed", "clients.examples_per_step=all", "train.schedule=constant", *settings])
    encoder = build_encoder(cfg.model, data.x.shape[1:], seed=0).eval()
    method = method_of(cfg)
    state = initial_state(cfg, data, encoder, method)
    run_clients = make_runner(cfg, method, data, encoder)
    rng = torch.Generator().manual_seed(0)
    return partial(run_round, state, data.available, run_clients, cfg, rng, method=method)


def measure(name: str, data: FederatedData, model: list[str], runners: list[str], clip: float) -> dict[str, float]:
    variants = {"pooled": round_of(data, [*model, "train.runner=pooled", UNCLIPPED])}
    for runner in runners:
        variants[f"{runner}, clipped"] = round_of(data, [*model, f"train.runner={runner}", f"privacy.clip={clip}"])
    times = best_times(variants)
    ratios = {key: round(seconds / times["pooled"], 2) for key, seconds in times.items()}
    print(f"{name}: pooled {1000 * times['pooled']:.1f} ms;", ", ".join(f"{k} {v:.2f} ×" for k, v in ratios.items()))
    return {"milliseconds": round(1000 * times["pooled"], 1), **ratios}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="a file for the figures")
    parser.add_argument("--runners", default="pooled,stacked,serial")
    asked = parser.parse_args()
    torch.manual_seed(0)
    found = {}
    for examples in (4, 16):
        runners = [name for name in asked.runners.split(",") if name != "serial" or examples == 4]
        name = f"mlp, {examples} examples a client"
        found[name] = measure(name, dense(examples), MLP, runners, 0.01)
        name = f"bag, {examples} examples a client"
        found[name] = measure(name, sparse(examples), BAG, ["pooled"], 0.01)
    if asked.json:
        with open(asked.json, "w", encoding="utf-8") as file:
            file.write(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
