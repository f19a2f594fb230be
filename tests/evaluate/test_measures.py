"""All measures together, and what `evaluate` does to the encoder (nothing)."""

import math
import threading
import time
from collections.abc import Iterator
from typing import Self

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedaws.config import Config
from fedaws.evaluate import Model, TestSet, evaluate

RAW = Config.model_validate({"model": {"normalize": False}})
BOUNDS = ("error_bound", "error_bound_cosine", "lemma1_bound")


def measured(
    encoder: nn.Module, theta: dict[str, torch.Tensor], W: torch.Tensor, x: torch.Tensor, y: torch.Tensor, cfg: Config
) -> dict[str, float]:
    return evaluate(Model(encoder, theta, W, cfg.model.normalize), TestSet(x, y), cfg)


def embed_all(encoder: nn.Module, theta: dict[str, torch.Tensor], x: torch.Tensor, normalize: bool) -> torch.Tensor:
    return Model(encoder, theta, torch.eye(2), normalize).embed(x)


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_the_measures_of_two_classes_and_two_examples_by_hand() -> None:
    x, y = torch.tensor([[3.0, 4.0], [0.0, 2.0]]), torch.tensor([0, 1])  # (0.6, 0.8) once normalised: wrong
    assert measured(nn.Identity(), {}, torch.eye(2), x, y, Config()) == {
        "precision@1": 0.5,
        "test_loss": pytest.approx(0.3**2 / 2),
        "min_separation": pytest.approx(math.sqrt(2)),
        "max_cosine": 0.0,
        "positive_radius": pytest.approx(math.sqrt(0.8) / 2),
        "error_bound": pytest.approx(math.sqrt(0.4)),
        "error_bound_cosine": pytest.approx(0.2 / (1 - math.sqrt(0.5))),
        "lemma1_bound": pytest.approx(0.73 / 0.81),
        "theorem1_gap": pytest.approx(0.32),
        "theorem1_bound": pytest.approx(0.8),
    }


def test_the_configured_margins_are_those_of_the_loss_and_of_the_bounds() -> None:
    cfg = Config.model_validate({"clients": {"margin": 0.8}, "spread": {"margin": 0.5}})
    measures = measured(nn.Identity(), {}, torch.eye(2), torch.tensor([[0.6, 0.8]]), torch.tensor([0]), cfg)
    assert measures["test_loss"] == pytest.approx(0.2**2)
    assert measures["theorem1_gap"] == pytest.approx(0.3**2)
    assert measures["theorem1_bound"] == pytest.approx(2 * 0.5 * 0.8)


def test_without_normalisation_scores_are_inner_products_and_there_are_no_bounds() -> None:
    W, x = torch.tensor([[1.0, 0.0], [0.0, 3.0]]), torch.tensor([[2.0, 1.0]])  # scores 2 and 3: class 1 wins
    assert measured(nn.Identity(), {}, W, x, torch.tensor([1]), RAW) == {
        "precision@1": 1.0,
        "test_loss": 0.0,
        "min_separation": pytest.approx(math.sqrt(10)),
        "max_cosine": 0.0,
    }


@pytest.mark.parametrize(("classes", "ks"), [(2, [1]), (3, [1, 3]), (4, [1, 3]), (5, [1, 3, 5])])
def test_precision_is_given_for_no_more_ranks_than_there_are_classes(classes: int, ks: list[int]) -> None:
    measures = measured(nn.Identity(), {}, torch.eye(classes), torch.eye(classes), torch.arange(classes), Config())
    assert [name for name in measures if name.startswith("precision")] == [f"precision@{k}" for k in ks]
    assert [measures[f"precision@{k}"] for k in ks] == pytest.approx([1 / k for k in ks])


@given(st.integers(0, 2**31), st.integers(2, 8), st.floats(0, 3), st.floats(0.2, 2))
def test_the_bounds_of_a_random_model_are_above_its_error(seed: int, classes: int, noise: float, nu: float) -> None:
    W, y = F.normalize(normal(seed, classes, 4), dim=1), torch.arange(40) % classes
    cfg = Config.model_validate({"spread": {"margin": nu}})
    measures = measured(nn.Identity(), {}, W, W[y] + noise * normal(seed + 1, 40, 4) / 2, y, cfg)
    for name in BOUNDS:
        assert 1 - measures["precision@1"] <= measures[name] + 1e-5, name


def test_a_model_that_stands_on_its_well_separated_classes_is_certified_right() -> None:
    measures = measured(nn.Identity(), {}, torch.eye(3), torch.eye(3), torch.arange(3), Config())
    assert [measures[name] for name in BOUNDS] == [0.0, 0.0, 0.0]


def test_parameters_are_taken_from_theta_and_not_from_the_encoder() -> None:
    encoder = nn.Linear(2, 2, bias=False)
    swap = {"weight": torch.tensor([[0.0, 1.0], [1.0, 0.0]])}
    assert measured(encoder, swap, torch.eye(2), torch.eye(2), torch.tensor([1, 0]), Config())["precision@1"] == 1.0


# --- the encoder ----------------------------------------------------------------------------------------------------


def parameters(encoder: nn.Module) -> dict[str, torch.Tensor]:
    return dict(encoder.named_parameters())


