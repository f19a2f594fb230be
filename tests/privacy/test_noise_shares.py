"""Noise in shares: how far one node moves a sum of whole numbers, and how much noise any sum that opens has."""

import math

import numpy as np
import pytest
import torch

from fedaws.privacy.accountant import AtMost, epsilon, noise_for
from fedaws.privacy.mechanism import from_generator
from fedaws.privacy.noise_shares import discrete_gaussian, noise_shares
from fedaws.privacy.secure_sums import Entry, decode, encode, step
from helpers import refusal


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("deviation", [0.4, 1.0, 3.7])
def test_numbers_come_as_often_as_the_discrete_gaussian_says(deviation: float) -> None:
    draws = discrete_gaussian(200_000, deviation, from_generator(rng()))
    weights = {x: math.exp(-(x**2) / (2 * deviation**2)) for x in range(-60, 61)}
    total = sum(weights.values())
    for x in range(-4, 5):
        share = weights[x] / total
        assert abs(float((draws == x).mean()) - share) < 5 * math.sqrt(share / 200_000) + 1e-5


def test_a_large_one_has_its_deviation() -> None:
    draws = discrete_gaussian(200_000, 1e6)
    assert float(draws.std()) == pytest.approx(1e6, rel=5 / math.sqrt(2 * 200_000))
    assert abs(float(draws.mean())) < 5 * 1e6 / math.sqrt(200_000)
    assert len(discrete_gaussian(0, 5.0)) == 0


@pytest.mark.parametrize("numbers", [3, 40])
def test_rounding_is_in_the_sensitivity(numbers: int) -> None:
    """By brute force: no change of length S is more than S/h + √p/2 steps long once it is rounded."""
    shares = noise_shares(1.0, 0.5, clients=4, threshold=3, numbers=numbers)
    layout, unit = [Entry("x", (numbers,), shares.bound)], step(shares.bound, 4)
    allowed = shares.deviation * math.sqrt(3)  # noise 1: the deviation of three is the sensitivity
    for seed in range(300):
        x = torch.randn(numbers, generator=rng(seed), dtype=torch.float64)
        x = 0.5 * x / x.norm()
        moved = encode({"x": x.numpy()}, layout, 4).view(np.int32).astype(np.float64)
        assert np.linalg.norm(moved) <= allowed
    assert allowed == pytest.approx(0.5 / unit + math.sqrt(numbers) / 2)


@pytest.mark.parametrize("answered", [3, 4, 5])
def test_every_sum_that_opens_has_noise_enough_and_no_number_wraps_around(answered: int) -> None:
    numbers, noise, clip = 20_000, 4.0, 0.1
    shares = noise_shares(noise, clip, clients=5, threshold=3, numbers=numbers)
    layout = [Entry("x", (numbers,), shares.bound)]
    x = np.zeros(numbers)
    x[0] = clip  # all lies in one number
    total = np.zeros(numbers, np.uint32)
    for node in range(answered):
        share = discrete_gaussian(numbers, shares.deviation, from_generator(rng(node)))
        total += encode({"x": x}, layout, 5) + (share & 0xFFFFFFFF).astype(np.uint32)
    found = decode(total, layout, 5)["x"]
    assert float(found[1:].std()) == pytest.approx(noise * clip * math.sqrt(answered / 3), rel=0.03)
    assert abs(found[0] - answered * clip) < 6 * noise * clip * math.sqrt(answered / 3)


def test_shares_of_few_steps_are_refused() -> None:
    assert "raise the noise, or have fewer nodes" in refusal(lambda: noise_shares(1e-7, 1.0, 1000, 600, 10))


def test_whole_numbers_cost_a_little_more_than_the_gaussian_and_never_less() -> None:
    for noise, rounds in ((1.0, 1), (4.0, 10), (20.0, 200)):
        exact = epsilon(noise, 1e-5, rounds, AtMost())
        assert exact <= epsilon(noise, 1e-5, rounds, AtMost(discrete=True)) <= 1.15 * exact


def test_noise_for_a_target_meets_it() -> None:
    noise = noise_for(2.0, 1e-5, 50, AtMost(discrete=True))
    assert epsilon(noise, 1e-5, 50, AtMost(discrete=True)) == pytest.approx(2.0, rel=1e-3)
    assert epsilon(noise, 1e-5, 50, AtMost(discrete=True)) <= 2.0


def test_a_sum_of_shares_loses_what_the_bound_says() -> None:
    """One number, three nodes, by summing up all chances: Rényi's divergence between neighbours against α/2z²."""
    share, moved = 2.0, 3
    support = np.arange(-200, 201)
    one = np.exp(-(support**2) / (2 * share**2))
    one /= one.sum()
    three = np.convolve(np.convolve(one, one, "same"), one, "same")
    noise = share * math.sqrt(3) / moved
    near = np.abs(support) <= 60  # beyond it chances are below 10⁻⁶⁰
    p, q = np.log(three[near]), np.log(np.roll(three, moved)[near])
    for order in (2, 4, 8):
        found = math.log(np.exp(order * p - (order - 1) * q).sum()) / (order - 1)
        assert found == pytest.approx(order / (2 * noise**2), rel=1e-6)  # of whole steps the bound is reached
        assert found <= order / (2 * noise**2) * (1 + 1e-9)
