"""Which examples a client uses when: from (seed, client, round) alone, evenly, each once per epoch."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedaws import FederatedData, from_arrays
from fedaws.config import ClientsConfig
from fedaws.data.batches import BatchPlan


def federation(*sizes: int) -> FederatedData:
    """Client i with sizes[i] examples; example number = position in x."""
    labels = np.repeat(np.arange(len(sizes)), sizes)
    return from_arrays(np.arange(len(labels), dtype=np.float32)[:, None], labels, num_classes=len(sizes))


def plan(data: FederatedData, batch: int | str, steps: int = 1, seed: int = 0) -> BatchPlan:
    return BatchPlan(data, ClientsConfig(examples_per_step=batch, local_steps=steps), seed)


def drawn(a_plan: BatchPlan, client: int, round_num: int) -> list[int]:
    """The numbers of one client's batch, E steps one after the other."""
    return a_plan.draw(torch.tensor([client]), round_num).numbers.flatten().tolist()


@given(
    st.lists(st.integers(1, 12), min_size=2, max_size=5),
    st.integers(1, 6),
    st.integers(1, 3),
    st.lists(st.tuples(st.lists(st.integers(0, 4), min_size=1, unique=True), st.integers(0, 30)), max_size=5),
    st.integers(0, 30),
)
def test_a_batch_depends_on_nothing_that_was_drawn_before_or_beside_it(
    sizes: list[int], batch: int, steps: int, history: list[tuple[list[int], int]], round_num: int
) -> None:
    data = federation(*sizes)
    used = plan(data, batch, steps)
    for cohort, earlier in history:
        used.draw(torch.tensor([c % len(sizes) for c in cohort]), earlier)
    together = used.draw(torch.arange(len(sizes)), round_num)
    for client in range(len(sizes)):
        assert together.numbers[client].flatten().tolist() == drawn(plan(data, batch, steps), client, round_num)


def test_the_order_of_a_cohort_does_not_matter() -> None:
    data = federation(9, 7, 8)
    one, other = plan(data, 3).draw(torch.tensor([0, 1, 2]), 4), plan(data, 3).draw(torch.tensor([2, 0, 1]), 4)
    assert one.numbers.tolist() == other.numbers[[1, 2, 0]].tolist()


@given(st.integers(1, 5), st.integers(1, 6), st.integers(0, 20), st.integers(0, 3))
def test_an_epoch_uses_every_example_once(batch: int, batches: int, epoch: int, seed: int) -> None:
    a_plan = plan(federation(batch * batches, 1), batch, seed=seed)
    rounds = range(epoch * batches, (epoch + 1) * batches)
    used = [number for r in rounds for number in drawn(a_plan, 0, r)]
    assert sorted(used) == list(range(batch * batches))


@given(st.lists(st.integers(1, 9), min_size=2, max_size=4), st.integers(1, 6), st.integers(0, 20))
def test_a_client_uses_only_its_own_examples(sizes: list[int], batch: int, round_num: int) -> None:
    numbers = plan(federation(*sizes), batch).draw(torch.arange(len(sizes)), round_num).numbers
    starts = np.concatenate([[0], np.cumsum(sizes)])
    for client in range(len(sizes)):
        assert starts[client] <= int(numbers[client].min())
        assert int(numbers[client].max()) < starts[client + 1]


@given(st.lists(st.integers(1, 9), min_size=2, max_size=4), st.one_of(st.integers(1, 12), st.just("all")))
def test_the_shares_of_a_step_sum_to_one(sizes: list[int], batch: int | str) -> None:
    share = plan(federation(*sizes), batch, steps=2).draw(torch.arange(len(sizes)), 3).share
    torch.testing.assert_close(share.sum(-1), torch.ones(len(sizes), 2))


def test_a_client_with_fewer_examples_than_the_batch_uses_each_once() -> None:
    numbers, share = plan(federation(2, 4), 4).draw(torch.tensor([0, 1]), 5)
    assert numbers[0, 0, :2].sort().values.tolist() == [0, 1]
    assert share[0, 0].tolist() == [0.5, 0.5, 0.0, 0.0]
    assert share[1, 0].tolist() == [0.25] * 4
    assert numbers[1, 0].sort().values.tolist() == [2, 3, 4, 5]


def test_padding_stays_within_the_clients_own_examples() -> None:
    numbers, share = plan(federation(1, 3), 3).draw(torch.tensor([0]), 0)
    assert numbers.flatten().tolist() == [0, 0, 0]
    assert share.flatten().tolist() == [1.0, 0.0, 0.0]


def test_a_batch_is_no_larger_than_the_largest_client() -> None:
    assert plan(federation(2, 3), 100).draw(torch.tensor([1]), 0).numbers.shape == (1, 1, 3)


def test_all_examples_in_every_step_if_asked() -> None:
    a_plan = plan(federation(3, 5), "all")
    for round_num in range(3):
        assert sorted(drawn(a_plan, 1, round_num)) == [3, 4, 5, 6, 7]


def test_the_steps_of_a_round_follow_each_other() -> None:
    data = federation(12, 12)
    two_steps, one_step = plan(data, 3, steps=2), plan(data, 3)
    assert drawn(two_steps, 0, 5) == drawn(one_step, 0, 10) + drawn(one_step, 0, 11)


def test_what_an_epoch_leaves_over_is_used_in_another() -> None:
    a_plan = plan(federation(5, 1), 2)  # two batches of two: one example is left over in each epoch
    used = {number for r in range(40) for number in drawn(a_plan, 0, r)}
    assert used == {0, 1, 2, 3, 4}


def test_clients_without_examples_do_no_harm() -> None:
    data = federation(4, 0, 4)
    assert sorted(drawn(plan(data, 4), 2, 0)) == [4, 5, 6, 7]


@pytest.mark.parametrize("other", [{"seed": 1}, {"client": 1}, {"round_num": 40}])
def test_seed_client_and_epoch_each_change_the_order(other: dict[str, int]) -> None:
    data = federation(40, 40)

    def order(seed: int = 0, client: int = 0, round_num: int = 0) -> list[int]:
        a_plan = plan(data, 1, seed=seed)
        return [drawn(a_plan, client, round_num + r)[0] - 40 * client for r in range(40)]

    # Two orders at random agree in one place on average, and in six or more once in 1,700.
    assert sum(a == b for a, b in zip(order(), order(**other), strict=True)) < 6


def test_every_example_comes_first_equally_often() -> None:
    a_plan = plan(federation(20, 1), 20 // 20)
    first = torch.tensor([drawn(a_plan, 0, epoch * 20)[0] for epoch in range(1000)])
    chi_square = float(((torch.bincount(first, minlength=20) - 50.0) ** 2 / 50).sum())
    assert chi_square < 53  # 19 degrees of freedom: above 53 once in 20,000


def test_clients_of_one_size_are_shuffled_independently() -> None:
    data = federation(*[10] * 200)
    numbers = plan(data, 1).draw(torch.arange(200), 0).numbers.flatten() - 10 * torch.arange(200)
    chi_square = float(((torch.bincount(numbers, minlength=10) - 20.0) ** 2 / 20).sum())
    assert chi_square < 34  # 9 degrees of freedom: above 34 once in 10⁴
