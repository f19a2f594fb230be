"""Whether a figure is of code that still computes the same: six rounds of its configuration on small generated data.

A figure costs hours and stays; the code goes on. So a run's *fingerprint* is stored beside its figure: what its
configuration, shrunk to two dozen classes and six rounds, came to with the code that made it. If the code of today
comes to something else, the figure is stale. Nothing here but what the package shows to everybody: older code can run
this file too, so that what it has made can be stamped afterwards (`benchmarks/stamp.py`).
"""

import math
from functools import cache

import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from fedaws.config import Config
from fedaws.data import FederatedData, from_arrays, from_sparse
from fedaws.training.session import Reporter
from fedaws.training.train import train

CLASSES = 24
OF_A_CLASS = 8
ROUNDS = 6
_MOST = {
    "train.warmup": 2,
    "model.embedding_dim": 32,
    "clients.per_round": 3,  # so few that centring and whitening are not due in every round
    "clients.examples_per_step": 4,
    "clients.sampled_classes": 8,
    "spread.neighbors": 5,
    "spread.candidates": 12,
    "spread.every": 2,
}
TOLERANCE = 2e-3
"""How far two fingerprints of one code may be apart, on other processors; a changed step moves them by 0.01 to 1."""


def fingerprint(cfg: Config) -> list[float]:
    """The losses of a few rounds of the shrunk configuration, and of its last W the largest cosine and a projection."""
    return list(_of(shrunk(cfg).model_dump_json()))


def same(stored: list[float] | None, now: list[float]) -> bool:
    """Whether two fingerprints are of code that computes the same.

    >>> same([0.5, 1.0], [0.5001, 1.0]), same([0.5, 1.0], [0.51, 1.0]), same(None, [0.5])
    (True, False, False)
    """
    if stored is None or len(stored) != len(now):
        return False
    return all(math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=TOLERANCE) for a, b in zip(stored, now, strict=True))


def shrunk(cfg: Config) -> Config:
    """The configuration with few rounds, clients and dimensions, and nothing else changed."""
    settings = ["seed=0", "data.validation=0", "data.root=none", "train.sizes=[]", "train.threads=1"]
    settings += [f"train.rounds={ROUNDS}", "train.evaluate_every=1", f"train.checkpoint_every={ROUNDS}"]
    if cfg.model.name in ("mlp", "bag"):
        settings.append(f"model.hidden={[min(width, 16) for width in cfg.model.hidden]}")
    for key, most in _MOST.items():
        table, name = key.split(".")
        value = getattr(getattr(cfg, table), name, None)  # older code has not all of them
        if isinstance(value, int) and value > most:
            settings.append(f"{key}={most}")
    return cfg.override(settings)


@cache
def _of(settings: str) -> tuple[float, ...]:
    cfg = Config.model_validate_json(settings)
    quiet = Reporter(on_warning=lambda message: None)
    run = train(_data(cfg), config=cfg, reporter=quiet)
    numbers = [*(row["loss"] for row in run.metrics), run.metrics[-1]["max_cosine"], _projected(run.W)]
    return tuple(round(float(value), 5) for value in numbers)


def _projected(W: Tensor) -> float:
    """W along a direction that favours none of its entries."""
    flat = W.detach().double().flatten()
    return float(flat @ torch.cos(torch.arange(len(flat), dtype=torch.float64)))


def _data(cfg: Config) -> FederatedData:
    """Examples of the kind that the encoder takes, two of a class to test on."""
    rng = torch.Generator().manual_seed(0)
    y = torch.arange(CLASSES).repeat(OF_A_CLASS)
    if cfg.model.name == "bag":
        words = torch.stack([y % 10, 10 + y % 7, 17 + torch.randint(23, y.shape, generator=rng)], 1)
        labels = torch.stack([y, torch.where(y % 3 > 0, (y + 5) % CLASSES, y)], 1)
        return from_sparse(_rows(words, 40), _rows(labels, CLASSES), validation=0.25)
    shape = (3, 8, 8) if cfg.model.name.startswith("resnet") else (6, 8) if cfg.model.name == "conv1d" else (12,)
    centres = torch.rand(CLASSES, *shape, generator=rng)
    return from_arrays(centres[y] + 0.3 * torch.rand(len(y), *shape, generator=rng), y, validation=0.25)


def _rows(ids: Tensor, width: int) -> csr_matrix:
    return csr_matrix(torch.zeros(len(ids), width).scatter_(1, ids, 1.0).numpy())
