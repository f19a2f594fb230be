"""Perceptrons trained by hand: the same numbers as by autograd, and only where they are perceptrons."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedaws import Config
from fedaws.core.local import example_losses, local_update, stacked_gradient
from fedaws.core.methods import method_of
from fedaws.models.mlp import mlp
from fedaws.runners.chains import chain_of, chain_update


def several_steps(*settings: str) -> Config:
    return Config().override(["clients.local_steps=3", "clients.lr=0.2", "model.embedding_dim=4", *settings])


@pytest.mark.parametrize("method", ["fedaws", "fixed", "positive-only"])
@pytest.mark.parametrize("hidden", [(), (7,), (7, 5)])
@pytest.mark.parametrize("first_bias", [True, False])
def test_steps_by_hand_are_those_of_autograd(method: str, hidden: tuple[int, ...], first_bias: bool) -> None:
    torch.manual_seed(0)
    cfg, encoder = several_steps(f"method={method}"), mlp(6, hidden, 4, first_bias).double()
    made, clients = method_of(cfg), 5
    theta = {k: v.detach().expand(clients, *v.shape) for k, v in encoder.named_parameters()}
    rows = F.normalize(torch.randn(clients, 4, dtype=torch.float64), dim=1)
    x = torch.randn(3, clients, 8, 2, 3, dtype=torch.float64)
    x[1, 2, 3] = 0  # without a first bias it stays at 0 and has no direction
    share = torch.rand(3, clients, 8, dtype=torch.float64)
    share[:, 0, 5:] = 0  # padding
    y = torch.zeros(3, clients, 8, dtype=torch.int64)
    gradient = stacked_gradient(example_losses(encoder, cfg, made, clients))
    expected = local_update(gradient, cfg, made, theta, rows, zip(x, y, share, strict=True), 0.7)
    got = chain_update(chain_of(encoder, cfg, made), cfg, made, theta, rows, zip(x, y, share, strict=True), 0.7)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)
    assert all(torch.equal(v[0], encoder.get_parameter(k)) for k, v in theta.items())  # θ itself is left alone


@pytest.mark.parametrize(
    "settings",
    [
        ["clients.optimizer=adam"],
        ["clients.momentum=0.9"],
        ["method=softmax"],
        ["method=feduv"],
        ["model.normalize=false"],
    ],
)
def test_what_is_not_plain_sgd_on_a_score_is_left_to_autograd(settings: list[str]) -> None:
    cfg = several_steps(*settings)
    assert chain_of(mlp(6, (7,), 4), cfg, method_of(cfg)) == ()


class Scaled(nn.Linear):
    """Looks like a linear layer, and is none."""


one_relu, one_layer = nn.ReLU(), nn.Linear(6, 6)  # to stand in several places


@pytest.mark.parametrize(
    "encoder",
    [
        nn.Linear(6, 4),
        nn.Sequential(nn.Linear(6, 7), nn.GELU(), nn.Linear(7, 4)),
        nn.Sequential(nn.Linear(6, 4), nn.ReLU()),
        nn.Sequential(nn.ReLU(), nn.Linear(6, 4)),
        nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.ReLU(), nn.Linear(4, 4)),
        nn.Sequential(nn.Linear(6, 7), nn.Linear(7, 4)),
        nn.Sequential(nn.Linear(6, 7), nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 4)),
        nn.Sequential(nn.Linear(6, 7), one_relu, nn.Linear(7, 5), one_relu, nn.Linear(5, 4), nn.Linear(4, 4)),
        nn.Sequential(one_layer, nn.ReLU(), one_layer, nn.ReLU(), nn.Linear(6, 4)),
        nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Flatten(), nn.Linear(10, 4)),
        nn.Sequential(nn.Flatten(2), nn.Linear(6, 4)),
        nn.Sequential(Scaled(6, 4)),
        nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(6, 4))),
        nn.Sequential(nn.Linear(6, 7).requires_grad_(False), nn.ReLU(), nn.Linear(7, 4)),
    ],
)
def test_other_encoders_are_left_to_autograd(encoder: nn.Module) -> None:
    cfg = several_steps()
    assert chain_of(encoder, cfg, method_of(cfg)) == ()
    assert chain_of(nn.Sequential(nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 4)), cfg, method_of(cfg)) != ()


def test_one_relu_in_two_places_is_two_relus() -> None:
    cfg, relu = several_steps(), nn.ReLU()
    chain = chain_of(nn.Sequential(nn.Linear(6, 7), relu, nn.Linear(7, 5), relu, nn.Linear(5, 4)), cfg, method_of(cfg))
    assert [link.relu for link in chain] == [True, True, False]


@pytest.mark.parametrize("whose", [[], ["0"]])
def test_an_encoder_or_a_flatten_with_a_hook_is_left_to_autograd(whose: list[str]) -> None:
    encoder, cfg = mlp(6, (7,), 4), several_steps()
    encoder.get_submodule(".".join(whose)).register_forward_hook(lambda layer, inputs, output: output * 2)
    assert chain_of(encoder, cfg, method_of(cfg)) == ()


def test_a_layer_with_a_hook_is_left_to_autograd() -> None:
    encoder, cfg = mlp(6, (7,), 4), several_steps()
    encoder[1].register_forward_hook(lambda layer, inputs, output: output * 2)
    assert chain_of(encoder, cfg, method_of(cfg)) == ()
