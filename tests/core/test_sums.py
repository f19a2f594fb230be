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
from fedaws.core.algorithm import run_round, settled
from fedaws.core.method import Method
from fedaws.core.methods import method_of
from fedaws.core.sums import HEARD, changes_told, hear, make_sum_spread, means_of, nothing_heard, tell_moments
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
    for _ in range(30):
        cohort = torch.randperm(40, generator=rng)[:3].sort().values
        new = F.normalize(rows[cohort] + 0.1 * torch.randn(3, 4, generator=rng), dim=1)
        memory = hear(memory, changes_told(spread, new, rows[cohort], memory[HEARD][cohort]), cohort)
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
    memory = {HEARD: torch.tensor([True, False]), "first": torch.ones(1)}
    after = hear(memory, {}, torch.empty(0, dtype=torch.int64))
    assert after[HEARD].tolist() == [True, False]


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
    return hear(nothing_heard(method.own_spread, W, len(W)), method.own_spread.tell(W), torch.arange(len(W)))


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
