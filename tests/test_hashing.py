"""Hashes in place of generators: against the published splitmix64, and evenly spread."""

from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedaws.hashing import Word, fold, hash64, hash_tensor

MASK = (1 << 64) - 1


def splitmix64(z: int) -> int:
    """One output of Vigna's splitmix64 from the state z, as published in C."""
    z = (z + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def test_it_is_splitmix64() -> None:
    assert splitmix64(0) == 0xE220A8397B1DCDAF  # the first output for seed 0, as in the literature
    assert fold(0) == 0xE220A8397B1DCDAF >> 1


@given(st.integers(-(2**70), 2**70), st.sampled_from(get_args(Word)), st.lists(st.integers(0, 2**62), max_size=3))
def test_seed_letters_and_numbers_are_mixed_one_after_the_other(seed: int, word: Word, numbers: list[int]) -> None:
    state = 0
    for part in [seed, *word.encode(), *numbers]:
        state = splitmix64(state ^ (part & MASK))
    assert hash64(seed, word, *numbers) == state >> 1


def test_no_word_begins_another_so_that_a_hash_has_one_reading() -> None:
    words = get_args(Word)
    assert not [(a, b) for a in words for b in words if a != b and b.startswith(a)]


def test_a_word_that_is_not_known_is_refused() -> None:
    with pytest.raises(ValueError, match=r"got the word 'batch'; add it to Word"):
        hash64(1, "batch")  # type: ignore[arg-type]


@given(st.integers(0, 2**62), st.lists(st.integers(0, 2**62), min_size=1, max_size=4))
def test_tensors_hash_as_plain_integers_do(key: int, values: list[int]) -> None:
    second = 12345
    expected = [splitmix64(splitmix64(key ^ v) ^ second) >> 24 for v in values]
    hashed = hash_tensor(key, torch.tensor(values), torch.tensor(second))
    assert hashed.tolist() == expected


@given(st.lists(st.integers(0, 2**70), min_size=1, max_size=3))
def test_a_hash_seeds_a_generator(numbers: list[int]) -> None:
    torch.Generator().manual_seed(fold(*numbers))  # refuses what does not fit into 63 bits


def test_order_and_every_part_matter() -> None:
    one = {hash64(1, "round"), hash64(1, "round", 1), hash64(1, "round", 1, 2), hash64(1, "round", 2, 1)}
    assert len(one | {hash64(2, "round"), hash64(1, "batches"), hash64(1, "round", 0)}) == 7


def test_hashes_of_neighbouring_numbers_fill_the_range_evenly() -> None:
    hashed = hash_tensor(7, torch.arange(16_000))
    counts = torch.histc(hashed.double() / 2**40, bins=16, min=0, max=1)
    chi_square = float(((counts - 1000) ** 2 / 1000).sum())
    assert chi_square < 45  # 15 degrees of freedom: above 45 once in 10⁴


def test_one_bit_of_the_input_changes_half_of_the_output() -> None:
    numbers = torch.arange(4000) * 2
    differing = hash_tensor(3, numbers) ^ hash_tensor(3, numbers + 1)
    bits = torch.stack([(differing >> b) & 1 for b in range(40)]).double().mean(1)
    assert float((bits - 0.5).abs().max()) < 0.05  # six standard deviations of 4,000 coins
