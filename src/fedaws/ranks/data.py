"""Which examples a rank has: those of the clients whose class's row it has. Of others it knows how many they are."""

from dataclasses import dataclass, field, fields

from torch import Tensor

from fedaws.data.federated import FederatedData
from fedaws.ranks.group import Ranks
from fedaws.sparse import starts_of


@dataclass(frozen=True, repr=False)
class SharedData(FederatedData):
    """All clients and classes; x, y and starts are of this rank's examples alone. Every rank has the test set."""

    counts: Tensor = field(kw_only=True)  # [clients] the examples of each, wherever they are

    @property
    def num_examples(self) -> Tensor:
        """n_i of each client."""
        return self.counts

    @property
    def own(self) -> FederatedData:
        """The federation as if the other ranks' clients had no examples."""
        return FederatedData(**{part.name: getattr(self, part.name) for part in fields(FederatedData)})


def own_examples(data: FederatedData, ranks: Ranks) -> SharedData:
    """Keep of everybody's examples those of this rank's clients, copied, so that the rest can be freed."""
    counts, mine = data.num_examples, ranks_of(data.class_of, ranks.world) == ranks.rank
    kept = mine.repeat_interleave(counts).nonzero()[:, 0]
    parts = {part.name: getattr(data, part.name) for part in fields(FederatedData)}
    own = {"x": data.x.index_select(0, kept), "y": data.y[kept], "starts": starts_of(counts * mine)}
    return SharedData(**parts | own, counts=counts)


def ranks_of(class_of: Tensor, world: int) -> Tensor:
    """Who runs each client: the rank that has the row of its class, or of the first of its classes.

    >>> import torch
    >>> ranks_of(torch.tensor([0, 1, 2, 3, 4]), 2).tolist(), ranks_of(torch.tensor([[3, 4], [4, 0]]), 3).tolist()
    ([0, 1, 0, 1, 0], [0, 1])
    """
    return (class_of if class_of.ndim == 1 else class_of[:, 0]) % world
