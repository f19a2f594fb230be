"""Clients that keep their rows: around any runner, what each does with its own row before and after its local steps."""

from collections.abc import Iterator
from dataclasses import replace

from fedaws.config import TrainConfig
from fedaws.core.method import SumSpread
from fedaws.core.sums import settle
from fedaws.types import Broadcast, RunClients, Update


def at_home(run_clients: RunClients, cfg: TrainConfig, spread: SumSpread) -> RunClients:
    """The same clients; each settles its row by the means that all are sent, and tells of the trained one in a sum."""

    def run(sent: Broadcast) -> Iterator[Update]:
        assert sent.means is not None
        rows = settle(spread, sent.W, sent.means, cfg, sent.round_num)
        for update in run_clients(replace(sent, W=rows)):
            yield replace(update, sums=spread.tell(update.W))

    return run
