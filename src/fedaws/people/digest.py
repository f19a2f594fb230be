"""What tells one model's embeddings from another's."""

import hashlib
import json

import torch
from torch import Tensor

from fedaws.config import SOUNDS
from fedaws.training.run import Run


def sample_rate(run: Run) -> int | None:
    """Samples a second, where a run's examples are waveforms; None where they are not, or nobody knows."""
    model, facts = run.config.model, run.facts
    waveforms = model.name == "conv1d" or run.config.data.name in SOUNDS
    return model.sample_rate if waveforms and len(facts.example_shape) == 1 else None


def model_digest(run: Run) -> str:
    """A SHA-256 of everything that an embedding depends on: all weights, the encoder's form, the kind of example.

    Two runs with the same digest give the same embeddings of the same examples; vectors of two digests must not be
    compared. How examples were made from sound or pictures is not known here and not in it.
    """
    model, facts = run.config.model, run.facts
    form = {
        "encoder": facts.encoder_name if facts.own_encoder else model.name,
        "hidden": model.hidden,
        "channels": model.channels,
        "sample_rate": model.sample_rate,
        "residual": model.residual,
        "norm": model.norm,
        "normalize": run.model.normalize,
        "example": [facts.example_shape, facts.example_dtype],
    }
    total = hashlib.sha256(json.dumps(form, sort_keys=True).encode())
    state = {name: value for name, value in run.encoder.state_dict().items() if isinstance(value, Tensor)}
    for name, tensor in sorted((state | run.theta).items()):
        total.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        total.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()
