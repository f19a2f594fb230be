"""Which of its examples a client uses in which step: shuffled epochs, from (seed, client, round) alone."""

from typing import NamedTuple

import torch
from torch import Tensor

from fedaws.config import ClientsConfig
from fedaws.data.federated import FederatedData
from fedaws.hashing import hash64, hash_tensor


class Batches(NamedTuple):
    """Example numbers of m clients over E steps, and each example's share of its step's mean (0 for padding)."""

    numbers: Tensor  # [m, E, b] into FederatedData.x
    share: Tensor  # [m, E, b]


class _Cohort(NamedTuple):
    """What is known of each of m clients, [m]."""

    clients: Tensor
    starts: Tensor  # its first example
    counts: Tensor  # its examples
    per_epoch: Tensor  # its batches per epoch


class BatchPlan:
    """Every client's current epoch order, kept until the client needs its next one.

    In step s (counted over rounds) a client with n examples uses batch s mod ⌊n/b⌋ of epoch ⌊s / ⌊n/b⌋⌋, whose order is
    that of hashes of (seed, client, epoch, example). A client with at most b examples uses all of them in every step.
    Nothing here is state of the run: a new plan gives the same batches.
    """

    def __init__(self, data: FederatedData, cfg: ClientsConfig, seed: int) -> None:
        starts, counts = data.starts.cpu(), data.num_examples.cpu()
        self._key = hash64(seed, "batches")
        self._first_client = data.first_client
        self._steps = cfg.local_steps
        most = max(1, int(counts.max()))
        self._batch = most if cfg.examples_per_step == "all" else min(cfg.examples_per_step, most)
        self._within = torch.arange(self._batch)
        self._facts = torch.stack([starts[:-1], counts, (counts // self._batch).clamp_min(1)], dim=1)
        self._order = torch.arange(int(starts[-1]))
        self._epoch = torch.full_like(counts, -1)
        self._ragged = bool(((counts < self._batch) & (counts > 0)).any())

    def draw(self, clients: Tensor, round_num: int) -> Batches:
        """The cohort's batches of a round."""
        clients = clients.cpu()
        cohort = _Cohort(clients, *self._facts.index_select(0, clients).T.contiguous().unbind())
        steps = [self._step(cohort, round_num * self._steps + e) for e in range(self._steps)]
        numbers = torch.stack(steps, dim=1) if self._steps > 1 else steps[0][:, None]
        if not self._ragged:
            return Batches(numbers, torch.tensor(1 / self._batch).expand(numbers.shape))
        count = cohort.counts.clamp_max(self._batch)[:, None, None]
        return Batches(numbers, ((self._within < count) / count).expand(numbers.shape))

    def _step(self, cohort: _Cohort, step: int) -> Tensor:
        epoch = step // cohort.per_epoch
        self._reshuffle(cohort, epoch)
        first = (cohort.starts + step % cohort.per_epoch * self._batch)[:, None]
        within = self._within
        if self._ragged:  # padding repeats the client's last example, with share 0
            within = torch.minimum(within, cohort.counts[:, None] - 1)
        return self._order.take(first + within)

    def _reshuffle(self, cohort: _Cohort, epoch: Tensor) -> None:
        """Give the clients that enter a new epoch its order; those that use all they have need none."""
        stale = (self._epoch.index_select(0, cohort.clients) != epoch) & (cohort.counts > self._batch)
        if not stale.any():
            return
        clients, starts, counts, _ = (part[stale] for part in cohort)
        epoch = epoch[stale]
        self._epoch[clients] = epoch
        segment = torch.arange(len(clients)).repeat_interleave(counts)
        offset = torch.arange(len(segment)) - (counts.cumsum(0) - counts)[segment]
        hashes = hash_tensor(self._key, clients[segment] + self._first_client, epoch[segment], offset)
        order = ((segment << 40) | hashes).argsort()  # within each segment by hash
        start = starts[segment]
        self._order[start + offset] = start + offset[order]
