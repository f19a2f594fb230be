"""Every owner's memory in a checkpoint: it comes back as it was, and a wrong one is refused."""

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedaws import Config
from fedaws.core.algorithm import run_round
from fedaws.core.methods import method_of
from fedaws.data import load_data
from fedaws.models import build_encoder
from fedaws.record.facts import Facts
from fedaws.record.files import read_tensors, write_tensors
from fedaws.record.folder import RunFolder
from fedaws.runners import make_runner
from fedaws.training.train import initial_state
from fedaws.types import ServerState
from helpers import refusal

FACTS = Facts(example_shape=(6,), example_dtype="float32")
REMEMBER = ("spread.regularizer=nearest", "spread.neighbors=1", "spread.candidates=3", "spread.remember=true")
OWNERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "sgd": ("optimizer", ("server.momentum=0.9",)),
    "adagrad": ("optimizer", ("server.optimizer=adagrad", "server.momentum=0")),
    "adam": ("optimizer", ("server.optimizer=adam", "server.momentum=0")),
    "muon": ("optimizer", ("server.optimizer=muon",)),
    "all rows": ("row_optimizer", ("method=softmax", "server.optimizer=adam", "server.momentum=0")),
    "sampled softmax": ("row_optimizer", ("method=softmax", "clients.sampled_classes=2")),
    "neighbours": ("spread", REMEMBER),
    "average": ("average", ("server.average=0.9",)),
}


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path)


def trained(cfg: Config, rounds: int) -> ServerState:
    data = load_data(cfg, 1)
    encoder = build_encoder(cfg.model, data.x.shape[1:], cfg.seed)
    method, state = method_of(cfg), initial_state(cfg, data, encoder)
    run_clients = make_runner(cfg, method, data, encoder)
    for t in range(rounds):
        state = run_round(state, data.available, run_clients, cfg, torch.Generator().manual_seed(t), data.num_examples)
    return state


def parts(state: ServerState) -> dict[str, Any]:
    """All tensors of a state by name."""
    found: dict[str, Any] = {}
    for field in fields(state):
        value = getattr(state, field.name)
        found |= {f"{field.name}/{k}": v for k, v in value.items()} if isinstance(value, dict) else {field.name: value}
    return {name: value for name, value in found.items() if isinstance(value, Tensor)}


@pytest.mark.parametrize("owner", OWNERS)
def test_a_memory_comes_back_as_it_was(tiny: Config, folder: RunFolder, owner: str) -> None:
    part, settings = OWNERS[owner]
    cfg = tiny.override(settings)
    state = trained(cfg, 3)
    assert any(
        bool((memory != parts(trained(cfg, 0))[name]).any())
        for name, memory in parts(state).items()
        if name.startswith(f"{part}/")
    )  # it has something to remember
    folder.save_checkpoint(state, FACTS.model_copy(update={"round": 3}))
    found = folder.load_checkpoint(trained(cfg, 0))
    assert found is not None
    before, after = parts(state), parts(found[0])
    assert before.keys() == after.keys()
    assert all(before[name].equal(after[name]) for name in before)


def without(name: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k: v for k, v in tensors.items() if k != name}


def of_other_shape(name: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return tensors | {name: torch.zeros(7, 7, dtype=tensors[name].dtype)}


@pytest.mark.parametrize("owner", OWNERS)
@pytest.mark.parametrize(("change", "got"), [(without, "is missing"), (of_other_shape, "(7, 7)")])
def test_a_wrong_memory_is_refused(
    tiny: Config,
    folder: RunFolder,
    owner: str,
    change: Callable[[str, dict[str, Tensor]], dict[str, Tensor]],
    got: str,
) -> None:
    part, settings = OWNERS[owner]
    cfg = tiny.override(settings)
    folder.save_checkpoint(trained(cfg, 1), FACTS)
    (path,) = folder.checkpoints()
    tensors, _ = read_tensors(path)
    name = next(name for name in sorted(tensors) if name.startswith(f"{part}/"))
    write_tensors(path, change(name, tensors), FACTS.model_dump(mode="json"))
    told = refusal(lambda: folder.load_checkpoint(trained(cfg, 0)))
    assert f"is of another run: {name!r}" in told
    assert got in told


@pytest.mark.parametrize("number", [-2, 4])
def test_neighbours_that_are_no_classes_are_refused(tiny: Config, folder: RunFolder, number: int) -> None:
    cfg = tiny.override(REMEMBER)
    state = trained(cfg, 1)
    wrong = {"neighbors": state.spread["neighbors"].clone().fill_(0)}
    wrong["neighbors"][2, 0] = number
    folder.save_checkpoint(replace(state, spread=wrong), FACTS)
    assert "'spread/neighbors' has ids beyond 4 classes" in refusal(lambda: folder.load_checkpoint(trained(cfg, 0)))


def test_no_neighbour_is_a_sound_memory(tiny: Config, folder: RunFolder) -> None:
    cfg = tiny.override(REMEMBER)
    start = trained(cfg, 0)
    assert start.spread["neighbors"].tolist() == [[-1]] * 4
    folder.save_checkpoint(start, FACTS)
    assert folder.load_checkpoint(start) is not None
