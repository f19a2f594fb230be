"""Encoders x → g(x). The unit length is made outside (core.local.embed), so any nn.Module will do."""

from fedaws.models.build import (
    build_encoder,
    evaluating,
    example_shape_fits,
    mixes_examples,
    set_weights,
    trainable,
)

__all__ = ["build_encoder", "evaluating", "example_shape_fits", "mixes_examples", "set_weights", "trainable"]
