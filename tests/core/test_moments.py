"""Centring and whitening: in blocks what they are as a whole, in place, and as often as needed."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from fedaws.config import Config
from fedaws.core import moments
from fedaws.core.algorithm import finish_round
from fedaws.types import ServerState, Update


def cone(rows: int, dim: int, seed: int = 0) -> torch.Tensor:
    """Unit rows that lean to one side and have directions of very different weight."""
    rng = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(rows, dim, generator=rng, dtype=torch.float64) * torch.arange(1, dim + 1) + 1, dim=1)


def effective_rank(W: torch.Tensor) -> float:
    share = torch.linalg.eigvalsh(W.T @ W) / len(W)
    return float(torch.exp(-(share * share.log()).sum()))


class LargestAllocation(TorchDispatchMode):
    """The largest tensor that any operation makes inside."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {id(value) for value in (*args, *(kwargs or {}).values())}
        out = func(*args, **kwargs or {})
        for tensor in out if isinstance(out, tuple | list) else [out]:
            view = isinstance(tensor, torch.Tensor) and (tensor._is_view() or func.is_view)
            if isinstance(tensor, torch.Tensor) and id(tensor) not in given and not view:
                self.numbers = max(self.numbers, tensor.numel())
        return out


@pytest.mark.parametrize("block", [1, 35, 10_000])
def test_blocks_of_any_size_give_the_step_on_the_whole(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moments, "ROWS", block)
    W = cone(53, 7)
    torch.testing.assert_close(moments.moments_(W.clone(), whiten=0), F.normalize(W - W.mean(0), dim=1))
    largest = torch.linalg.matrix_norm(W, 2) ** 2
    torch.testing.assert_close(
        moments.moments_(W.clone(), center=False), F.normalize(W - W @ (W.T @ W) / (3 * largest), dim=1)
    )


@pytest.mark.parametrize(
    "step", [partial(moments.moments_, whiten=0), partial(moments.moments_, center=False), moments.moments_]
)
def test_no_step_makes_a_tensor_of_the_size_of_all_rows(
    step: Callable[[torch.Tensor], torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moments, "ROWS", 200)
    W = cone(1000, 8)
    with LargestAllocation() as seen:  # type: ignore[no-untyped-call]
        assert step(W) is W
    assert 0 < seen.numbers <= 200


def test_a_row_at_the_mean_stays_where_it_is() -> None:
    W = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    assert moments.moments_(W, whiten=0).tolist() == [[1.0, 0.0], [1.0, 0.0]]


def test_auto_waits_until_a_quarter_of_the_rows_may_have_changed() -> None:
    def rounds(**of: Any) -> list[int]:
        return [t for t in range(10) if moments.due("auto", t, **of)]

    assert rounds(num_classes=1000, cohort="all") == list(range(10))
    assert rounds(num_classes=1000, cohort=250) == list(range(10))
    assert rounds(num_classes=1000, cohort=50) == [0, 5]  # five rounds of 50 are a quarter
    assert [t for t in range(10) if moments.due(3, t, 1000, "all")] == [0, 3, 6, 9]


def test_the_other_rows_move_in_the_rounds_that_are_due_and_not_between_them() -> None:
    cfg = Config().override(["spread.regularizer=moments", "spread.every=2"])
    state = ServerState(0, {}, cone(20, 4))
    for round_num in range(4):
        before = state.W.clone()
        update = Update(torch.tensor([0]), {}, before[:1], torch.ones(1), torch.zeros(1))
        state = finish_round(replace(state, round_num=round_num), [update], cfg, torch.Generator())
        assert torch.equal(state.W[1:], before[1:]) == (round_num % 2 == 1)


def test_whitening_gives_directions_that_were_lost_their_weight_back() -> None:
    W = cone(500, 16)
    ranks = [effective_rank(W)]
    for _ in range(30):
        ranks.append(effective_rank(moments.moments_(W, center=False)))
    assert all(later > earlier - 1e-9 for earlier, later in pairwise(ranks))
    assert ranks[0] < 13
    assert ranks[-1] > 15.99
