"""The same job in `fedaws train`, through the real Flower apps in one process, and deployed on loopback.

    python benchmarks/flower.py              # needs fedaws[flower]; a few minutes, most of them the deployment
    python benchmarks/flower.py --no-deployment

MLP 64-128-32, ten local steps of 16 examples, spread by moments. In one process the apps run one client after the
other, through Flower's own packing into bytes; deployed, every message starts a Python of its own, which imports torch.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path
from statistics import median

import torch

import fedaws
from fedaws import Config
from fedaws.flower.client_app import app as client_app
from fedaws.flower.inprocess import InProcessGrid, Node
from fedaws.flower.server_app import app as server_app
from fedaws.flower.setup import create
from fedaws.flower.up import up
from fedaws.record.folder import RunFolder


def job(clients: int, rounds: int) -> Config:
    settings = [f"data.classes={clients}", "data.name=synthetic", "data.features=64", f"train.rounds={rounds}"]
    return fedaws.config.load("digits-flower").override([*settings, f"train.evaluate_every={rounds}"])


def simulated(cfg: Config) -> float:
    started = time.perf_counter()
    fedaws.train(config=cfg)
    return time.perf_counter() - started


def in_process(cfg: Config, clients: int) -> tuple[float, int]:
    """Seconds, and bytes that one node was sent."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.toml"
        path.write_text(cfg.to_toml())
        nodes = {i + 2: Node(config={"partition-id": i}) for i in range(clients)}
        grid = InProcessGrid(client_app, nodes, {"config": str(path), "trust-claims": True})
        started = time.perf_counter()
        grid.serve(server_app)
        return time.perf_counter() - started, sum(map(len, nodes[2].received)) // cfg.train.rounds


def deployed(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        cfg = fedaws.config.load("digits-flower").override([f"train.rounds={rounds}"])
        place = create(Path(folder) / "federation", cfg, 5, 3)
        up(place.root, print)
        rows = RunFolder(place.run).metrics()[1:]  # the first round also waits for the nodes to start
        parts = {key: median(row[f"{key}_seconds"] for row in rows) for key in ("round", "import", "compute", "server")}
    rest = parts["round"] - parts["import"] - parts["compute"] - parts["server"]
    print(
        f"deployed, 5 nodes: {parts['round']:.1f} s a round = imports {parts['import']:.1f} + compute "
        f"{parts['compute']:.2f} + server step {parts['server']:.3f} + processes, polling, transport {rest:.1f}"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--no-deployment", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"load {os.getloadavg()[0]:.2f}, torch {torch.__version__}")
    for clients, rounds in ((10, 10), (100, 3)):
        cfg = job(clients, rounds)
        simulated(cfg)  # warm-up
        plain, (flower, sent) = min(simulated(cfg) for _ in range(3)), in_process(cfg, clients)
        print(
            f"{clients:4d} clients: fedaws train {clients * rounds / plain:8,.0f} client updates/s, "
            f"Flower apps in one process {clients * rounds / flower:6,.0f}; a node is sent {sent:,} bytes a round"
        )
    if not options.no_deployment:
        deployed(4)
