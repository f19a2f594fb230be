"""Encoders: what is built, what of it is trained, and which of the user's own fit."""

from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import nn

from fedaws.config import ModelConfig
from fedaws.models import build_encoder, evaluating, example_shape_fits, trainable
from fedaws.models.mlp import mlp
from helpers import refusal


def built(seed: int = 0, **options: Any) -> Any:
    return build_encoder(ModelConfig(**options), (8, 8), seed)


def test_an_encoder_maps_images_to_embeddings_of_the_asked_dimension() -> None:
    assert built(embedding_dim=7)(torch.zeros(3, 8, 8)).shape == (3, 7)


def test_without_hidden_layers_it_is_one_matrix() -> None:
    assert [p.shape for p in built(hidden=(), embedding_dim=3).parameters()] == [(3, 64), (3,)]


def test_the_start_is_a_function_of_the_seed() -> None:
    one, same, other = (built(seed)[1].weight for seed in (1, 1, 2))
    assert one.equal(same)
    assert not one.equal(other)


def test_building_leaves_the_callers_random_numbers_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    built()
    assert torch.rand(3).equal(expected)


def test_weights_start_as_he_et_al_and_biases_at_zero() -> None:
    torch.manual_seed(0)
    first: Any = mlp(200, [300], 10)[1]
    assert float(first.weight.detach().std()) == pytest.approx((2 / 200) ** 0.5, rel=0.02)
    assert not first.bias.any()


@torch.no_grad()
def test_embeddings_at_the_start_are_as_wide_apart_as_one_relu_layer_allows() -> None:
    x = 0.01 * torch.randn(500, 8, 8, generator=torch.Generator().manual_seed(0))  # small: biases would show
    g = nn.functional.normalize(built(hidden=(2000,), embedding_dim=2000)(x), dim=1)
    # Orthogonal inputs have the cosine 1/π after a wide ReLU layer without biases (Cho & Saul 2009); 1 would be a cone.
    assert float(g.mean(0).square().sum()) == pytest.approx(1 / torch.pi, abs=0.02)


# --- the user's own -------------------------------------------------------------------------------------------------


def test_frozen_parameters_are_not_trained() -> None:
    encoder = nn.Sequential(nn.Linear(2, 3).requires_grad_(False), nn.Linear(3, 4))
    assert set(trainable(encoder)) == {"1.weight", "1.bias"}


class Wrong(nn.Module):
    """Gives what it was made with, whatever it is asked."""

    def __init__(self, answer: object) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, _x: torch.Tensor) -> object:
        return self.answer


@pytest.mark.parametrize(
    ("encoder", "parts"),
    [
        (nn.Linear(6, 4), ["gives (1, 4)", "wanted [examples, 5]", "model.embedding_dim"]),
        (nn.Linear(7, 5), ["does not take examples of shape (6,)"]),
        (nn.Linear(6, 5).double(), ["does not take examples of shape (6,)", "dtype"]),
        (nn.LSTM(6, 5), ["gives tuple", "wanted [examples, 5]"]),
        (Wrong(torch.zeros(5)), ["gives (5,)", "wanted [examples, 5]"]),
        (Wrong(None), ["gives NoneType"]),
        (nn.Conv2d(3, 5, 1), ["does not take examples of shape (6,)"]),
    ],
)
def test_an_encoder_that_does_not_fit_is_refused(encoder: nn.Module, parts: list[str]) -> None:
    message = refusal(lambda: example_shape_fits(encoder, torch.zeros(1, 6), 5))
    for part in parts:
        assert part in message


def test_an_encoder_that_fits_is_taken() -> None:
    example_shape_fits(nn.Linear(6, 5), torch.zeros(1, 6), 5)


@pytest.mark.parametrize("training", [True, False])
def test_the_check_leaves_an_encoder_as_it_was(training: bool) -> None:
    encoder: Any = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 5)).train(training)
    example_shape_fits(encoder, torch.ones(1, 6), 5)
    assert encoder.training is training
    assert not encoder[0].running_mean.any()


def test_the_mode_comes_back_even_after_an_error() -> None:
    encoder = nn.Linear(6, 5).train()
    with suppress(KeyError), evaluating(encoder):
        assert not encoder.training
        raise KeyError
    assert encoder.training
