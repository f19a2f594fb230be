"""From the configuration's `model` table to an encoder."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fedaws.config import ModelConfig
from fedaws.errors import FedawsError
from fedaws.models.bag import Bag
from fedaws.models.batchnorm import batch_norms
from fedaws.models.conv1d import conv1d
from fedaws.models.mlp import mlp
from fedaws.models.resnet import resnet
from fedaws.sparse import Rows, SparseRows
from fedaws.types import Params


def build_encoder(cfg: ModelConfig, example_shape: Sequence[int], seed: int) -> nn.Module:
    """The configured encoder with its random start, a function of the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        match cfg.name:
            case "mlp":
                return mlp(math.prod(example_shape), cfg.hidden, cfg.embedding_dim, cfg.first_bias)
            case "bag":
                return Bag(math.prod(example_shape), cfg.hidden, cfg.embedding_dim, cfg.residual)
            case "conv1d":
                return conv1d(example_shape, cfg.channels, cfg.hidden, cfg.embedding_dim, cfg.sample_rate)
            case "own":
                raise FedawsError(
                    "model.name=own: the encoder was given in Python; give it again: fedaws.train(data, encoder, …)"
                )
            case name:
                return resnet(int(name.removeprefix("resnet")), example_shape, cfg.embedding_dim, cfg.norm)


def trainable(encoder: nn.Module) -> Params:
    """θ: the parameters that are to be trained; frozen ones stay with the module."""
    return {name: p for name, p in encoder.named_parameters() if p.requires_grad}


def model_tensors(encoder: nn.Module) -> Params:
    """What a trained model consists of beside W: θ, and BatchNorm's statistics if it has any."""
    layers = batch_norms(encoder).items()
    return trainable(encoder) | {f"{name}.{key}": b for name, layer in layers for key, b in layer.named_buffers()}


@torch.no_grad()
def set_weights(encoder: nn.Module, theta: Params) -> None:
    """Give the module the trained θ, so that it can be used by itself."""
    for name, tensor in model_tensors(encoder).items():
        tensor.copy_(theta[name])


@contextmanager
def evaluating(encoder: nn.Module) -> Iterator[None]:
    """Inside, the encoder is a function of its input and θ: no dropout, batch statistics as they are.

    Afterwards every part is back in the mode it had, a frozen layer of a training encoder too.
    """
    modes = [(module, module.training) for module in encoder.modules()]
    encoder.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@torch.no_grad()
def mixes_examples(encoder: nn.Module, pair: Rows) -> bool:
    """Whether an example's embedding depends on who else is in the batch, as with BatchNorm's batch statistics."""
    with evaluating(encoder):
        return not torch.allclose(encoder(pair)[:1], encoder(pair[:1]), atol=1e-4, rtol=1e-3)


def example_shape_fits(encoder: nn.Module, example: Rows, embedding_dim: int) -> None:
    """Refuse an encoder whose output is not [B, embedding_dim], or that cannot take the examples at all."""
    try:
        with torch.no_grad(), evaluating(encoder):
            out = encoder(example)
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
        if isinstance(example, SparseRows):
            raise FedawsError("the encoder does not take sparse examples (SparseRows); set model.name=bag") from None
        reason = str(error).splitlines()[0]
        raise FedawsError(f"the encoder does not take examples of shape {tuple(example.shape[1:])}: {reason}") from None
    if not isinstance(out, Tensor) or out.ndim != 2 or out.shape[1] != embedding_dim:
        got = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise FedawsError(
            f"the encoder gives {got}; wanted [examples, {embedding_dim}]: "
            "set model.embedding_dim or change the encoder"
        )
