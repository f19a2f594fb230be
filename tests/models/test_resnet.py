"""ResNets: their layers as He et al. count them, one example at a time, and a sane start whatever stands for norms."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedaws.config import ModelConfig, ModelName, NormName
from fedaws.models import build_encoder
from fedaws.models.resnet import ResNet, StandardizedConv, Stem, resnet, whitening
from helpers import refusal

DEPTHS = (8, 20, 32, 44, 56)
NORMS: tuple[NormName, ...] = ("group", "weight", "none")


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def built(depth: int = 8, shape: tuple[int, ...] = (3, 8, 8), norm: NormName = "group", seed: int = 0) -> Any:
    name: ModelName = f"resnet{depth}"  # type: ignore[assignment]
    return build_encoder(ModelConfig(name=name, embedding_dim=5, norm=norm), shape, seed)


def patches_of(channels: int) -> list[tuple[int, int, int]]:
    """Colour, row and column of each number of a 3 × 3 patch, in the order of a filter's numbers."""
    return list(itertools.product(range(channels), range(3), range(3)))


def model_covariance(channels: int) -> np.ndarray:
    """0.95^distance between places, 0.9 between colours: by a loop over pairs."""
    places = patches_of(channels)
    return np.array(
        [
            [0.95 ** math.hypot(a[1] - b[1], a[2] - b[2]) * (1.0 if a[0] == b[0] else 0.9) for b in places]
            for a in places
        ]
    )


