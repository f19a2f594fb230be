r"""The encoder of sound: log-mel spectrum, convolutions over time, mean and deviation over time.

The spectrum is matrix products with constants, so that it goes into an exported model and a device needs no code for
it. Nothing looks at other examples: a client's batch is of one person.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedaws.errors import FedawsError
from fedaws.models.mlp import mlp

BANDS = 40
_WINDOW, _HOP = 0.025, 0.010  # seconds
_LOWEST, _HIGHEST = 60.0, 0.4875  # Hz, and of the rate: 3,900 Hz of 8,000 samples per second
_EMPHASIS = 0.97
_FLOOR = math.exp(-16)  # of a band's power
_RANGE = 20.0  # what is between there and the loudest, as a logarithm
_GROUPS = 8
_DEVIATION = 0.15  # of a spectrum of speech: public, no client's
_STILL = 1e-5


class LogMel(nn.Module):
    r"""Waveforms [B, n] from −1 to 1 → the logarithm of the power in 40 bands, about 0 to 1, [B, 40, frames].

    .. math:: \tfrac1{20}\bigl(16 + \log(|F x'|^2 M + e^{-16})\bigr)

    for every 10 ms, with x′ the 25 ms from there on, F a Hann window with pre-emphasis and Fourier transform, M
    triangles that are evenly spaced on the mel scale.
    """

    def __init__(self, rate: int) -> None:
        super().__init__()
        self.window, self.hop = round(_WINDOW * rate), round(_HOP * rate)
        fourier, bands = fourier_matrix(self.window), mel_matrix(rate, _bins(self.window))
        self.fourier: Tensor
        self.bands: Tensor
        self.register_buffer("fourier", fourier.float(), persistent=False)
        self.register_buffer("bands", bands.float(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        frames = x.unfold(-1, self.window + 1, self.hop)  # one more before each: pre-emphasis looks back
        real, imaginary = (frames @ self.fourier).chunk(2, -1)
        power = (real.square() + imaginary.square()) @ self.bands
        return ((power + _FLOOR).log() + 16).div(_RANGE).transpose(-1, -2)


def _bins(window: int) -> int:
    """Of the transform of the next power of two."""
    return (1 << (window - 1).bit_length()) // 2 + 1


def fourier_matrix(window: int) -> Tensor:
    """Pre-emphasis, Hann window and the discrete Fourier transform's real and imaginary part, [window + 1, 2 bins]."""
    bins, size = _bins(window), 2 * (_bins(window) - 1)
    t = torch.arange(window, dtype=torch.float64)
    hann = torch.sin(math.pi * t / window).square()
    angle = 2 * math.pi / size * torch.outer(t, torch.arange(bins, dtype=torch.float64))
    plain = hann[:, None] * torch.cat([angle.cos(), -angle.sin()], 1)
    none = torch.zeros(1, 2 * bins, dtype=torch.float64)
    return torch.cat([none, plain]) - _EMPHASIS * torch.cat([plain, none])


def mel_matrix(rate: int, bins: int) -> Tensor:
    """How much each bin's power counts in each band, [bins, 40]: triangles from one band's centre to the next."""
    lowest, highest = (2595 * math.log10(1 + f / 700) for f in (_LOWEST, _HIGHEST * rate))
    mels = torch.linspace(lowest, highest, BANDS + 2, dtype=torch.float64)
    edges = 700 * (10 ** (mels / 2595) - 1)
    f = torch.linspace(0, rate / 2, bins, dtype=torch.float64)[:, None]
    rising = (f - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - f) / (edges[2:] - edges[1:-1])
    return torch.minimum(rising, falling).clamp_min(0)


class Conv1d(nn.Module):
    """Waveforms [B, n], or spectra [B, bands, frames] as `LogMel` makes them → embeddings [B, d].

    An example's mean over bands and time is taken away first, so that it does not matter how loud it is. Then come mean
    and deviation over time, of the spectrum and of what convolutions make of it (each of them sees further than the one
    before), and a perceptron on both: on few people the first generalise better, with many the second have their say.
    """

    def __init__(
        self, bands: int, channels: Sequence[int], hidden: Sequence[int], embedding_dim: int, spectrum: nn.Module
    ) -> None:
        super().__init__()
        self.spectrum = spectrum
        widths = [bands, *channels]
        self.layers = nn.Sequential(*(_layer(widths[i], widths[i + 1], i) for i in range(len(channels))))
        pooled = bands + (widths[-1] if channels else 0)
        self.head = mlp(2 * pooled, hidden, embedding_dim)

    def forward(self, x: Tensor) -> Tensor:
        x = self.spectrum(x)
        x = (x - x.mean((1, 2), keepdim=True)) / _DEVIATION
        parts = [statistics(x), statistics(self.layers(x))] if len(self.layers) else [statistics(x)]
        embeddings: Tensor = self.head(torch.cat(parts, 1))
        return embeddings


def _layer(inputs: int, outputs: int, depth: int) -> nn.Sequential:
    conv = nn.Conv1d(inputs, outputs, 3 if depth else 5, dilation=max(1, depth), padding="same", bias=False)
    nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
    return nn.Sequential(conv, nn.GroupNorm(math.gcd(_GROUPS, outputs), outputs), nn.ReLU())


def statistics(x: Tensor) -> Tensor:
    """Mean and deviation over time of [B, c, frames]; [B, 2c].

    >>> statistics(torch.tensor([[[1.0, 3.0]]])).round(decimals=4).tolist()
    [[2.0, 1.0]]
    """
    mean = x.mean(2)
    deviation = ((x - mean[:, :, None]).square().mean(2) + _STILL).sqrt()  # of what stands still the root has no slope
    return torch.cat([mean, deviation], 1)


def conv1d(
    example_shape: Sequence[int], channels: Sequence[int], hidden: Sequence[int], embedding_dim: int, rate: int
) -> Conv1d:
    """The encoder for examples of this shape: waveforms, or spectra that were made before."""
    match tuple(example_shape):
        case (samples,):
            spectrum = LogMel(rate)
            if samples <= spectrum.window:
                raise FedawsError(
                    f"model.name=conv1d needs waveforms of more than {spectrum.window} samples at model.sample_rate="
                    f"{rate}, got examples of shape ({samples},); give longer ones, or set model.name=mlp"
                )
            return Conv1d(BANDS, channels, hidden, embedding_dim, spectrum)
        case (bands, _):
            return Conv1d(bands, channels, hidden, embedding_dim, nn.Identity())
        case shape:
            raise FedawsError(
                "model.name=conv1d needs waveforms [samples] or spectra [bands, frames], got examples of shape "
                f"{shape}; set another model.name"
            )
