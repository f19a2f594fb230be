"""One thread per core, each with tools of its own: for layers too small to be shared out among cores."""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from copy import deepcopy
from typing import Generic, TypeVar

import torch
from torch import nn

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)

Tool = TypeVar("Tool")
Part = TypeVar("Part")
Result = TypeVar("Result")

_threads: ContextVar[int | None] = ContextVar("threads", default=None)  # torch's before `shared_out` took all but one


class Workers(Generic[Tool]):
    """As many threads as tools, torch on one core in each; a single tool stays with the caller."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._first, self._own = tools[0], threading.local()
        self._count = len(tools)
        self._pool: ThreadPoolExecutor | None = None
        if self._count > 1:
            threads, ready = torch.get_num_threads(), threading.Barrier(self._count)
            # What a thread is started with it keeps for good: nothing that leads to the pool, or it would never end.
            self._pool = ThreadPoolExecutor(self._count, "fedaws", _start, (self._own, list(tools)))
            list(self._pool.map(lambda _: ready.wait(), range(self._count)))
            torch.set_num_threads(threads)  # what a worker sets is also the default of threads to come

    def __len__(self) -> int:
        return self._count

    def map(self, work: Callable[[Tool, Part], Result], parts: Iterable[Part]) -> Iterator[Result]:
        """The results, in the order of the parts."""
        if self._pool is None:
            return (work(self._first, part) for part in parts)
        return self._pool.map(lambda part: work(self._own.tool, part), parts)


def _start(own: threading.local, tools: list[Tool]) -> None:
    torch.get_num_threads()  # a thread's first question gives it the default, even after it was set otherwise
    torch.set_num_threads(1)
    own.tool = tools.pop()


def own_copies(encoder: nn.Module) -> list[nn.Module]:
    """A copy of the encoder for each core where a core is to work by itself, else the encoder alone.

    (torch's `functional_call` puts other parameters into a module for a while, so threads cannot share one.)
    """
    threads = _threads.get() or torch.get_num_threads()
    return [deepcopy(encoder) for _ in range(threads)] if threads > 1 and core_by_core(encoder) else [encoder]


def core_by_core(encoder: nn.Module) -> bool:
    """Whether each core should work by itself: convolutions on a CPU, whose layers are too small to be shared out."""
    on_cpu = all(p.device.type == "cpu" for p in encoder.parameters())
    return on_cpu and any(isinstance(module, CONVOLUTIONS) for module in encoder.modules())


@contextmanager
def shared_out(encoder: nn.Module) -> Iterator[None]:
    """Inside, such an encoder's cores belong to its workers: torch's own threads would only spin beside them."""
    if not core_by_core(encoder):
        yield
        return
    threads = torch.get_num_threads()
    token = _threads.set(_threads.get() or threads)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        _threads.reset(token)
        torch.set_num_threads(threads)
