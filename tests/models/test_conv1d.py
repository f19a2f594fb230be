"""The encoder of sound: its spectrum against NumPy's Fourier transform, and what it must not depend on."""

import math

import numpy as np
import pytest
import torch

import fedaws
from fedaws.config import Config, ModelConfig
from fedaws.data.sources.made_voices import voice
from fedaws.models import build_encoder, mixes_examples, trainable
from fedaws.models.conv1d import BANDS, LogMel, mel_matrix
from helpers import refusal


def waves(people: int, each: int, first: int = 0) -> tuple[np.ndarray, np.ndarray]:
    x = np.stack([voice(p, u) for p in range(people) for u in range(first, first + each)])
    return x, np.repeat(np.arange(people), each)


def encoder(shape: tuple[int, ...] = (8000,), **options: object) -> torch.nn.Module:
    chosen = {
        "name": "conv1d",
        "channels": (16, 16),
        "hidden": (32,),
        "embedding_dim": 8,
        "sample_rate": 8000,
        **options,
    }
    return build_encoder(ModelConfig.model_validate(chosen), shape, 0)


@pytest.mark.parametrize("rate", [8000, 16_000])
def test_the_spectrum_is_that_of_a_plain_loop_with_numpys_transform(rate: int) -> None:
    x = voice(1, 0, rate, 0.2).astype(np.float64)
    window, hop = rate // 40, rate // 100
    size = 256 if rate == 8000 else 512
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window) / window)
    bands = mel_matrix(rate, size // 2 + 1).numpy()
    louder = x[1:] - 0.97 * x[:-1]
    wanted = []
    for start in range(0, len(louder) - window + 1, hop):
        power = np.abs(np.fft.rfft(hann * louder[start : start + window], size)) ** 2
        wanted.append((np.log(power @ bands + math.exp(-16)) + 16) / 20)
    got = LogMel(rate)(torch.from_numpy(x[None].astype(np.float32)))[0].T.numpy()
    np.testing.assert_allclose(got, np.array(wanted), atol=2e-5)


def test_bands_are_triangles_that_overlap_to_one_between_the_outer_centres() -> None:
    bands = mel_matrix(8000, 4001)  # a bin a Hz
    assert bands.shape == (4001, BANDS)
    lowest, highest = (2595 * math.log10(1 + f / 700) for f in (60, 3900))
    mel = np.linspace(lowest, highest, BANDS + 2)
    centres = 700 * (10 ** (mel / 2595) - 1)
    torch.testing.assert_close(bands.argmax(0).double(), torch.tensor(centres[1:-1]), atol=0.6, rtol=0)
    between = bands[math.ceil(centres[1]) : int(centres[-2])].sum(1)
    torch.testing.assert_close(between, torch.ones_like(between))
    assert float(bands[:60].sum() + bands[3901:].sum()) == 0


def test_loudness_does_not_matter() -> None:
    x = torch.from_numpy(waves(2, 2)[0])
    net = encoder()
    # At a tenth the floor begins to show.
    torch.testing.assert_close(net(x), net(0.1 * x), atol=0.02, rtol=0.02)
    torch.testing.assert_close(net(x), net(0.9 * x), atol=1e-3, rtol=1e-3)


def test_an_embedding_does_not_depend_on_who_else_is_in_the_batch() -> None:
    assert not mixes_examples(encoder(), torch.from_numpy(waves(2, 1)[0]))


def test_spectra_that_were_made_before_are_taken_as_they_are() -> None:
    x = torch.from_numpy(waves(1, 2)[0])
    spectra = LogMel(8000)(x)
    of_spectra = encoder(tuple(spectra.shape[1:]))
    torch.testing.assert_close(encoder()(x), of_spectra(spectra))


def test_without_convolutions_order_in_time_does_not_matter() -> None:
    spectra = torch.rand(3, 40, 20)
    net = encoder((40, 20), channels=())
    torch.testing.assert_close(net(spectra), net(spectra[:, :, torch.randperm(20)]))
    with_some = encoder((40, 20))
    assert not torch.allclose(with_some(spectra), with_some(spectra.flip(2)), atol=1e-3)


def test_constants_are_not_trained() -> None:
    assert set(trainable(encoder())) == set(trainable(encoder((40, 98))))


@pytest.mark.parametrize("shape", [(3, 8, 8), (100,), ()])
def test_examples_that_are_no_sound_are_refused(shape: tuple[int, ...]) -> None:
    assert "model.name=conv1d needs waveforms" in refusal(lambda: encoder(shape))


def test_voices_are_told_apart_after_a_few_rounds() -> None:
    data = fedaws.from_arrays(*waves(6, 6), *waves(6, 4, first=6))
    settings = ["model.name=conv1d", "model.channels=[16, 16]", "model.embedding_dim=16", "model.sample_rate=8000"]
    trained = ["train.rounds=40", "clients.examples_per_step=4", "clients.lr=1.0", "server.optimizer=muon"]
    config = Config().override([*settings, *trained, "server.lr=0.02", "clients.class_lr=0.1"])
    run = fedaws.train(data, config=config)
    assert run.metrics[-1]["precision@1"] > 0.5  # chance is 1/6
