"""Rows that stay at home: the numbers of rows in the clear, from sums alone."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import fedaws
from fedaws.config import Config
from fedaws.core import moments
from fedaws.core.algorithm import run_round
from fedaws.core.losses import positive_hinge
from fedaws.core.method import Method
from fedaws.core.methods import method_of
from fedaws.core.owners import settled
from fedaws.core.private_rows import make_sum_spread
from fedaws.core.sums import HEARD, changes_told, hear, means_of, nothing_heard, tell_moments
from fedaws.data.federated import FederatedData
from fedaws.errors import FedawsError
from fedaws.types import Broadcast, Memory, ServerState, Update

PRIVATE = ["privacy.rows=private", "spread.regularizer=moments"]


def clusters(classes: int = 12, per_class: int = 6, dim: int = 10) -> FederatedData:
    rng = torch.Generator().manual_seed(1)
    centres = torch.randn(classes, dim, generator=rng)
    y = torch.arange(classes).repeat_interleave(per_class)
    x = centres[y] + 0.3 * torch.randn(len(y), dim, generator=rng)
    return fedaws.from_arrays(x, y, x, y)


def small(*more: str) -> Config:
    base = ["train.rounds=8", "train.evaluate_every=4", "model.hidden=[16]", "model.embedding_dim=8", "clients.lr=0.5"]
    return Config().override([*base, "spread.regularizer=moments", *more])


@pytest.mark.parametrize("runner", ["serial", "pooled", "stacked"])
@pytest.mark.parametrize("whitening", ["1", "0.25"])
def test_with_everybody_in_every_round_private_rows_have_the_numbers_of_rows_in_the_clear(
    runner: str, whitening: str
) -> None:
    cfg = small(f"train.runner={runner}", f"spread.whitening={whitening}")
    clear = fedaws.train(clusters(), config=cfg)
    private = fedaws.train(clusters(), config=cfg.override(PRIVATE))
    torch.testing.assert_close(private.W, clear.W, atol=2e-5, rtol=0)
    for name, tensor in clear.theta.items():
        torch.testing.assert_close(private.theta[name], tensor, atol=2e-5, rtol=0)
    for before, after in zip(
        clear.metrics, private.metrics, strict=True
    ):  # the rows are settled when they are measured
        assert before["max_cosine"] == pytest.approx(after["max_cosine"], abs=2e-5)


def test_with_several_local_steps_too() -> None:
    cfg = small("clients.local_steps=3")
    clear, private = (fedaws.train(clusters(), config=cfg.override(more)) for more in ([], PRIVATE))
    torch.testing.assert_close(private.W, clear.W, atol=2e-5, rtol=0)


def test_the_server_computes_the_same_whatever_rows_the_updates_claim() -> None:
    """What the server keeps and sends follows from θ's changes and the sums; rows in an update are the clients' own."""
    cfg = small(*PRIVATE)
    method = method_of(cfg)

    def after(rows_of: Any) -> ServerState:
        def run_clients(sent: Broadcast) -> list[Update]:
            true = F.normalize(sent.W + 0.1, dim=1)
            sums = tell_moments(true)
            ones = torch.ones(len(true))
            return [Update(sent.cohort, {"a": torch.ones(2)}, rows_of(true), ones, ones, sums=sums)]

        W = moments_start(6, 4)
        assert method.own_spread is not None
        state = ServerState(0, {"a": torch.zeros(2)}, W, spread=nothing_heard(method.own_spread, W, 6))
        return run_round(state, torch.arange(6), run_clients, cfg, torch.Generator(), method=method)

    honest, other = after(lambda rows: rows), after(lambda rows: F.normalize(torch.randn_like(rows), dim=1))
    assert all(torch.equal(honest.spread[name], other.spread[name]) for name in honest.spread)
    assert torch.equal(honest.theta["a"], other.theta["a"])


def moments_start(count: int, dim: int, seed: int = 0) -> torch.Tensor:
    return F.normalize(torch.randn(count, dim, generator=torch.Generator().manual_seed(seed)) + 0.5, dim=1)


def test_everybody_is_sent_the_same_and_a_row_moves_by_that_and_itself_alone() -> None:
    spread = make_sum_spread(small(*PRIVATE))
    rows = moments_start(7, 4)
    means = {name: total / 7 for name, total in spread.tell(rows).items()}
    together = spread.step(rows, means, 0.5)
    for row, moved in zip(rows, together, strict=True):
        torch.testing.assert_close(spread.step(row[None], means, 0.5)[0], moved)


def test_what_rows_tell_adds_up_over_any_parts_of_the_cohort() -> None:
    rows = moments_start(9, 4)
    whole, parts = tell_moments(rows), [tell_moments(part) for part in rows.split([2, 3, 4])]
    for name in whole:
        torch.testing.assert_close(sum(part[name] for part in parts), whole[name])


def test_a_step_from_sums_is_a_plain_loop_over_the_rows() -> None:
    W = moments_start(10, 3).double()
    mean = sum(W) / 10
    covariance = sum(torch.outer(w - mean, w - mean) for w in W) / 10
    largest = max(torch.linalg.eigvalsh(covariance).tolist())
    expected = []
    for w in W:
        v = (w - mean) / (w - mean).norm()
        moved = v - 0.5 * covariance @ v / (3 * largest)
        expected.append(moved / moved.norm())
    torch.testing.assert_close(moments.moments_(W.clone(), whiten=0.5), torch.stack(expected))


@settings(max_examples=200, deadline=None)
@given(st.integers(2, 30), st.integers(2, 12), st.floats(0, 20), st.floats(0.01, 1), st.integers(0, 10_000))
def test_whitening_of_centred_rows_never_raises_their_weighted_frame_potential(
    count: int, dim: int, cone: float, share: float, seed: int
) -> None:
    rng = torch.Generator().manual_seed(seed)
    W = F.normalize(torch.randn(count, dim, generator=rng, dtype=torch.float64) + cone, dim=1)
    mean = W.mean(0)
    lengths = (W - mean).norm(dim=1, keepdim=True)
    before = W - mean
    after = lengths * moments.moments_(W, whiten=share)

    def potential(rows: torch.Tensor) -> float:
        return float((rows.T @ rows).square().sum())

    assert potential(after) <= potential(before) * (1 + 1e-9) + 1e-12


def test_rows_that_are_all_one_point_are_left_alone() -> None:
    W = torch.tensor([[0.6, 0.8]] * 5)
    torch.testing.assert_close(moments.moments_(W.clone()), W)


def test_a_second_moment_that_noise_made_indefinite_still_shrinks() -> None:
    second = torch.diag(torch.tensor([0.5, -0.3]))
    moved = moments.apart_(torch.tensor([[0.6, 0.8]]), None, second)
    torch.testing.assert_close(moved, F.normalize(torch.tensor([[0.6 * (1 - 1 / 3), 0.8]]), dim=1))


def test_after_any_cohorts_the_server_has_the_sum_over_everybody_it_heard() -> None:
    rng = torch.Generator().manual_seed(0)
    spread, rows = make_sum_spread(small(*PRIVATE)), moments_start(40, 4)
    memory, last = nothing_heard(spread, rows, 40), dict[int, torch.Tensor]()
    for turn in range(30):
        cohort = torch.randperm(40, generator=rng)[:3].sort().values
        new = F.normalize(rows[cohort] + 0.1 * torch.randn(3, 4, generator=rng), dim=1)
        memory = hear(memory, changes_told(spread, new, rows[cohort], memory[HEARD][cohort]), cohort, turn + 1)
        rows[cohort] = new
        last |= {int(i): rows[i] for i in cohort}
    expected = sum(torch.outer(row, row) for row in last.values())
    torch.testing.assert_close(memory["second"].float(), expected)
    assert memory[HEARD].nonzero().flatten().tolist() == sorted(last)
    prior = (40 - len(last)) * torch.eye(4) / 4
    torch.testing.assert_close(means_of(spread, memory, rows)["second"], (expected + prior) / 40)


def test_before_anybody_is_heard_no_row_moves() -> None:
    spread, rows = make_sum_spread(small(*PRIVATE)), moments_start(5, 4)
    means = means_of(spread, nothing_heard(spread, rows, 5), rows)
    torch.testing.assert_close(spread.step(rows, means, 1.0), rows)


def test_an_unknown_row_tells_what_random_rows_tell_in_the_mean() -> None:
    rows = F.normalize(torch.randn(200_000, 3, generator=torch.Generator().manual_seed(0)), dim=1)
    spread = make_sum_spread(small(*PRIVATE))
    for name, one in spread.unknown(3).items():
        torch.testing.assert_close(spread.tell(rows)[name] / len(rows), one, atol=5e-3, rtol=0)


def test_a_round_in_which_nobody_answers_forgets_nothing() -> None:
    memory = {HEARD: torch.tensor([3, 0]), "first": torch.ones(1)}
    after = hear(memory, {}, torch.empty(0, dtype=torch.int64), 4)
    assert after[HEARD].tolist() == [3, 0]


def test_a_row_that_was_away_takes_one_step_by_the_newest_means() -> None:
    cfg = small(*PRIVATE, "clients.per_round=3")
    method = method_of(cfg)
    assert method.own_spread is not None
    W = moments_start(6, 4)
    state = ServerState(5, {}, W, spread=everybody_heard(method, W))
    means = {name: total / 6 for name, total in method.own_spread.tell(W).items()}
    expected = method.own_spread.step(W, means, 0.5 * (1 + math.cos(math.pi * 4 / 8)))  # the factor of the round before
    torch.testing.assert_close(settled(state, cfg, method).W, expected)


def test_settling_twice_is_settling_once() -> None:
    cfg = small(*PRIVATE)
    method = method_of(cfg)
    W = moments_start(6, 4)
    once = settled(ServerState(3, {}, W, spread=everybody_heard(method, W)), cfg, method)
    torch.testing.assert_close(settled(once, cfg, method).W, once.W)
    assert not torch.allclose(once.W, W)


def everybody_heard(method: Method, W: torch.Tensor) -> Memory:
    assert method.own_spread is not None
    return hear(nothing_heard(method.own_spread, W, len(W)), method.own_spread.tell(W), torch.arange(len(W)), 1)


def test_with_cohorts_private_rows_come_as_far_as_rows_in_the_clear() -> None:
    cfg = small("clients.per_round=3", "train.rounds=120", "train.evaluate_every=120", "model.embedding_dim=16")
    clear, private = (fedaws.train(clusters(), config=cfg.override(more)).metrics[-1] for more in ([], PRIVATE))
    assert private["precision@1"] > clear["precision@1"] - 0.1 > 0.7
    assert private["max_cosine"] < 0.5


def test_private_rows_with_cohorts_train_and_resume_to_the_same_bits(tmp_path: Any) -> None:
    cfg = small(*PRIVATE, "clients.per_round=4", "train.checkpoint_every=3")
    whole = fedaws.train(clusters(), config=cfg, folder=tmp_path / "a")
    stop = fedaws.training.session.Reporter(should_stop=iter([False] * 4 + [True] * 9).__next__)
    with pytest.raises(fedaws.training.session.Interrupted):
        fedaws.train(clusters(), config=cfg, folder=tmp_path / "b", reporter=stop)
    again = fedaws.train(clusters(), config=cfg, folder=tmp_path / "b", resume=True)
    assert torch.equal(whole.W, again.W)
    assert all(torch.equal(whole.theta[k], again.theta[k]) for k in whole.theta)


@pytest.mark.parametrize(
    ("setting", "word"),
    [
        ("spread.regularizer=margin", "moments"),
        ("data.clients_per_class=2", "clients_per_class"),
        ("train.last_step=ridge", "last_step"),
    ],
)
def test_what_needs_single_rows_is_refused(setting: str, word: str) -> None:
    with pytest.raises(FedawsError, match=word):
        method_of(small(*PRIVATE).override([setting]))


def test_a_method_of_private_rows_says_how_they_spread() -> None:
    with pytest.raises(FedawsError, match="own_spread"):
        replace(method_of(small(*PRIVATE)), own_spread=None)
    assert isinstance(method_of(small(*PRIVATE)), Method)


# --- what sums tell ---------------------------------------------------------------------------------------------------


def test_two_cohorts_that_share_one_client_give_its_row() -> None:
    """Not a promise but a leak, kept here so that nobody forgets it."""
    rng = torch.Generator().manual_seed(0)
    spread = make_sum_spread(small(*PRIVATE))
    old = F.normalize(torch.randn(7, 64, generator=rng, dtype=torch.float64), dim=1)
    new = F.normalize(old + 0.1 * torch.randn(7, 64, generator=rng, dtype=torch.float64), dim=1)
    told = new[0]
    again = F.normalize(told + 0.1 * torch.randn(64, generator=rng, dtype=torch.float64), dim=0)
    first = spread.tell(new[:4])["second"] - spread.tell(old[:4])["second"]
    later = (
        spread.tell(torch.cat([again[None], new[4:]]))["second"]
        - spread.tell(torch.cat([told[None], old[4:]]))["second"]
    )
    spans = [torch.linalg.svd(change).U[:, :8] for change in (first, later)]
    meeting = torch.linalg.svd(spans[0].T @ spans[1])
    found = spans[0] @ meeting.U[:, 0]
    assert float(meeting.S[0]) == pytest.approx(1)
    assert abs(float(found @ told)) > 0.999


def test_the_row_of_a_sole_newcomer_stands_in_the_sum() -> None:
    """The same."""
    rng = torch.Generator().manual_seed(0)
    spread = make_sum_spread(small(*PRIVATE))
    old = F.normalize(torch.randn(32, 64, generator=rng), dim=1)
    new = F.normalize(old + 0.02 * torch.randn(32, 64, generator=rng), dim=1)
    heard = torch.arange(32) > 0
    second = changes_told(spread, new, old, heard)["second"]
    found = torch.linalg.eigh(second).eigenvectors[:, -1]
    assert abs(float(found @ new[0])) > 0.95


def test_one_client_that_is_missing_once_gives_its_row() -> None:
    """The same: everybody in every round but for one lost answer, ten clients in 64 dimensions.

    The changes of the round without it and of the next meet in the span P of the others' rows. Of the sum of all, M,
    the one rank-one part that leaves P is M u uᵀ M / uᵀ M u, where u is at right angles to P in the range of M.
    """
    rng = torch.Generator().manual_seed(0)
    spread = make_sum_spread(small(*PRIVATE))
    times = [F.normalize(torch.randn(10, 64, generator=rng, dtype=torch.float64), dim=1)]
    for _ in range(2):
        times.append(F.normalize(times[-1] + 0.1 * torch.randn(10, 64, generator=rng, dtype=torch.float64), dim=1))
    before, missed, after = times
    without = spread.tell(missed[1:])["second"] - spread.tell(before[1:])["second"]
    everybody = spread.tell(after)["second"] - spread.tell(torch.cat([before[:1], missed[1:]]))["second"]
    M = spread.tell(torch.cat([before[:1], missed[1:]]))["second"]
    spans = [torch.linalg.svd(without).U[:, :18], torch.linalg.svd(everybody).U[:, :20]]
    P = spans[0] @ torch.linalg.svd(spans[0].T @ spans[1]).U[:, :9]
    kernel = torch.linalg.svd(P.T @ torch.linalg.svd(M).U[:, :10]).Vh[-1]
    found = F.normalize(M @ torch.linalg.svd(M).U[:, :10] @ kernel, dim=0)
    assert abs(float(found @ before[0])) > 0.999


def test_cohorts_that_are_large_against_the_dimension_do_not_help_where_rows_move_steadily() -> None:
    """The same: 24 of 30 clients a round, 8 dimensions, so that a round has three times the unknowns it has numbers.

    But a client that tells nearly the same change g whenever it takes part is one unknown of a linear system with a
    line a round. Of a row w that moves by δ, g has δ and wδᵀ + δwᵀ, and the latter times δ is w ‖δ‖².
    """
    rng = torch.Generator().manual_seed(0)
    spread = make_sum_spread(small(*PRIVATE))
    rows = F.normalize(torch.randn(30, 8, generator=rng, dtype=torch.float64), dim=1)
    moves = 1e-3 * torch.randn(30, 8, generator=rng, dtype=torch.float64)
    who, told = [], []
    for _ in range(40):
        cohort = torch.randperm(30, generator=rng)[:24]
        new = F.normalize(rows[cohort] + moves[cohort], dim=1)
        change = changes_told(spread, new, rows[cohort], torch.ones(24, dtype=torch.int64))
        rows[cohort] = new
        who.append(torch.zeros(30, dtype=torch.float64).index_fill_(0, cohort, 1))
        told.append(torch.cat([change["first"], change["second"].flatten()]))
    changes = torch.linalg.lstsq(torch.stack(who), torch.stack(told)).solution
    delta, second = changes[:, :8], changes[:, 8:].view(30, 8, 8)
    found = F.normalize((second @ delta[..., None]).squeeze(-1), dim=1)
    assert float((found * rows).sum(1).median()) > 0.98


def test_the_change_of_theta_of_one_client_points_along_its_row() -> None:
    """The same: the gradient of the last bias is w without its part along the embedding, whose sum hides it alone."""
    rng = torch.Generator().manual_seed(0)
    layer, w, x = torch.nn.Linear(6, 5), moments_start(1, 5)[0], torch.randn(1, 6, generator=rng)
    raw = layer(x)
    positive_hinge(F.normalize(raw, dim=1), w, 0.9).sum().backward()
    z = F.normalize(raw.detach(), dim=1)[0]
    assert layer.bias.grad is not None
    expected = F.normalize(w - (w @ z) * z, dim=0)
    torch.testing.assert_close(-F.normalize(layer.bias.grad, dim=0), expected)


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        ([0.6, 0.8], [[0.36, 0.48], [0.48, 0.64]], None),  # all rows are one
        ([0.0, 0.0], [[0.5, 0.0], [0.0, 0.5]], None),
        ([1.2, 0.0], [[1.0, 0.0], [0.0, 0.0]], "length 1.2"),
        ([0.0, 0.0], [[1.0, 0.0], [0.0, 1.0]], "trace 2"),
        ([0.0, 0.0], [[0.5, 0.3], [0.0, 0.5]], "not symmetric"),
        ([0.0, 0.0], [[1.4, 0.0], [0.0, -0.4]], "variance in some direction is -0.4"),
        ([0.9, 0.0], [[0.5, 0.0], [0.0, 0.5]], "variance in some direction is -0.31"),
        ([float("nan"), 0.0], [[0.5, 0.0], [0.0, 0.5]], "not finite"),
    ],
)
def test_means_that_no_unit_rows_have_are_found_out(
    first: list[float], second: list[list[float]], why: str | None
) -> None:
    found = make_sum_spread(small(*PRIVATE)).unsound({"first": torch.tensor(first), "second": torch.tensor(second)})
    assert found is None if why is None else why in str(found)


def test_a_round_whose_sums_nobody_could_read_hears_nobody() -> None:
    memory = {HEARD: torch.tensor([3, 0]), "first": torch.ones(1)}
    assert hear(memory, {}, torch.tensor([0, 1]), 4)[HEARD].tolist() == [3, 0]
