"""Where the time of a round goes at 17,913 to 670,091 classes, and how each part grows with C, d and the cohort.

    python benchmarks/scale.py [--quick] [--json FILE]

Every round has the paper's encoder (table of 135,909 features, 1024, 1024) over examples of Amazon-670K's shape, one a
client. Each column changes one of C, d and the cohort from C = 131,072, d = 512, 4,000 clients. Seconds are the best of
a few turns in one process (of CPU time, where torch has one thread), but those of a whole round the mean over as many
rounds as there are from one centring to the next. `--quick` is one column, of 17,913 classes and 1,000 clients.
"""

import argparse
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from common import bare_product, best_times, clock, peak_mb
from fedaws.config import Config, SpreadConfig, load
from fedaws.core import algorithm, mining, moments, spreadout
from fedaws.core.aggregate import aggregate
from fedaws.core.methods import method_of
from fedaws.core.server_step import step_theta
from fedaws.data.federated import FederatedData
from fedaws.data.label_sets import from_sparse
from fedaws.data.sources.xc import SETS
from fedaws.data.sources.xc_synthetic import generate
from fedaws.evaluate import Model
from fedaws.evaluate.precision import rank
from fedaws.machine.memory import keep_freed_memory
from fedaws.models import build_encoder
from fedaws.runners import make_runner
from fedaws.runners.common import ClientData
from fedaws.sparse import SparseRows
from fedaws.training.train import initial_state
from fedaws.types import ServerState

Times = dict[str, float]


class Shape(NamedTuple):
    classes: int
    dim: int
    cohort: int


QUICK = [Shape(17_913, 256, 1_000)]
SHAPES = [
    Shape(131_072, 512, 4_000),
    Shape(17_913, 512, 4_000),
    Shape(131_072, 256, 4_000),
    Shape(131_072, 512, 1_000),
    Shape(670_091, 512, 4_000),
]
EVALUATED = 500
SAMPLED, EXACT, PAIRS = "mining among 16,384", "mining among all", "pair step"
REMEMBERED = "mining among 2,048 and what is remembered"
CENTER, WHITEN, RANKED = "centring", "whitening", "500 test examples ranked"
SERIAL, TEXTBOOK = "clients one by one, serial runner", "clients one by one, all weights copied"


def make_data(classes: int, rows: int) -> FederatedData:
    shape = replace(SETS["amazon-670k"], labels=classes)
    train, test = (generate(shape, n, 0, w) for n, w in ((rows, "train"), (EVALUATED, "test")))
    return from_sparse(*train, *test)


def configure(shape: Shape) -> Config:
    settings = [f"model.embedding_dim={shape.dim}", f"clients.per_round={shape.cohort}", "train.schedule=constant"]
    return load("amazon-670k").override([*settings, "data.name=xc-synthetic"])


@contextmanager
def timed(times: Times, part: str) -> Iterator[None]:
    started = clock()
    yield
    times[part] = min(times.get(part, float("inf")), clock() - started)


def client_parts(state: ServerState, data: FederatedData, cfg: Config, turns: int) -> tuple[Times, ServerState]:
    """The steps of `run_round` one by one, up to what the server does to W."""
    encoder = build_encoder(cfg.model, data.x.shape[1:], cfg.seed)
    method = method_of(cfg)
    run_clients, clients = make_runner(cfg, method, data, encoder), ClientData(cfg, method, data)
    available, counts, times = data.available, data.num_examples, Times()
    for turn in range(turns):
        rng = torch.Generator().manual_seed(turn)
        with timed(times, "cohort drawn and sent"):
            cohort = algorithm.sample_clients(available, cfg.clients, rng, counts)
            sent = algorithm.broadcast(state, cohort)
        with timed(times, "examples"):
            clients.examples(clients.draw(cohort, turn))
        with timed(times, "forward and backward"):
            updates = list(run_clients(sent))
        with timed(times, "aggregation"):
            total = aggregate(state, updates)
        with timed(times, "table and layers updated"):
            state = step_theta(state, total.delta, cfg, method, 1.0)
        state = replace(state, round_num=turn + 1)
    times["forward and backward"] -= times["examples"]  # they are drawn in there once more
    return times, state


