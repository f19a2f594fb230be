"""Weights to start from: where they may come from, what is refused, what is recorded."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

import fedaws
from fedaws import Config, Reporter, Run
from fedaws.core.method import Method
from fedaws.core.methods import method_of
from fedaws.models import build_encoder
from fedaws.record.folder import RunFolder
from fedaws.training.session import Interrupted
from fedaws.training.train import initial_state
from helpers import refusal

Weights = dict[str, Tensor]


def weights_like(tiny: Config, seed: int = 5) -> Weights:
    """Weights of the encoder's names and shapes, all of them other numbers."""
    encoder = build_encoder(tiny.model, (6,), seed=0)
    rng = torch.Generator().manual_seed(seed)
    return {name: torch.randn(p.shape, generator=rng) for name, p in encoder.named_parameters()}


def trained_nothing(tiny: Config, tmp_path: Path, weights: Weights) -> Run:
    """A run whose encoder is these weights, by a learning rate that moves nothing."""
    return fedaws.train(config=still(tiny), start=weights, folder=tmp_path / "first")


def still(tiny: Config) -> Config:
    return tiny.override(["clients.lr=1e-30", "server.momentum=0", "train.rounds=1"])


@pytest.mark.parametrize("kind", ["run", "folder", "folder's name", "file", "dict"])
def test_training_begins_with_the_weights_given(tiny: Config, tmp_path: Path, kind: str) -> None:
    weights = weights_like(tiny)
    save_file(weights, tmp_path / "weights.safetensors")
    run = trained_nothing(tiny, tmp_path, weights)
    starts: dict[str, Any] = {
        "run": run,
        "folder": tmp_path / "first",
        "folder's name": str(tmp_path / "first"),
        "file": tmp_path / "weights.safetensors",
        "dict": weights,
    }
    begun = fedaws.train(config=still(tiny), start=starts[kind])
    assert begun.theta.keys() == weights.keys()
    assert all(begun.theta[name].equal(weights[name]) for name in weights)
    assert begun.facts.start is not None
    assert begun.facts.start == run.facts.start  # the same weights, wherever they come from


def test_without_a_start_none_is_recorded(tiny: Config) -> None:
    assert fedaws.train(config=still(tiny)).facts.start is None


def test_half_precision_weights_may_be_started_from(tiny: Config) -> None:
    weights = {name: t.bfloat16() for name, t in weights_like(tiny).items()}
    begun = fedaws.train(config=still(tiny), start=weights)
    assert all(begun.theta[name].equal(weights[name].float()) for name in weights)


def changed(weights: Weights, name: str, value: Any) -> Any:
    return weights | {name: value}


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda w: changed(w, "3.weight", torch.zeros(5, 9)), "start has 3.weight of shape (5, 9), the encoder (5, 8)"),
        (lambda w: {k: t for k, t in w.items() if k != "3.bias"}, "start has no 3.bias"),
        (lambda w: changed(w, "3.bias", torch.full((5,), torch.nan)), "NaN or infinite values in 3.bias"),
        (lambda w: changed(w, "3.bias", [0.0] * 5), "start has 3.bias as a list; wanted a tensor"),
        (lambda w: 3, "start is a int; wanted a Run, a run folder, a file or tensors by name"),
        (lambda w: "nowhere.safetensors", "does not exist; wanted a run folder or a .safetensors file"),
    ],
)
def test_unsound_weights_are_refused_and_nothing_is_left_behind(
    tiny: Config, tmp_path: Path, change: Callable[[Weights], Any], part: str
) -> None:
    encoder = build_encoder(tiny.model, (6,), seed=0)
    before = {name: p.detach().clone() for name, p in encoder.named_parameters()}
    start = change(weights_like(tiny))
    told = refusal(lambda: fedaws.train(encoder=encoder, config=tiny, start=start, folder=tmp_path / "run"))
    assert part in told
    assert not (tmp_path / "run").exists()
    assert all(p.equal(before[name]) for name, p in encoder.named_parameters())