# --- its shape ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("depth", DEPTHS)
@torch.no_grad()
def test_a_resnet_has_as_many_layers_as_its_name_says(
    depth: int, norm: NormName, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers: list[tuple[int, ...]] = []
    convolve, linear = F.conv2d, F.linear
    monkeypatch.setattr(F, "conv2d", lambda x, w, *rest, **kw: layers.append(w.shape) or convolve(x, w, *rest, **kw))
    monkeypatch.setattr(F, "linear", lambda x, w, *rest: layers.append(w.shape) or linear(x, w, *rest))
    built(depth, norm=norm)(torch.rand(1, 3, 8, 8))
    counted = [shape for shape in layers if shape[2:] != (1, 1)]  # He et al. do not count the shortcuts
    n = (depth - 2) // 6
    assert len(counted) == depth == 6 * n + 2
    outputs = [shape[0] for shape in counted[1:-1]]
    assert outputs == [16] * 2 * n + [32] * 2 * n + [64] * 2 * n
    assert counted[0] == (16, 3, 3, 3)
    assert counted[-1] == (5, 64)


@torch.no_grad()
def test_the_second_and_the_third_stage_halve_the_image() -> None:
    sides: list[int] = []
    encoder = built(20, (3, 32, 32))
    for block in encoder.blocks:
        block.register_forward_hook(lambda _module, _inputs, out: sides.append(out.shape[-1]))
    encoder(torch.rand(1, 3, 32, 32))
    assert sides == [32, 32, 32, 16, 16, 16, 8, 8, 8]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("norm", NORMS)
@torch.no_grad()
def test_one_encoder_takes_images_of_any_size(channels: int, norm: NormName) -> None:
    encoder = built(shape=(channels, 32, 32), norm=norm)
    for height, width in ((32, 32), (24, 24), (16, 16), (9, 7), (4, 4)):
        out = encoder(torch.rand(2, channels, height, width))
        assert out.shape == (2, 5)
        assert out.isfinite().all()


@pytest.mark.parametrize("shape", [(192,), (8, 8), (1, 3, 8, 8)])
def test_examples_that_are_not_images_are_refused(shape: tuple[int, ...]) -> None:
    message = refusal(lambda: resnet(20, shape, 5, "group"))
    assert f"model.name=resnet20 needs images [channels, height, width], got examples of shape {shape}" in message
    assert "set model.name=mlp" in message


@pytest.mark.parametrize("norm", NORMS)
def test_a_resnets_start_is_a_function_of_the_seed(norm: NormName) -> None:
    one, same, other = (built(norm=norm, seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(one[k].equal(same[k]) for k in one)
    assert not one["stem.mix"].equal(other["stem.mix"])
    assert not one["blocks.0.first.weight"].equal(other["blocks.0.first.weight"])


@pytest.mark.parametrize("norm", NORMS)
def test_every_parameter_takes_part(norm: NormName) -> None:
    encoder = built(norm=norm)
    for parameter in encoder.parameters():  # away from the start, where some are zero on purpose
        nn.init.normal_(parameter, std=0.1, generator=rng())
    (encoder(torch.rand(4, 3, 8, 8, generator=rng())) * torch.randn(4, 5, generator=rng(1))).sum().backward()
    for name, parameter in encoder.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.any(), name


# --- what it must not do --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", NORMS)
@torch.no_grad()
def test_an_embedding_does_not_depend_on_the_others_of_its_batch(norm: NormName) -> None:
    encoder = built(20, norm=norm).train()
    mine = torch.rand(1, 3, 8, 8, generator=rng())
    others = (100 * torch.rand(7, 3, 8, 8, generator=rng(1)), torch.zeros(2, 3, 8, 8))
    alone = encoder(mine)
    for company in others:
        torch.testing.assert_close(encoder(torch.cat([company, mine]))[-1:], alone, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_the_layout_in_memory_does_not_matter() -> None:
    x = torch.rand(4, 3, 8, 8, generator=rng())
    assert built()(x).equal(built()(x.contiguous(memory_format=torch.channels_last)))


# --- its start ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("depth", [8, 56])
def test_activations_and_gradients_neither_vanish_nor_explode(depth: int, norm: NormName) -> None:
    encoder = built(depth, (3, 16, 16), norm)
    rms: list[float] = []
    for block in encoder.blocks:
        block.register_forward_hook(
            lambda _module, _inputs, out: rms.append(float(out.detach().square().mean().sqrt()))
        )
    # Images as the stem's model has them: neighbours alike, then mean 0.47 and deviation 0.25.
    smooth = F.avg_pool2d(torch.randn(8, 3, 20, 20, generator=rng()), 5, stride=1)
    out = encoder(0.47 + 0.25 * smooth / smooth.std())
    assert min(rms) > 0.2
    assert max(rms) < 10
    assert 0.05 < float(out.detach().std()) < 5
    direction = torch.randn(out.shape, generator=rng(1))
    first, last = torch.autograd.grad((out * direction).sum(), [encoder.stem.mix, encoder.head.weight])
    assert 0.02 < float(first.norm() / last.norm()) < 5


@torch.no_grad()
def test_different_images_start_with_different_embeddings_at_depth_56() -> None:
    x = torch.rand(16, 3, 16, 16, generator=rng()) * torch.rand(16, 3, 1, 1, generator=rng(1))
    for norm in NORMS:
        g = F.normalize(built(56, (3, 16, 16), norm)(x), dim=1)
        assert float((g @ g.T).min()) < 0.99, norm


@torch.no_grad()
def test_without_norms_a_branch_starts_at_nothing() -> None:
    encoder = built(20, norm="none")
    x = torch.rand(2, 16, 8, 8, generator=rng())
    assert encoder.blocks[0](x).equal(x)  # ReLU(x + 0), and x is positive


# --- standardised filters -------------------------------------------------------------------------------------------


@torch.no_grad()
def test_standardised_filters_have_mean_zero_and_their_gain_as_norm() -> None:
    conv = StandardizedConv(4, 6, stride=1)
    conv.weight.copy_(3 + 2 * torch.randn(6, 4, 3, 3, generator=rng()))
    conv.gain.copy_(torch.arange(1.0, 7.0).view(6, 1, 1, 1))
    conv.bias.zero_()
    # The filters that are in use: the responses to images of one bright pixel, a number at a time.
    for o in range(6):
        numbers = []
        for c, i, j in patches_of(4):
            x = torch.zeros(1, 4, 3, 3)
            x[0, c, i, j] = 1
            numbers.append(float(conv(x)[0, o, 1, 1]))  # at the centre the whole filter is seen
        assert sum(numbers) == pytest.approx(0, abs=1e-4)
        assert math.sqrt(sum(number**2 for number in numbers)) == pytest.approx(o + 1, rel=1e-4)
        weight = conv.weight[o].flatten()
        assert np.corrcoef(numbers, weight)[0, 1] == pytest.approx(1, abs=1e-5)


@torch.no_grad()
def test_a_filters_scale_and_mean_have_no_effect() -> None:
    conv, x = StandardizedConv(3, 4, stride=2), torch.rand(2, 3, 8, 8, generator=rng())
    before = conv(x)
    conv.weight.mul_(5).add_(1)
    torch.testing.assert_close(conv(x), before, atol=1e-3, rtol=1e-3)


@torch.no_grad()
def test_a_filter_of_equal_weights_does_not_divide_by_zero() -> None:
    conv = StandardizedConv(3, 4, stride=1)
    conv.weight.fill_(0.5)
    assert conv(torch.rand(1, 3, 8, 8)).isfinite().all()


# --- the stem -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 3])
def test_whitening_makes_the_model_of_images_white_up_to_the_floor(channels: int) -> None:
    sigma, filters = model_covariance(channels), whitening(channels).double().numpy()
    white = filters @ sigma @ filters.T
    values = np.linalg.eigvalsh(sigma)
    # e/(e + 0.01) in each direction: 1 where the variance is well above the floor, less where there is next to none.
    np.testing.assert_allclose(np.linalg.eigvalsh(white), np.sort(values / (values + 0.01)), atol=1e-5)
    assert np.linalg.eigvalsh(white)[-1] == pytest.approx(1, abs=2e-3)


@pytest.mark.parametrize("channels", [1, 3])
def test_without_a_floor_whitening_is_exact(channels: int) -> None:
    filters = whitening(channels, floor=0.0).double().numpy()
    np.testing.assert_allclose(filters @ model_covariance(channels) @ filters.T, np.eye(9 * channels), atol=1e-4)


def test_whitening_is_the_same_with_other_eigenvectors() -> None:
    # Some eigenvalues are equal, so each library has its own eigenvectors; a saved model must not depend on whose.
    sigma = model_covariance(3)
    order = np.random.default_rng(0).permutation(27)  # NumPy's of the permuted matrix: others again
    values, vectors = np.linalg.eigh(sigma[np.ix_(order, order)])
    other = np.empty_like(sigma)
    other[np.ix_(order, order)] = (vectors / np.sqrt(values + 0.01)) @ vectors.T
    np.testing.assert_allclose(whitening(3).numpy(), other, atol=1e-4)


@pytest.mark.parametrize("norm", ["weight", "none"])
@pytest.mark.parametrize("channels", [1, 3])
@torch.no_grad()
def test_the_stem_is_a_plain_convolution_with_its_effective_filters(channels: int, norm: NormName) -> None:
    torch.manual_seed(0)
    stem, x = Stem(channels, 4, norm), torch.randn(2, channels, 5, 6)
    assert stem.bias is not None
    stem.bias.normal_()
    mix, white = stem.mix.numpy(), whitening(channels).numpy()
    padded = np.pad(x.numpy(), ((0, 0), (0, 0), (1, 1), (1, 1)))
    out = stem(x)
    for b, o, row, column in itertools.product(range(2), range(4), range(5), range(6)):
        patch = np.array([padded[b, c, row + i, column + j] for c, i, j in patches_of(channels)])
        expected = max(0.0, float(mix[o] @ (white @ patch) + stem.bias[o]))
        assert float(out[b, o, row, column]) == pytest.approx(expected, abs=1e-4)


def test_whitening_is_no_parameter_and_is_not_saved() -> None:
    encoder = built()
    assert isinstance(encoder, ResNet)
    assert "stem.whitening" not in {**dict(encoder.named_parameters()), **encoder.state_dict()}