def server_parts(W: torch.Tensor, cohort: torch.Tensor, cfg: SpreadConfig, turns: int) -> Times:
    rng, few = torch.Generator(), cohort[:500]  # exact mining grows with the cohort: some of it is enough
    drawn = torch.randperm(len(W))[:16_384].sort().values
    few_drawn = spreadout.sample_candidates(cfg, len(W), rng, W.device)
    known = torch.randint(len(W), (len(W), 10), dtype=torch.int32)
    times = best_times(
        {
            SAMPLED: lambda: mining.nearest(W, cohort, drawn, 10),
            "product": lambda: bare_product(W[cohort], W[drawn]),
            REMEMBERED: lambda: mining.nearest_known_(W, cohort, few_drawn, known),
            PAIRS: lambda: spreadout.spread_(W, cohort, cfg, 1.0, rng, 1.0, False, {spreadout.NEIGHBORS: known}),
            CENTER: lambda: moments.moments_(W, whiten=0),
            WHITEN: lambda: moments.moments_(W, center=False),
            "exact": lambda: mining.nearest(W, few, None, 10),
            "exact product": lambda: bare_product(W[few], W),
        },
        turns,
    )
    share = len(cohort) / len(few)
    exact = {EXACT: share * times.pop("exact"), f"{EXACT}: its product": share * times.pop("exact product")}
    times[PAIRS] = max(0.0, times[PAIRS] - times[REMEMBERED])
    return times | {f"{SAMPLED}: its product": times.pop("product")} | exact


def evaluation(state: ServerState, data: FederatedData, cfg: Config, turns: int) -> Times:
    encoder = build_encoder(cfg.model, data.x.shape[1:], cfg.seed)
    model = Model(encoder, state.theta, state.W)
    embeddings = model.embed(data.x_test)
    return best_times(
        {
            "500 test examples embedded": lambda: model.embed(data.x_test),
            RANKED: lambda: rank(embeddings, state.W, 5),
            f"{RANKED}: its product": lambda: bare_product(embeddings, state.W),
        },
        turns,
    )


def whole_round(state: ServerState, data: FederatedData, cfg: Config, turns: int) -> float:
    """A round in which rows are not centred."""
    cfg = cfg.override(["spread.every=1000000"])
    encoder = build_encoder(cfg.model, data.x.shape[1:], cfg.seed)
    run_clients, available, counts = make_runner(cfg, method_of(cfg), data, encoder), data.available, data.num_examples
    times = Times()
    for turn in range(1, turns + 1):
        rng, current = torch.Generator().manual_seed(turn), replace(state, round_num=turn)
        with timed(times, "round"):
            algorithm.run_round(current, available, run_clients, cfg, rng, counts, in_place=True)
    return times["round"]


def loop_over_clients(state: ServerState, data: FederatedData, cfg: Config, clients: int) -> float:
    """Seconds a client in the serial runner, adding up its update included."""
    cfg = cfg.override(["train.runner=serial", f"clients.per_round={clients}"])
    encoder = build_encoder(cfg.model, data.x.shape[1:], cfg.seed)
    run_clients, rng = make_runner(cfg, method_of(cfg), data, encoder), torch.Generator().manual_seed(0)
    cohort = algorithm.sample_clients(data.available, cfg.clients, rng, data.num_examples)

    def loop() -> None:
        aggregate(state, run_clients(algorithm.broadcast(state, cohort)))

    return best_times({"loop": loop}, turns=1)["loop"] / clients


