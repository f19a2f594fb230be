"""What the clients of all ranks tell once of their embeddings. A client is where its class's row is, so each rank adds
up for its own rows and nothing travels.
"""

import torch

from fedaws.machine.blocks import EXAMPLES
from fedaws.ranks.data import SharedData
from fedaws.ranks.model import SharedModel
from fedaws.ranks.rows import SharedRows
from fedaws.types import AskSums, Params, Sums


def ask_shared_sums(model: SharedModel, data: SharedData) -> AskSums:
    """Asks the clients of this rank, while the others ask theirs; `model` says how examples become embeddings."""
    ranks = model.ranks

    @torch.no_grad()
    def ask(theta: Params, gram: bool) -> Sums:
        assert not gram, "no last step by second moments has rows that are shared out"
        sums = torch.zeros(len(range(ranks.rank, data.num_classes, ranks.world)), model.W.shape[1])
        most = int(ranks.max_(torch.tensor([len(data.x)])))
        for number, z in enumerate(model.blocks(theta, data.x, most)):
            sums.index_add_(0, data.y[number * EXAMPLES :][: len(z)] // ranks.world, z)
        counts = torch.zeros(data.num_classes, dtype=torch.int64).index_add_(0, data.class_of, data.counts)
        return Sums(counts, SharedRows(sums, data.num_classes, ranks))

    return ask
