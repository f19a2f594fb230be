"""W⁰, whole or a part of it."""

import pytest
import torch
import torch.nn.functional as F

from fedaws.config import Config
from fedaws.core import start
from fedaws.hashing import hash64


@pytest.mark.parametrize("classes", [2, 15, 32, 41, 48, 70])
@pytest.mark.parametrize("dim", [3, 16])
def test_rows_drawn_in_blocks_are_those_drawn_at_once(classes: int, dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "_DRAWN", 16)
    cfg = Config().override([f"model.embedding_dim={dim}"])
    rng = torch.Generator().manual_seed(hash64(cfg.seed, "class embeddings"))
    at_once = F.normalize(torch.randn(classes, dim, generator=rng), dim=1)
    assert start.random_rows(cfg, classes).equal(at_once)
    for world in (2, 3):
        for rank in range(min(world, classes)):
            assert start.random_rows(cfg, classes, rank, world).equal(at_once[rank::world])