def textbook_loop(state: ServerState, data: FederatedData, cfg: Config, clients: int) -> float:
    """Seconds a client in a loop as one writes it first: all weights set anew for each client, all of them averaged."""
    table, *dense = state.theta.values()
    layers = [nn.Linear(w.shape[1], w.shape[0]) for w in dense[::2]]
    bag = nn.EmbeddingBag(table.shape[0], table.shape[1], mode="sum", sparse=True)
    encoder = nn.Sequential(layers[0], *(part for layer in layers[1:] for part in (nn.ReLU(), layer)))
    params, start = [bag.weight, *encoder.parameters()], [table, *dense]
    mean, examples = [torch.zeros_like(p) for p in start], ClientData(cfg, method_of(cfg), data)

    def one(client: int) -> None:
        x = examples.examples(examples.draw(data.available[client : client + 1], 0)).rows
        assert isinstance(x, SparseRows)
        assert x.values is not None
        with torch.no_grad():
            for p, v in zip(params, start, strict=True):
                p.copy_(v)
        w = state.W[client].clone().requires_grad_()
        h = bag(x.indices[None].long(), per_sample_weights=(x.values / x.values.sum())[None])
        loss = (0.9 - F.normalize(encoder(h), dim=1) @ w).clamp_min(0).square().mean()
        gradients = torch.autograd.grad(loss, [*params, w])
        with torch.no_grad():
            for p, g in zip([*params, w], gradients, strict=True):
                p.sub_(g)
            for total, p in zip(mean, params, strict=True):
                total.add_(p, alpha=1 / 4000)

    return best_times({"loop": lambda: [one(client) for client in range(clients)]}, turns=1)["loop"] / clients


def measure(shape: Shape, turns: int) -> Times:
    peak_mb(reset=True)
    data, cfg = make_data(shape.classes, max(60_000, 4 * shape.cohort)), configure(shape)
    state = initial_state(cfg, data, build_encoder(cfg.model, data.x.shape[1:], cfg.seed), shared=True)
    times, state = client_parts(state, data, cfg, turns + 1)
    cohort = torch.randperm(shape.classes, generator=torch.Generator().manual_seed(0))[: shape.cohort].sort().values
    times |= server_parts(state.W, cohort, cfg.spread, turns)
    times |= evaluation(state, data, cfg, turns)
    every = next(t for t in range(1, 1000) if moments.due("auto", t, shape.classes, shape.cohort))
    between = whole_round(state, data, cfg, turns + 1)
    times |= {"round without centring": between, "rounds from one centring to the next": every}
    times["round"] = between + times[CENTER] / every
    times[SERIAL] = shape.cohort * loop_over_clients(state, data, cfg, 30)
    times[TEXTBOOK] = shape.cohort * textbook_loop(state, data, cfg, 4)
    return times | {
        "exact mining / its product": times[EXACT] / times[f"{EXACT}: its product"],
        "ranking / its product": times[RANKED] / times[f"{RANKED}: its product"],
        "server's step on W / round": (times[REMEMBERED] + times[PAIRS] + times[CENTER] / every) / times["round"],
        "serial runner / round": times[SERIAL] / times["round"],
        "textbook loop / round": times[TEXTBOOK] / times["round"],
        "peak memory, GB": peak_mb() / 1024,
    }


def table(found: list[tuple[Shape, Times]]) -> str:
    heads = [f"{s.classes:,} / {s.dim} / {s.cohort:,}" for s, _ in found]
    lines = ["| C / d / clients | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    for part in found[0][1]:
        lines.append(f"| {part} | " + " | ".join(f"{times[part]:.3g}" for _, times in found) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    keep_freed_memory()
    print(f"load {os.getloadavg()[0]:.2f}, {torch.get_num_threads()} threads, torch {torch.__version__}", flush=True)
    found: list[tuple[Shape, Times]] = []
    for shape in QUICK if options.quick else SHAPES:
        found.append((shape, measure(shape, turns=1)))  # after a warm-up
        gc.collect()
        print(f"\n{table(found)}", flush=True)


if __name__ == "__main__":
    main()
