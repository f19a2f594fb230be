"""Clients that keep their rows: around any runner, what each does with its own row before and after its local steps."""

from collections.abc import Iterator
from dataclasses import replace

import torch

from fedaws.config import TrainConfig
from fedaws.core.method import SumSpread
from fedaws.core.schedule import schedule
from fedaws.core.sums import changes_told
from fedaws.types import Broadcast, RunClients, Update


def at_home(run_clients: RunClients, cfg: TrainConfig, spread: SumSpread) -> RunClients:
    """The same clients; each takes the step that its row is owed, and tells of the trained one inside a sum."""

    def run(sent: Broadcast) -> Iterator[Update]:
        assert sent.means is not None
        assert sent.heard is not None
        rows = spread.step(sent.W, sent.means, schedule(cfg, sent.round_num - 1))
        for update in run_clients(replace(sent, W=rows)):
            places = torch.searchsorted(sent.cohort, update.cohort)
            told = changes_told(spread, update.W, sent.W[places], sent.heard[places])
            yield replace(update, sums=told)

    return run
