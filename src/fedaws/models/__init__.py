"""Encoders x → g(x). The unit length is made outside (core.local.embed), so any nn.Module will do."""

from fedaws.models.bag import table_names
from fedaws.models.batchnorm import batch_norms, by_batch_statistics, measured_statistics
from fedaws.models.build import (
    build_encoder,
    evaluating,
    example_shape_fits,
    mixes_examples,
    model_tensors,
    set_weights,
    trainable,
)

__all__ = [
    "batch_norms",
    "build_encoder",
    "by_batch_statistics",
    "evaluating",
    "example_shape_fits",
    "measured_statistics",
    "mixes_examples",
    "model_tensors",
    "set_weights",
    "table_names",
    "trainable",
]
