"""Threads with tools of their own: order, errors, and what they leave behind."""

import gc
import threading
import time
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from fedaws.machine.threads import Workers, own_copies


@pytest.fixture(autouse=True)
def _three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def threads() -> int:
    """How many of ours there are."""
    return sum(thread.name.startswith("fedaws") for thread in threading.enumerate())


def ended() -> bool:
    """Whether all of ours are gone, now or within seconds: a thread needs its turn to end."""
    limit = time.monotonic() + 5
    while threads() and time.monotonic() < limit:
        time.sleep(0.005)
    return threads() == 0


@pytest.mark.parametrize("count", [1, 3])
def test_results_come_in_the_order_of_the_parts(count: int) -> None:
    def work(_tool: int, part: int) -> int:
        time.sleep(0.02 if part == 0 else 0.0)  # the first is the last to be ready
        return part * part

    assert list(Workers(range(count)).map(work, range(20))) == [part * part for part in range(20)]


def test_there_are_as_many_workers_as_tools() -> None:
    assert [len(Workers(range(count))) for count in (1, 2, 3)] == [1, 2, 3]


def test_each_thread_has_a_tool_of_its_own() -> None:
    meeting = threading.Barrier(3)

    def work(tool: str, _part: int) -> tuple[str, int]:
        meeting.wait(5)  # all three at once, or it fails
        return tool, threading.get_ident()

    workers = Workers(["a", "b", "c"])
    first, second = list(workers.map(work, range(3))), list(workers.map(work, range(3)))
    assert {tool for tool, _ in first} == {"a", "b", "c"}
    assert len({thread for _, thread in first}) == 3
    assert sorted(second) == sorted(first)  # and keeps it


def test_a_single_tool_stays_with_the_caller() -> None:
    work = Workers(["a"]).map(lambda tool, part: (tool, part, threading.get_ident()), [1])
    assert list(work) == [("a", 1, threading.get_ident())]


@pytest.mark.parametrize("count", [1, 3])
def test_an_error_in_a_worker_reaches_the_caller(count: int) -> None:
    def work(_tool: int, part: int) -> int:
        if part == 2:
            raise KeyError("the third")
        return part

    workers, got = Workers(range(count)), list[int]()
    with pytest.raises(KeyError, match="the third"):
        got.extend(workers.map(work, range(6)))
    assert got == [0, 1]
    assert list(workers.map(work, [0, 1])) == [0, 1]  # and they work on


def test_torch_has_one_thread_in_each_worker() -> None:
    def work(_tool: int, _part: int) -> tuple[int, int]:
        before = torch.get_num_threads()
        torch.ones(300, 300) @ torch.ones(300, 300)
        return before, torch.get_num_threads()

    workers = Workers(range(3))
    assert set(workers.map(work, range(12))) == {(1, 1)}


def test_the_callers_threads_and_those_of_new_threads_are_as_before() -> None:
    workers = Workers(range(2))
    assert torch.get_num_threads() == 3
    list(workers.map(lambda _tool, _part: torch.ones(9).sum(), range(4)))
    assert torch.get_num_threads() == 3
    of_another: list[int] = []
    another = threading.Thread(target=lambda: of_another.append(torch.get_num_threads()))
    another.start()
    another.join()
    assert of_another == [3]


def test_no_thread_outlives_the_workers() -> None:
    assert ended()
    gc.disable()  # not even a cycle may hold them
    try:
        workers = Workers(range(3))
        assert list(workers.map(lambda _tool, part: part, range(5))) == [0, 1, 2, 3, 4]
        assert threads() == 3
        del workers
        assert ended()
    finally:
        gc.enable()


def test_tools_are_freed_with_the_workers() -> None:
    class Tool:
        pass

    alive: list[int] = [2]

    def free() -> None:
        alive[0] -= 1

    import weakref

    tools = [Tool(), Tool()]
    for tool in tools:
        weakref.finalize(tool, free)
    workers = Workers(tools)
    del tools, tool, workers
    assert ended()
    gc.collect()
    assert alive == [0]


def test_results_may_be_fetched_after_the_workers_were_let_go() -> None:
    results = Workers(range(2)).map(lambda _tool, part: part + 1, range(50))
    assert list(results) == list(range(1, 51))
    assert ended()


# --- copies ---------------------------------------------------------------------------------------------------------


def test_convolutions_are_copied_once_for_each_thread() -> None:
    encoder = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4, 2))
    copies = own_copies(encoder)
    assert len(copies) == 3
    memory = {p.data_ptr() for module in [encoder, *copies] for p in module.parameters()}
    assert len(memory) == 4 * 4  # none is shared
    for copy in copies:
        assert all(a.equal(b) for a, b in zip(copy.parameters(), encoder.parameters(), strict=True))


def test_other_layers_are_shared_out_by_torch_itself() -> None:
    encoder = nn.Linear(3, 2)
    assert own_copies(encoder) == [encoder]


def test_a_copy_is_in_the_mode_of_its_original() -> None:
    encoder = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Dropout()).eval()
    assert not any(module.training for copy in own_copies(encoder) for module in copy.modules())
