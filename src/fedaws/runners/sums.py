"""What every client can tell of its examples once: how many they are, the sum of their embeddings, and of all clients
together the second moment.
"""

import torch
from torch import Tensor, nn

from fedaws.core.local import embed
from fedaws.data.federated import FederatedData, as_input
from fedaws.machine.blocks import EXAMPLES
from fedaws.types import AskSums, Params, Sums


def ask_sums(encoder: nn.Module, data: FederatedData) -> AskSums:
    """Asks the simulated clients; their unit embeddings are added up in blocks of examples."""

    @torch.no_grad()
    def ask(theta: Params, gram: bool) -> Sums:
        parts = zip(data.x.split(EXAMPLES), data.y.split(EXAMPLES), strict=True)
        sums: Tensor | None = None
        square: Tensor | None = None
        for x, y in parts:
            z = embed(encoder, theta, as_input(x))
            if sums is None:
                sums, square = z.new_zeros(data.num_classes, z.shape[1]), z.new_zeros(z.shape[1], z.shape[1])
            sums.index_add_(0, y, z)
            if gram and square is not None:
                square = square.addmm_(z.T, z)
        assert sums is not None
        return Sums(torch.bincount(data.y, minlength=data.num_classes), sums, square if gram else None)

    return ask
