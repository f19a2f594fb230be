"""A multi-layer perceptron on flattened inputs."""

from collections.abc import Sequence

from torch import nn


def mlp(features: int, hidden: Sequence[int], embedding_dim: int, first_bias: bool = True) -> nn.Sequential:
    """ReLU layers features → hidden… → embedding_dim, He initialisation and zero biases.

    PyTorch's default biases push all embeddings into one cone, from which training starts badly. Without the first
    bias no ratio of changes shows an example (docs/audit.md).
    """
    widths = [features, *hidden, embedding_dim]
    layers: list[nn.Module] = [nn.Flatten()]
    for i in range(len(widths) - 1):
        linear = nn.Linear(widths[i], widths[i + 1], bias=first_bias or i > 0)
        nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
        if linear.bias is not None:
            nn.init.zeros_(linear.bias)
        layers += [linear, nn.ReLU()] if i < len(widths) - 2 else [linear]
    return nn.Sequential(*layers)
