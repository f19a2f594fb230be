"""Your own data and your own network: speakers, told apart by a convolution over their voices.

    python examples/own_dataset_and_encoder.py [--speakers 20] [--rounds 300]

Each client is one speaker's phone. It has a few noisy recordings of its owner, and trains the shared encoder and its
own class embedding with them. The voices are made up (a pitch and the strengths of its overtones); put your own in
`Recordings`, and your network in `encoder`.
"""

import argparse
import math
import tempfile

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import fedaws

SAMPLES, RATE, OVERTONES, DIM = 400, 4000.0, 6, 32


class Recordings(Dataset[tuple[Tensor, int]]):
    """(waveform [1, samples], speaker) pairs: all that `fedaws.from_dataset` asks for."""

    def __init__(self, speakers: int, clips: int, seed: int) -> None:
        people = torch.Generator().manual_seed(0)  # the same people in training and test
        self.pitch = 90 + 160 * torch.rand(speakers, generator=people)
        self.strength = torch.rand(speakers, OVERTONES, generator=people)
        self.clips, self.seed = clips, seed

    def __len__(self) -> int:
        return len(self.pitch) * self.clips

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        speaker = i % len(self.pitch)
        rng = torch.Generator().manual_seed(1_000_003 * self.seed + i)
        pitch = self.pitch[speaker] * (1 + 0.02 * torch.randn(1, generator=rng))
        phase = 2 * math.pi * torch.rand(OVERTONES, 1, generator=rng)
        number = torch.arange(1, OVERTONES + 1)[:, None]
        waves = torch.sin(2 * math.pi * number * pitch * torch.arange(SAMPLES) / RATE + phase)
        noise = 0.8 * torch.randn(SAMPLES, generator=rng)
        return (self.strength[speaker] @ waves + noise)[None], speaker


class Loudness(nn.Module):
    """How much of each feature there is over time, whatever the phase: [B, C, T] → [B, C]."""

    def forward(self, x: Tensor) -> Tensor:
        return (x.square().mean(-1) + 1e-4).log()


def encoder() -> nn.Module:
    """Any module from [B, …] to [B, DIM]; no BatchNorm, since a client's batch has one class."""
    layers = nn.Sequential(
        nn.Conv1d(1, 64, kernel_size=64, stride=8),
        Loudness(),
        nn.LayerNorm(64),
        nn.Linear(64, 128),
        nn.ReLU(),
        nn.Linear(128, DIM),
    )
    for layer in layers:
        if isinstance(layer, nn.Linear):  # start wide: embeddings in one cone do not train
            nn.init.kaiming_normal_(layer.weight)
            nn.init.zeros_(layer.bias)
    return layers


def main() -> None:
    """Train, forget everything, load, identify."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--speakers", type=int, default=20)
    arguments.add_argument("--rounds", type=int, default=300)
    given = arguments.parse_args()
    torch.manual_seed(0)
    data = fedaws.from_dataset(Recordings(given.speakers, 20, seed=1), Recordings(given.speakers, 5, seed=2))
    settings = [f"model.embedding_dim={DIM}", f"train.rounds={given.rounds}", "server.momentum=0.9"]
    with tempfile.TemporaryDirectory() as folder:
        fedaws.train(data, encoder(), fedaws.Config().override(settings), folder=folder)
        run = fedaws.load(folder, encoder())  # the folder has the weights; the module is yours to give
    last = run.metrics[-1]
    print(f"{given.speakers} speakers: {last['precision@1']:.1%} of the test clips right after {given.rounds} rounds")
    found = run.identify(data.x_test[:3], k=2)
    for speaker, classes, scores in zip(
        data.y_test.tolist(), found.classes.tolist(), found.scores.tolist(), strict=False
    ):
        guesses = ", ".join(f"{c} ({s:.2f})" for c, s in zip(classes, scores, strict=True))
        print(f"speaker {speaker}: {guesses}")


if __name__ == "__main__":
    main()
