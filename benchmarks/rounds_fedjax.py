"""The rounds of rounds.py by FedJAX, for an interpreter of its own that has it: `rounds.py --fedjax PYTHON` starts it.

Argument: `wall` or `cpu`, which seconds are told. Reads "clients steps mean" line by line, and answers each with the
seconds of one round: of all clients' steps and, where mean is 1, of `fedjax.tree_util.tree_mean` of their changes too.
Batches are made before and stay the same; what JAX compiles, it compiles before.
"""

import sys
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import jax

if not hasattr(jax, "tree_map"):  # FedJAX 0.0.17 is of a time when it was there
    jax.tree_map = jax.tree_util.tree_map
import fedjax
import jax.numpy as jnp
import numpy as np

BATCH, FEATURES, HIDDEN, DIM, LR = 16, 64, 128, 32, 0.1


def loss(trained: Any, x: Any) -> Any:
    theta, w = trained
    h = jax.nn.relu(x @ theta["a"] + theta["b"]) @ theta["c"] + theta["d"]
    z = h / jnp.linalg.norm(h, axis=1, keepdims=True)
    return jnp.mean(jnp.maximum(0.9 - z @ w, 0) ** 2)


def step(trained: Any, batch: Any) -> Any:
    return jax.tree_util.tree_map(lambda p, g: p - LR * g, trained, jax.grad(loss)(trained, batch["x"]))


def final(shared: Any, trained: Any) -> Any:
    theta, w = trained
    return jax.tree_util.tree_map(lambda a, b: a - b, theta, shared), w / jnp.linalg.norm(w)


@cache
def setting(clients: int, steps: int) -> Callable[[bool], None]:
    """A function that runs one round."""
    rng = np.random.default_rng(0)
    sizes = {"a": (FEATURES, HIDDEN), "b": (HIDDEN,), "c": (HIDDEN, DIM), "d": (DIM,)}
    theta = {name: jnp.asarray(0.1 * rng.standard_normal(size), jnp.float32) for name, size in sizes.items()}
    rows = rng.standard_normal((clients, DIM)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    x = rng.standard_normal((clients, steps, BATCH, FEATURES)).astype(np.float32)
    run_clients = fedjax.for_each_client(lambda shared, w: (shared, w), step, final)
    cohort = [(i, [{"x": batch} for batch in x[i]], rows[i]) for i in range(clients)]

    def run(mean: bool) -> None:
        found = jax.block_until_ready([output for _, output in run_clients(theta, cohort)])
        if mean:
            jax.block_until_ready(fedjax.tree_util.tree_mean((delta, 1.0) for delta, _ in found))

    run(True)
    return run


clock = {"wall": time.perf_counter, "cpu": time.process_time}[sys.argv[1]]
for line in sys.stdin:
    number, steps, mean = map(int, line.split())
    run = setting(number, steps)
    started = clock()
    run(bool(mean))
    print(clock() - started, flush=True)