@pytest.mark.parametrize("size", [0, 5, 100])
def test_a_damaged_file_is_refused(tiny: Config, tmp_path: Path, size: int) -> None:
    path = tmp_path / "weights.safetensors"
    save_file(weights_like(tiny), path)
    path.write_bytes(path.read_bytes()[:size])
    assert "no sound .safetensors file" in refusal(lambda: fedaws.train(config=tiny, start=path))


def test_a_pipe_is_refused_and_not_waited_for(tiny: Config, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.safetensors")
    told = refusal(lambda: fedaws.train(config=tiny, start=tmp_path / "pipe.safetensors"))
    assert "is not a plain file" in told


def test_tensors_without_a_place_are_told_of(tiny: Config) -> None:
    told: list[str] = []
    start = weights_like(tiny) | {"classifier": torch.zeros(3)}
    fedaws.train(config=still(tiny), start=start, reporter=Reporter(on_warning=told.append))
    assert "start has 1 tensors that the encoder has no place for; they are left out" in told


def test_a_resumed_run_wants_the_start_it_had(tiny: Config, tmp_path: Path) -> None:
    first, other = weights_like(tiny), weights_like(tiny, seed=6)
    rounds = iter(range(100))
    stop = Reporter(should_stop=lambda: next(rounds) == 6)
    with pytest.raises(Interrupted):
        fedaws.train(config=tiny, start=first, folder=tmp_path / "run", reporter=stop)
    for start in (other, None):
        told = refusal(partial(fedaws.train, config=tiny, start=start, folder=tmp_path / "run", resume=True))
        assert "was started with start=" in told
    resumed = fedaws.train(config=tiny, start=first, folder=tmp_path / "run", resume=True)
    whole = fedaws.train(config=tiny, start=first)
    assert resumed.W.equal(whole.W)
    assert all(resumed.theta[name].equal(whole.theta[name]) for name in whole.theta)


def test_the_command_line_starts_from_a_file_and_from_a_folder(
    cli: Callable[..., Any], refused: Callable[..., str], tiny: Config, tiny_toml: Path, tmp_path: Path
) -> None:
    weights = weights_like(tiny)
    save_file(weights, tmp_path / "weights.safetensors")
    settings = ("-s", "clients.lr=1e-30", "-s", "server.momentum=0", "-s", "train.rounds=1", "--json")
    for start, out in (("weights.safetensors", "a"), ("a", "b")):
        assert cli("train", tiny_toml, *settings, "-s", f"model.start={start}", "--out", out).code == 0
        theta = RunFolder(tmp_path / out).load_model().theta
        assert all(theta[name].equal(weights[name]) for name in weights)
    assert "does not exist" in refused("train", tiny_toml, "-s", "model.start=none.safetensors", "--out", "c")
    assert not (tmp_path / "c").exists()


class Turned(nn.Module):
    """Gives back what it gets, by a parameter that is 1."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


def test_rows_may_start_at_each_classes_mean_direction() -> None:
    # Unit embeddings of class 0: (1, 0) and (0.6, 0.8), of class 1: (0, −1); class 2 has nobody.
    x = [[2.0, 0.0], [0.6, 0.8], [0.0, -3.0]]
    data = fedaws.from_arrays(x, [0, 0, 1], num_classes=3)
    cfg = Config().override(["model.embedding_dim=2", "model.start_rows=means"])
    method: Method = method_of(cfg)
    W = initial_state(cfg, data, Turned(), method).W
    torch.testing.assert_close(W[0], F.normalize(torch.tensor([1.6, 0.8]), dim=0))
    torch.testing.assert_close(W[1], torch.tensor([0.0, -1.0]))
    random = initial_state(cfg.override(["model.start_rows=random"]), data, Turned(), method).W
    assert W[2].equal(random[2])
