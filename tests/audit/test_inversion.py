"""What updates show of examples: all of them where truth was planted so, nothing where an update says nothing."""

import pytest
import torch
from torch import nn

from fedaws import Config
from fedaws.audit.inversion import exact, first_layer, inversion, matched, optimised_inversion, update_of
from fedaws.core.local import example_losses
from fedaws.core.methods import method_of
from fedaws.data import FederatedData, load_data
from fedaws.evaluate import Model
from fedaws.models import build_encoder
from fedaws.models.mlp import mlp


def model_of(cfg: Config, data: FederatedData) -> Model:
    encoder = build_encoder(cfg.model, data.x.shape[1:], 0)
    rows = torch.nn.functional.normalize(torch.randn(data.num_classes, cfg.model.embedding_dim), dim=1)
    return Model(encoder, {k: p.detach() for k, p in encoder.named_parameters()}, rows)


@pytest.fixture
def wide(tiny: Config) -> Config:
    return tiny.override(["model.hidden=[64]"])


def test_examples_that_were_planted_are_read_off_exactly(wide: Config) -> None:
    torch.manual_seed(0)
    model = model_of(wide, load_data(wide))
    x = torch.randn(2, 6)
    delta = update_of(model, wide, method_of(wide), model.W[0], [x], 4)
    found = exact(delta, model.encoder)
    for planted in x:
        assert (found - planted).norm(dim=1).min() < 1e-4 * planted.norm()


def test_an_update_of_zeros_shows_nothing(wide: Config) -> None:
    model = model_of(wide, load_data(wide))
    assert not len(exact({k: torch.zeros_like(v) for k, v in model.theta.items()}, model.encoder))


def test_single_examples_are_recovered_and_sums_of_many_clients_are_not(wide: Config) -> None:
    torch.manual_seed(0)
    data, rng = load_data(wide), torch.Generator().manual_seed(0)
    model = model_of(wide, data)
    alone = inversion(model, wide, data, rng, batch=1, tries=10)
    assert alone.recovered.value == 1
    assert alone.any_client is not None
    assert alone.any_client.low > 0.6  # Wilson of 10 in 10
    assert inversion(model, wide, data, rng, clients=40, batch=4, tries=2).recovered.value < 0.1


def test_without_its_first_bias_an_mlp_shows_nothing_exactly(wide: Config) -> None:
    cfg = wide.override(["model.first_bias=false"])
    data = load_data(cfg)
    model = model_of(cfg, data)
    assert "1.bias" not in model.theta
    assert inversion(model, cfg, data, torch.Generator().manual_seed(0), batch=1, tries=5).recovered.value == 0


def test_gradient_matching_finds_what_the_ratios_no_longer_show(wide: Config) -> None:
    torch.manual_seed(0)
    cfg = wide.override(["model.first_bias=false"])
    data = load_data(cfg)
    found = optimised_inversion(model_of(cfg, data), cfg, data, torch.Generator().manual_seed(0), tries=8, steps=200)
    assert found.recovered.chance == pytest.approx(1 / 8)  # one of a client's eight training examples
    assert found.recovered.low > 2 * found.recovered.chance


def test_gradient_matching_gives_noise_for_an_update_of_zeros(wide: Config) -> None:
    data = load_data(wide)
    model = model_of(wide, data)
    zeros = {k: torch.zeros_like(v) for k, v in model.theta.items()}
    loss_of = example_losses(model.encoder, wide, method_of(wide), 4)
    shape, rng = torch.Size([3, 6]), torch.Generator().manual_seed(0)
    x = matched(zeros, model.theta, loss_of, model.W[0], shape, (0.0, 1.0), rng, 5)
    assert torch.equal(x, torch.rand(shape, generator=torch.Generator().manual_seed(0)))


def test_the_first_layer_is_the_one_that_sees_the_examples() -> None:
    assert first_layer(mlp(4, [3], 2)) == ("1.weight", "1.bias")
    assert first_layer(mlp(4, [3], 2, first_bias=False)) == ("1.weight", None)
    assert first_layer(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(2, 2))) == (None, None)
