"""Joining the other ranks, and leaving them: an error of any rank ends all, and is told once."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from fedaws.errors import FedawsError
from fedaws.machine.started import started_ranks
from fedaws.ranks.group import Ranks, current_ranks

_LOST = ("Connection closed", "Connection reset", "Broken pipe", "gloo", "Timed out")


@contextmanager
def joined(agreed: tuple[type[Exception], ...] = ()) -> Iterator[Ranks | None]:
    """Inside, this process is one of the ranks that torchrun has started; None without it.

    Whoever fails first says why; the others, who then find the connection closed, end without a word. `agreed` are ends
    that all ranks come to together.
    """
    if started_ranks() == 1:
        yield None
        return
    store = _join()
    try:
        yield current_ranks()
    except agreed:
        raise
    except Exception as error:
        lost = isinstance(error, RuntimeError) and any(word in str(error) for word in _LOST)
        spoken = lost
        with suppress(Exception):  # the store may be gone with another that failed: better told twice than never
            spoken = store.add(f"failed/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", 1) > 1
        if spoken:
            raise SystemExit(2) from None
        if lost:
            raise FedawsError(
                "a rank has ended without a word (killed, or out of memory); go on from the last checkpoint with "
                "--resume, with as many ranks as you like"
            ) from None
        raise
    dist.destroy_process_group()


def _join() -> Store:
    try:
        store, rank, world = next(rendezvous("env://", timeout=timedelta(minutes=5)))
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    except (ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise FedawsError(f"cannot join the other ranks: {reason}; start all of them by one torchrun") from None
    return PrefixStore("fedaws", store)
