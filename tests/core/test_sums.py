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
from fedaws.core.sums import HEARD, hear, make_sum_spread, nothing_heard, tell_moments
from fedaws.data.federated import FederatedData
from fedaws.errors import FedawsError
from fedaws.types import Broadcast, ServerState, Update

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
    for before, after in zip(clear.metrics, private.metrics, strict=True):  # the rows are settled when they are measured
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
        state = ServerState(0, {"a": torch.zeros(2)}, W, spread=nothing_heard(method.own_spread, W))
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


def test_means_over_cohorts_come_to_the_mean_over_everybody() -> None:
    """Rows that rest: each cohort's mean is one draw of the true mean, and the running mean has a quarter of them all."""
    rng = torch.Generator().manual_seed(0)
    rows = moments_start(400, 4)
    spread = make_sum_spread(small(*PRIVATE))
    truth = tell_moments(rows)["second"] / 400
    memory, misses = nothing_heard(spread, rows), []
    for _ in range(200):
        cohort = rows[torch.randperm(400, generator=rng)[:10]]
        memory = hear(memory, spread.tell(cohort), 10, 400)
        misses.append(float((memory["second"] - truth).norm()))
    one = float((tell_moments(rows[:10])["second"] / 10 - truth).norm())
    assert sum(misses[100:]) / 100 < 0.5 * one
    assert float(memory[HEARD]) == pytest.approx(1.0)


def test_the_weights_of_the_running_mean_are_those_of_a_plain_sum() -> None:
    values, memory = [3.0, -1.0, 4.0, 1.5], {HEARD: torch.tensor(0.0), "first": torch.zeros(1)}
    for value in values:
        memory = hear(memory, {"first": torch.tensor([2 * value])}, count=2, clients=40)  # a = 4 · 2/40
    weights = [0.2 * 0.8 ** (len(values) - 1 - i) for i in range(len(values))]
    expected = math.fsum(w * v for w, v in zip(weights, values, strict=True)) / math.fsum(weights)
    assert float(memory["first"]) == pytest.approx(expected, rel=1e-6)
    assert float(memory[HEARD]) == pytest.approx(math.fsum(weights), rel=1e-6)


def test_a_round_in_which_nobody_answers_forgets_nothing() -> None:
    memory = {HEARD: torch.tensor(0.5), "first": torch.ones(1)}
    assert hear(memory, {}, 0, 10) is memory


def test_a_row_that_was_away_takes_one_step_by_the_newest_means() -> None:
    cfg = small(*PRIVATE, "clients.per_round=3")
    method = method_of(cfg)
    assert method.own_spread is not None
    W = moments_start(6, 4)
    means = {HEARD: torch.tensor(1.0)} | {n: s / 6 for n, s in method.own_spread.tell(W).items()}
    state = ServerState(5, {}, W, spread=means)
    expected = method.own_spread.step(W, means, 0.5 * (1 + math.cos(math.pi * 4 / 8)))  # the factor of the round before
    torch.testing.assert_close(settled(state, cfg, method).W, expected)


def test_settling_twice_is_settling_once() -> None:
    cfg = small(*PRIVATE)
    method = method_of(cfg)
    assert method.own_spread is not None
    W = moments_start(6, 4)
    state = ServerState(3, {}, W, spread=hear(nothing_heard(method.own_spread, W), method.own_spread.tell(W), 6, 6))
    once = settled(state, cfg, method)
    assert torch.equal(settled(once, cfg, method).W, once.W)
    assert not torch.equal(once.W, W)


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
