"""From the configuration's `model` table to an encoder."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedaws.config import ModelConfig
from fedaws.errors import FedawsError
from fedaws.models.mlp import mlp


def build_encoder(cfg: ModelConfig, example_shape: Sequence[int], seed: int) -> nn.Module:
    """The configured encoder with its random start, a function of the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        match cfg.name:
            case "mlp":
                return mlp(math.prod(example_shape), cfg.hidden, cfg.embedding_dim)


def example_shape_fits(encoder: nn.Module, example: Tensor, embedding_dim: int) -> None:
    """Refuse an encoder whose output is not [B, embedding_dim], or that cannot take the examples at all."""
    training = encoder.training
    encoder.eval()
    try:
        with torch.no_grad():
            out = encoder(example)
    except (RuntimeError, ValueError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise FedawsError(f"the encoder does not take examples of shape {tuple(example.shape[1:])}: {reason}") from None
    finally:
        encoder.train(training)
    if not isinstance(out, Tensor) or out.ndim != 2 or out.shape[1] != embedding_dim:
        got = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise FedawsError(
            f"the encoder gives {got}; wanted [examples, {embedding_dim}]: "
            "set model.embedding_dim or change the encoder"
        )
