"""What every client can tell of its examples once the encoder is trained: the mean of their embeddings."""

import torch
from torch import Tensor, nn

from fedaws.core.local import embed
from fedaws.data.federated import FederatedData, as_input
from fedaws.types import Params

_BLOCK = 4_096


@torch.no_grad()
def embedding_sums(encoder: nn.Module, theta: Params, data: FederatedData) -> Tensor:
    """Σ n_i μ_i over the clients i of each class, [C, d]: their unit embeddings added up, in blocks of examples."""
    blocks = zip(data.x.split(_BLOCK), data.y.split(_BLOCK), strict=True)
    parts = ((embed(encoder, theta, as_input(x)), y) for x, y in blocks)
    embeddings, y = next(parts)
    total = embeddings.new_zeros(data.num_classes, embeddings.shape[1]).index_add_(0, y, embeddings)
    for embeddings, y in parts:
        total.index_add_(0, y, embeddings)
    return total
