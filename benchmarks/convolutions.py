"""A round with convolutions against the bare forward/backward pass over the same images, and evaluation likewise.

    python benchmarks/convolutions.py [--compile]

ResNet-8 on 32 × 32 images, 10 clients × 32. The bare pass is that of plain PyTorch (all threads in one pass, channels
last), at its best micro-batch. `round` is the whole of `run_round`: images looked up, cropped and flipped, gradients,
averaging, the server's step, spreadout. `--compile` measures the bare pass as `torch.compile` makes it instead, and how
long that takes (needs a C++ compiler).
"""

import argparse
import os
import time
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from common import best_times
from fedaws.config import Config
from fedaws.core.algorithm import run_round
from fedaws.core.methods import method_of
from fedaws.data import FederatedData, from_arrays
from fedaws.evaluate import Model
from fedaws.machine.memory import keep_freed_memory
from fedaws.machine.threads import shared_out
from fedaws.models import build_encoder
from fedaws.runners import make_runner
from fedaws.training.train import initial_state

CLIENTS, BATCH, TESTS = 10, 32, 10_000
SETTINGS = [
    *("model.name=resnet8", "model.embedding_dim=64", "data.augment=crop-flip"),
    *("server.optimizer=muon", "server.momentum=0.9", "server.lr=0.02", "train.rounds=100000"),
]


def make_data() -> FederatedData:
    x = torch.randint(0, 256, (CLIENTS * 200, 3, 32, 32), dtype=torch.uint8)
    tests = torch.randint(0, 256, (TESTS, 3, 32, 32), dtype=torch.uint8)
    y = torch.arange(CLIENTS)
    return from_arrays(x, y.repeat_interleave(200), tests, y.repeat(TESTS // CLIENTS))


def bare_pass(encoder: nn.Module, x: Tensor, w: Tensor, micro: int) -> None:
    parameters = list(encoder.parameters())
    for part, rows in zip(x.split(micro), w.split(micro), strict=True):
        loss = (0.9 - (F.normalize(encoder(part), dim=1) * rows).sum(1)).clamp_min(0).square().mean()
        torch.autograd.grad(loss, parameters)


@torch.no_grad()
def bare_forward(encoder: nn.Module, x: Tensor, micro: int) -> None:
    for part in x.split(micro):
        encoder(part)


def measure(norm: str) -> None:
    cfg = Config().override([*SETTINGS, f"model.norm={norm}", f"clients.examples_per_step={BATCH}"])
    data = make_data()
    encoder = build_encoder(cfg.model, (3, 32, 32), 0).eval()
    state, rng = initial_state(cfg, data, encoder), torch.Generator()
    x = torch.rand(CLIENTS * BATCH, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    w = F.normalize(torch.randn(len(x), 64), dim=1)
    with shared_out(encoder):
        run_clients = make_runner(cfg, method_of(cfg), data, encoder)

    def one_round() -> None:
        with shared_out(encoder):
            run_round(state, data.available, run_clients, cfg, rng)

    bare = {f"bare {m}": lambda m=m: bare_pass(encoder, x, w, m) for m in (32, 64, 160, 320)}
    times = best_times({"round": one_round, **bare}, turns=7)
    best = min(bare, key=lambda name: times[name])
    print(
        f"{norm:7s} a round of {CLIENTS} × {BATCH}: {times['round'] * 1e3:5.0f} ms, "
        f"{times['round'] / times[best]:4.2f} × the {best} pass ({times[best] / len(x) * 1e3:.2f} ms an image)",
        flush=True,
    )
    tests = torch.rand(2000, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    bare = {f"bare {m}": lambda m=m: bare_forward(encoder, tests, m) for m in (100, 500, 2000)}
    model = Model(encoder, state.theta, state.W)
    times = best_times({"all": lambda: model.embed(data.x_test), **bare}, turns=4)
    forward = min(times[name] for name in bare) * TESTS / len(tests)
    ratio = times["all"] / forward
    print(f"{norm:7s} evaluating {TESTS:,} images: {times['all']:4.1f} s, {ratio:4.2f} × the bare forward", flush=True)


def measure_compiled(norm: str) -> None:
    """What torch.compile would win, at the pooled runner's size of a pass."""
    encoder = build_encoder(Config().override([*SETTINGS, f"model.norm={norm}"]).model, (3, 32, 32), 0).eval()
    x = torch.rand(CLIENTS * BATCH, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    w = F.normalize(torch.randn(len(x), 64), dim=1)
    compiled: Any = torch.compile(encoder)
    started = time.perf_counter()
    bare_pass(compiled, x, w, 64)
    seconds = time.perf_counter() - started
    times = best_times(
        {name: partial(bare_pass, model, x, w, 64) for name, model in {"plain": encoder, "compiled": compiled}.items()},
        turns=9,
    )
    print(
        f"{norm:7s} compiled in {seconds:.0f} s, then {times['compiled'] / times['plain']:4.2f} × the plain pass "
        f"({times['plain'] / len(x) * 1e3:.2f} ms an image)",
        flush=True,
    )


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--compile", action="store_true", help="measure torch.compile instead")
    given = arguments.parse_args()
    keep_freed_memory()
    print(f"load {os.getloadavg()[0]:.2f}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    for name in ("weight", "group"):
        (measure_compiled if given.compile else measure)(name)


if __name__ == "__main__":
    main()
