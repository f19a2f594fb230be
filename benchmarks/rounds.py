"""Speed of a round against a plain PyTorch loop over clients and against the bare pass over the same examples.

    python benchmarks/rounds.py [--threads N] [--fedjax PYTHON]

MLP 64-128-32, batch 16 a client, 10 / 100 / 1,000 clients; one local step (pooled) and five (stacked). `clients` is
what the runner costs, batches drawn and updates added up included; `round` the whole of `run_round` with spreadout.
`--fedjax` is an interpreter that has FedJAX (`pip install jax fedjax`), which then takes its turns at the same rounds;
its batches are ready made. With one thread all times are CPU seconds, otherwise wall seconds.
"""

import argparse
import os
import resource
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from common import best_times
from fedaws.config import ClientsConfig, Config, ModelConfig, SpreadConfig, TrainConfig
from fedaws.core.aggregate import aggregate
from fedaws.core.algorithm import broadcast, run_round
from fedaws.core.methods import method_of
from fedaws.data import FederatedData, from_arrays
from fedaws.machine.memory import keep_freed_memory
from fedaws.models.mlp import mlp
from fedaws.runners import make_runner
from fedaws.types import ServerState

BATCH, FEATURES, HIDDEN, DIM = 16, 64, 128, 32


def make_data(clients: int) -> FederatedData:
    y = torch.arange(clients).repeat_interleave(100)
    return from_arrays(torch.randn(len(y), FEATURES), y)


def plain_loop(state: ServerState, x: torch.Tensor, steps: int, lr: float) -> None:
    """A lean loop over clients: one module, its weights reset for each, SGD by hand (`torch.optim` would cost more)."""
    encoder = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, DIM))
    params, start = list(encoder.parameters()), list(state.theta.values())
    mean = [torch.zeros_like(p) for p in start]
    W = state.W.clone()
    for i in range(len(x)):
        with torch.no_grad():
            for p, v in zip(params, start, strict=True):
                p.copy_(v)
        w = state.W[i].clone().requires_grad_()
        for e in range(steps):
            loss = (0.9 - F.normalize(encoder(x[i, e]), dim=1) @ w).clamp_min(0).square().mean()
            gradients = torch.autograd.grad(loss, [*params, w])
            with torch.no_grad():
                for trained, g in zip([*params, w], gradients, strict=True):
                    trained.sub_(g, alpha=lr)
        W[i] = F.normalize(w.detach(), dim=0)
        with torch.no_grad():
            for total, p in zip(mean, params, strict=True):
                total.add_(p, alpha=1 / len(x))


def bare_pass(encoder: nn.Module, x: torch.Tensor, w: torch.Tensor) -> None:
    """One forward and backward over all examples at once, and nothing else: the bound of the pooled runner."""
    loss = (0.9 - (F.normalize(encoder(x), dim=1) * w).sum(1)).clamp_min(0).square().mean()
    torch.autograd.grad(loss, list(encoder.parameters()))


class FedJax:
    """FedJAX in an interpreter of its own; tells its seconds."""

    def __init__(self, python: str, threads: int) -> None:
        script = Path(__file__).with_name("rounds_fedjax.py")
        one = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"} if threads == 1 else {}
        command = [python, str(script), "cpu" if threads == 1 else "wall"]
        environment = {**os.environ, **one}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def round(self, clients: int, steps: int, mean: int) -> float:
        assert self._process.stdin
        assert self._process.stdout
        print(clients, steps, mean, file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())


def measure(clients: int, steps: int, fedjax: FedJax | None) -> None:
    data, encoder = make_data(clients), mlp(FEATURES, (HIDDEN,), DIM)
    cfg = Config(
        clients=ClientsConfig(examples_per_step=BATCH, local_steps=steps, lr=0.1),
        model=ModelConfig(embedding_dim=DIM, hidden=(HIDDEN,)),
        spread=SpreadConfig(regularizer="moments"),
        train=TrainConfig(rounds=100_000),
    )
    W = F.normalize(torch.randn(clients, DIM), dim=1)
    state = ServerState(0, {k: v.detach() for k, v in encoder.named_parameters()}, W)
    run_clients, available, rng = make_runner(cfg, method_of(cfg), data, encoder), data.available, torch.Generator()
    x = torch.randn(clients, steps, BATCH, FEATURES)
    flat, w = x[:, 0].flatten(0, 1).contiguous(), W.repeat_interleave(BATCH, 0)
    rounds = iter(range(100_000))

    def run_runner() -> None:
        sent = broadcast(ServerState(next(rounds), state.theta, state.W), available)
        aggregate(state, run_clients(sent))

    def whole_round() -> None:
        run_round(ServerState(next(rounds), state.theta, state.W), available, run_clients, cfg, rng)

    told: dict[str, Callable[[], float]] = {}
    if fedjax:
        told = {f"fedjax{mean}": partial(fedjax.round, clients, steps, mean) for mean in (0, 1)}
    times = best_times(
        {
            "loop": lambda: plain_loop(state, x, steps, 0.1),
            "bare": lambda: bare_pass(encoder, flat, w),
            "clients": run_runner,
            "round": whole_round,
        },
        turns=12 if clients > 100 else 40,
        told=told,
    )
    ratio = f"  {times['clients'] / times['bare']:5.2f} x the bare pass" if steps == 1 else ""
    print(
        f"{clients:5d} clients, {steps} step{'s' if steps > 1 else ' '}: "
        f"{clients / times['clients']:9,.0f} client updates/s (plain loop {clients / times['loop']:6,.0f}), "
        f"{times['loop'] / times['clients']:5.1f} x the loop;{ratio}  whole round "
        f"{times['loop'] / times['round']:5.1f} x the loop",
        flush=True,
    )
    if fedjax:
        bare, whole = (times[name] / times["clients"] for name in told)
        print(f"{'':24s}{whole:5.2f} x as fast as FedJAX ({bare:.2f} x, where it does not average)", flush=True)


def steady(rounds: int = 3000) -> None:
    """Rounds must not slow down over a run, nor memory grow."""
    data, encoder = make_data(100), mlp(FEATURES, (HIDDEN,), DIM)
    cfg = Config(model=ModelConfig(embedding_dim=DIM), train=TrainConfig(rounds=rounds))
    W = F.normalize(torch.randn(100, DIM), dim=1)
    state = ServerState(0, {k: v.detach() for k, v in encoder.named_parameters()}, W)
    run_clients, rng = make_runner(cfg, method_of(cfg), data, encoder), torch.Generator()
    times, memory = [], []
    for part in range(6):
        started = time.perf_counter()
        for _ in range(rounds // 6):
            state = run_round(state, data.available, run_clients, cfg, rng, in_place=True)
        times.append(time.perf_counter() - started)
        memory.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
        del part
    print(f"{rounds} rounds in six parts: {' '.join(f'{t:.2f}' for t in times)} s; peak memory {memory} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--fedjax", metavar="PYTHON")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    keep_freed_memory()
    fedjax = FedJax(args.fedjax, torch.get_num_threads()) if args.fedjax else None
    print(f"load {os.getloadavg()[0]:.2f}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    for steps in (1, 5):
        for number in (10, 100, 1000):
            measure(number, steps, fedjax)
    steady()


if __name__ == "__main__":
    main()
