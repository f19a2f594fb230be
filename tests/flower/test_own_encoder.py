"""`examples/flower/own_encoder.py` runs, and the page shows it as it is."""

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import torch

from inprocess_grid import InProcessGrid, Node

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "flower" / "own_encoder.py"


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("own_encoder", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_example_learns_to_tell_its_clients_apart(tmp_path: Path) -> None:
    module = example()
    rng = torch.Generator().manual_seed(1)
    x = torch.randn(3, 20, 64, generator=rng) + 2 * torch.randn(3, 1, 64, generator=rng)  # three clouds, far apart
    nodes = {}
    for i, name in enumerate(module.CLASS_OF):
        np.savez(tmp_path / f"{name}.npz", x=x[i].numpy())
        nodes[10 + i] = Node(name, b"", {"data": str(tmp_path / f"{name}.npz")})
    InProcessGrid(module.client, nodes, {"model": str(tmp_path / "model.pt")}).serve(module.server)
    found = torch.load(tmp_path / "model.pt", weights_only=True)
    assert found["W"].shape == (3, 32)
    encoder = module.make_encoder()
    encoder.load_state_dict(found["encoder"])
    scores = encoder(x.flatten(0, 1)) @ found["W"].T
    right = (scores.argmax(1) == torch.arange(3).repeat_interleave(20)).float().mean()
    assert float(right) > 0.9


def test_the_page_shows_the_example_as_it_is() -> None:
    code = EXAMPLE.read_text()
    assert code[code.index("import numpy") :].strip() in (ROOT / "docs" / "flower.md").read_text()
