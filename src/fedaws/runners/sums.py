"""What every client can tell of its examples once: how many they are, the sum of their embeddings, and of all clients
together the second moment.
"""

import torch
from torch import nn

from fedaws.core.local import embed
from fedaws.data.federated import FederatedData, as_input
from fedaws.machine.blocks import EXAMPLES
from fedaws.types import AskSums, Params, Sums


def ask_sums(encoder: nn.Module, data: FederatedData) -> AskSums:
    """Asks the simulated clients; their unit embeddings are added up in blocks of examples."""

    @torch.no_grad()
    def ask(theta: Params, gram: bool) -> Sums:
        sums: Sums | None = None
        for x, y in zip(data.x.split(EXAMPLES), data.y.split(EXAMPLES), strict=True):
            z = embed(encoder, theta, as_input(x))
            if sums is None:
                counts, dim = torch.bincount(data.y, minlength=data.num_classes), z.shape[1]
                sums = Sums(counts, z.new_zeros(len(counts), dim), z.new_zeros(dim, dim) if gram else None)
            sums.sums.index_add_(0, y, z)
            if sums.gram is not None:
                sums.gram.addmm_(z.T, z)
        assert sums is not None
        return sums

    return ask
