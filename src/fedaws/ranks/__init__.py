"""One run on several processes, by torchrun and torch.distributed: `docs/ranks.md`."""

from fedaws.ranks.checks import check_ranks
from fedaws.ranks.data import own_examples
from fedaws.ranks.group import Ranks, current_ranks
from fedaws.ranks.together import Together

__all__ = ["Ranks", "Together", "check_ranks", "current_ranks", "own_examples"]
