"""Neighbours that are remembered from round to round."""

import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from fedaws.config import Config
from fedaws.core.algorithm import finish_round
from fedaws.core.mining import nearest, nearest_known_
from fedaws.core.spreadout import NEIGHBORS
from fedaws.types import Params, ServerState, Update


def unit(rows: int, dim: int, seed: int = 0) -> torch.Tensor:
    return F.normalize(
        torch.randn(rows, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64), dim=1
    )


def nothing_known(classes: int, k: int) -> torch.Tensor:
    return torch.full((classes, k), -1, dtype=torch.int32)


def drawn(classes: int, count: int, seed: int) -> torch.Tensor:
    return torch.randperm(classes, generator=torch.Generator().manual_seed(seed))[:count].sort().values


def recall(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found[:, :, None] == exact[:, None]).any(2).double().mean())


@given(st.integers(0, 10_000), st.integers(1, 4))
def test_a_search_is_a_plain_loop_over_the_drawn_the_own_and_their_neighbours(seed: int, k: int) -> None:
    W, known = unit(30, 3, seed), nothing_known(30, k)
    for earlier in range(3):  # some classes know somebody, some do not
        nearest_known_(W, drawn(30, 9, seed + earlier), drawn(30, 8, seed + 10 + earlier), known)
    cohort, candidates, before = drawn(30, 9, seed + 20), drawn(30, 6, seed + 21), known.clone()
    found = nearest_known_(W, cohort, candidates, known)
    for c, row in zip(cohort.tolist(), found.tolist(), strict=True):
        own = [y for y in before[c].tolist() if y >= 0]
        among = {*candidates.tolist(), *own, *(z for y in own[:3] for z in before[y].tolist() if z >= 0)}
        distances = {y: float((W[c] - W[y]).norm()) for y in among - {c}}
        assert row == sorted(distances, key=distances.__getitem__)[:k]
    others = torch.ones(30, dtype=torch.bool).index_fill(0, cohort, False)
    assert known[cohort].tolist() == found.tolist()
    assert known[others].equal(before[others])


def test_with_nothing_known_a_search_is_mining_among_the_candidates() -> None:
    W, cohort, candidates = unit(50, 4), drawn(50, 20, 0), drawn(50, 12, 1)
    found = nearest_known_(W, cohort, candidates, nothing_known(50, 3))
    assert found.equal(nearest(W, cohort, candidates, 3))


def test_over_the_rounds_the_lists_come_near_those_over_all_classes() -> None:
    W, known, everyone = unit(1000, 4), nothing_known(1000, 10), torch.arange(1000)
    exact = nearest(W, everyone, None, 10)
    for round_num in range(200):  # each class takes part in 20 of them, and meets 400 of 1,000 by chance
        nearest_known_(W, drawn(1000, 100, round_num), drawn(1000, 20, 1000 + round_num), known)
    assert recall(known.long(), exact) > 0.8
    assert recall(nearest(W, everyone, drawn(1000, 400, 0), 10), exact) < 0.5


def test_the_server_keeps_what_it_has_found_and_an_old_state_stays_as_it_was() -> None:
    cfg = Config().override(
        ["spread.regularizer=nearest", "spread.neighbors=2", "spread.candidates=6", "spread.remember=true"]
    )
    update = Update(torch.tensor([3, 7]), {}, unit(2, 4, 1), torch.ones(2), torch.zeros(2))
    first = finish_round(ServerState(0, {}, unit(20, 4)), [update], cfg, torch.Generator())
    lists = first.spread[NEIGHBORS]
    assert (lists >= 0).any(1).nonzero().flatten().tolist() == [3, 7]
    before = lists.clone()
    second = finish_round(first, [Update(torch.tensor([5]), *vars_of(update))], cfg, torch.Generator())
    assert lists.equal(before)
    assert (second.spread[NEIGHBORS] >= 0).any(1).nonzero().flatten().tolist() == [3, 5, 7]


def vars_of(update: Update) -> tuple[Params, torch.Tensor, torch.Tensor, torch.Tensor]:
    """All but the cohort, of one client."""
    return update.delta, update.W[:1], update.weights[:1], update.loss[:1]


def test_nothing_is_remembered_unless_asked_for() -> None:
    update = Update(torch.tensor([3]), {}, unit(1, 4, 1), torch.ones(1), torch.zeros(1))
    state = finish_round(ServerState(0, {}, unit(20, 4)), [update], Config(), torch.Generator())
    assert state.spread == {}