@pytest.mark.parametrize("training", [True, False])
def test_every_part_of_the_encoder_keeps_its_mode(training: bool) -> None:
    encoder = nn.Sequential(nn.Linear(2, 2), nn.Dropout(), nn.BatchNorm1d(2)).train(training)
    encoder[2].train(not training)  # such as a layer frozen by its owner
    measured(encoder, parameters(encoder), torch.eye(2), torch.eye(2), torch.arange(2), Config())
    assert [module.training for module in encoder.modules()] == [training, training, training, not training]


def test_the_mode_is_kept_when_the_encoder_fails() -> None:
    encoder = nn.Sequential(nn.Linear(2, 2), nn.Dropout()).train()
    with pytest.raises(RuntimeError, match="shape"):
        embed_all(encoder, parameters(encoder), torch.zeros(1, 3), normalize=True)
    assert all(module.training for module in encoder.modules())


def test_nothing_is_dropped_out_in_evaluation() -> None:
    encoder = nn.Sequential(nn.Dropout(0.5)).train()
    assert embed_all(encoder, {}, torch.ones(50, 4), normalize=False).tolist() == torch.ones(50, 4).tolist()


def test_no_gradient_graph_is_built() -> None:
    encoder = nn.Linear(2, 2)
    assert not embed_all(encoder, parameters(encoder), torch.eye(2), normalize=True).requires_grad
    W = torch.eye(2, requires_grad=True)
    measured(encoder, parameters(encoder), W, torch.eye(2), torch.arange(2), Config())
    assert W.grad is None
    assert all(p.grad is None for p in encoder.parameters())


@pytest.mark.parametrize(("cache", "examples"), [(1, 1), (48, 3), (10**6, 10)])
def test_blocks_of_any_size_give_the_same_embeddings(
    monkeypatch: pytest.MonkeyPatch, cache: int, examples: int
) -> None:
    encoder, x = nn.Linear(4, 3), normal(0, 10, 4)
    whole = embed_all(encoder, parameters(encoder), x, normalize=True)
    monkeypatch.setattr("fedaws.evaluate.model.ROWS", cache // 4)
    seen = []
    encoder.register_forward_hook(lambda _module, inputs, _out: seen.append(len(inputs[0])))
    torch.testing.assert_close(embed_all(encoder, parameters(encoder), x, normalize=True), whole)
    assert max(seen) == examples  # of 16 bytes each


@pytest.fixture
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


class Convolutions(nn.Sequential):
    """An encoder with layers that differ between training and evaluation; tells which threads it ran in."""

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(1, 4, 3, padding=1), nn.Dropout(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.threads = Threads()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.threads.add(threading.get_ident())
        return super().forward(x)  # type: ignore[no-untyped-call]


class Threads(set[int]):
    """Shared between copies."""

    def __deepcopy__(self, memo: object) -> Self:
        return self


@pytest.mark.usefixtures("three_threads")
def test_images_are_embedded_in_threads_as_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, x = Convolutions().train(), normal(0, 20, 1, 6, 6)
    theta = {name: torch.full_like(p, 0.1) + p.detach() for name, p in encoder.named_parameters()}
    monkeypatch.setattr("fedaws.evaluate.model.ROWS", 3 * 36 * 2)  # two images for each thread
    got = embed_all(encoder, theta, x, normalize=False)
    assert threading.get_ident() not in encoder.threads
    assert all(module.training for module in encoder.modules())
    assert not got.requires_grad
    for i in range(20):  # a convolution that is then averaged, by hand
        weight, bias = theta["0.weight"], theta["0.bias"]
        padded = nn.functional.pad(x[i, 0], (1, 1, 1, 1))
        shifted = [[padded[a : a + 6, b : b + 6].mean() for b in range(3)] for a in range(3)]
        expected = [
            sum(float(weight[o, 0, a, b]) * float(shifted[a][b]) for a in range(3) for b in range(3)) + float(bias[o])
            for o in range(4)
        ]
        assert got[i].tolist() == pytest.approx(expected, abs=1e-5)


@pytest.mark.usefixtures("three_threads")
def test_embedding_leaves_no_threads_behind() -> None:
    encoder = Convolutions()
    for _ in range(3):
        embed_all(encoder, parameters(encoder), normal(0, 5, 1, 6, 6), normalize=True)
    limit = time.monotonic() + 5
    while any(t.name.startswith("fedaws") for t in threading.enumerate()) and time.monotonic() < limit:
        time.sleep(0.005)
    assert not any(t.name.startswith("fedaws") for t in threading.enumerate())
    assert torch.get_num_threads() == 3


@pytest.mark.usefixtures("three_threads")
def test_an_encoder_that_fails_in_a_thread_fails_here() -> None:
    encoder = Convolutions().train()
    with pytest.raises(RuntimeError, match="channels"):
        embed_all(encoder, parameters(encoder), torch.zeros(4, 2, 6, 6), normalize=True)
    assert all(module.training for module in encoder.modules())


def test_bytes_are_given_to_the_encoder_as_fractions() -> None:
    x = torch.tensor([[0, 51, 255]], dtype=torch.uint8)
    assert embed_all(nn.Identity(), {}, x, normalize=False)[0].tolist() == pytest.approx([0.0, 0.2, 1.0])
