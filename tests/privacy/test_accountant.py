"""ε against a closed form, against figures that others published, and against `dp-accounting` called by hand."""

import math
import sys
import time

import dp_accounting
import pytest
from dp_accounting import NeighboringRelation, pld, rdp
from scipy.optimize import brentq
from scipy.stats import binom, norm

from fedaws.privacy.accountant import (
    AtMost,
    Fixed,
    Poisson,
    default_delta,
    epsilon,
    epsilon_if_known,
    joint,
    noise_for,
    noise_to_signal,
)
from helpers import refusal


def gaussian_epsilon(noise: float, delta: float) -> float:
    """Balle and Wang 2018, Theorem 8, solved for ε by scipy."""

    def excess(eps: float) -> float:
        a, b = 1 / (2 * noise), eps * noise
        return float(norm.cdf(a - b) - math.exp(eps) * norm.cdf(-a - b)) - delta

    return float(brentq(excess, 0.0, 60.0, xtol=1e-12))


@pytest.mark.parametrize("times", [1, 10, 50])
@pytest.mark.parametrize("noise", [1.5, 4.0, 30.0])
def test_without_sampling_epsilon_is_that_of_one_gaussian(noise: float, times: int) -> None:
    expected = gaussian_epsilon(noise / math.sqrt(times), 1e-5)
    assert epsilon(noise, 1e-5, times, AtMost()) == pytest.approx(expected, rel=1e-4)


def test_a_limit_on_participations_counts_rounds_up_to_it() -> None:
    for rounds, times in ((3, 3), (10, 10), (1000, 10)):
        assert epsilon(4.0, 1e-5, rounds, AtMost(10)) == epsilon(4.0, 1e-5, times, AtMost())


def test_a_coin_that_always_falls_on_heads_is_no_sampling() -> None:
    assert epsilon(4.0, 1e-5, 30, Poisson(1.0)) == epsilon(4.0, 1e-5, 30, AtMost())


# --- published figures ----------------------------------------------------------------------------------------------


def classical_rdp(noise: float, q: float, rounds: int, delta: float) -> float:
    """The Rényi bound as it was converted until 2020: min over orders of ρ(α) + log(1/δ)/(α − 1)."""
    accountant = rdp.RdpAccountant(range(2, 257), NeighboringRelation.ADD_OR_REMOVE_ONE)
    accountant.compose(dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(noise)), rounds)
    pairs = zip(accountant._orders, accountant._rdp, strict=True)
    return float(min(rho + math.log(1 / delta) / (order - 1) for order, rho in pairs))


PUBLISHED = [
    # noise, sampling rate, rounds, the bound that was published
    (4.0, 0.01, 10_000, 1.26),  # Abadi et al. 2016, Section 3.2
    (1.12, 256 / 60_000, 14_063, 2.92),  # TensorFlow Privacy's documentation of compute_dp_sgd_privacy
    (1.3, 256 / 60_000, 15 * 60_000 // 256, 1.19),  # its MNIST tutorial's table
    (1.1, 256 / 60_000, 60 * 60_000 // 256, 3.01),
]


@pytest.mark.parametrize(("noise", "q", "rounds", "published"), PUBLISHED)
def test_published_moments_bounds_are_met_and_ours_is_tighter(
    noise: float, q: float, rounds: int, published: float
) -> None:
    assert classical_rdp(noise, q, rounds, 1e-5) == pytest.approx(published, abs=0.006)
    ours = epsilon(noise, 1e-5, rounds, Poisson(q))
    assert 0.7 * published < ours < published


def test_poisson_epsilon_is_the_exact_one_of_the_fourier_accountant() -> None:
    # Koskela, Jälkö, Honkela (AISTATS 2020), their example: σ = 4, q = 0.01, 10⁴ rounds have δ(1) = 4.2435e-6.
    exact = 4.243484e-6
    assert epsilon(4.0, exact, 10_000, Poisson(0.01)) == pytest.approx(1.0, abs=1e-3)
    assert epsilon(4.0, exact, 10_000, Poisson(0.01)) >= 1.0  # never below what it is


# --- dp-accounting by hand ------------------------------------------------------------------------------------------


def test_poisson_is_add_or_remove_one_by_privacy_loss_distributions() -> None:
    accountant = pld.PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE)
    event = dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(1.0))
    accountant.compose(dp_accounting.SelfComposedDpEvent(event, 200))
    assert epsilon(1.0, 1e-5, 200, Poisson(0.1)) == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-4)
    assert epsilon(1.0, 1e-5, 200, Poisson(0.1)) == pytest.approx(9.97, abs=0.01)


def test_a_fixed_cohort_is_accounted_with_twice_the_sensitivity() -> None:
    accountant = rdp.RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_ONE)
    event = dp_accounting.SampledWithoutReplacementDpEvent(1000, 100, dp_accounting.GaussianDpEvent(0.5))
    accountant.compose(event, 200)
    assert epsilon(1.0, 1e-5, 200, Fixed(1000, 100)) == pytest.approx(accountant.get_epsilon(1e-5))
    assert epsilon(1.0, 1e-5, 200, Fixed(1000, 100)) == pytest.approx(157.7, abs=0.1)  # not 9.97
    assert epsilon(2.0, 1e-5, 200, Fixed(1000, 100)) == pytest.approx(20.7, abs=0.1)


def test_a_fixed_cohort_of_nearly_all_costs_no_more_than_without_sampling() -> None:
    assert epsilon(8.0, 1e-5, 20, Fixed(100, 99)) <= gaussian_epsilon(4.0 / math.sqrt(20), 1e-5) * (1 + 1e-6)


def test_gaussians_released_together_are_one_gaussian() -> None:
    # Two vectors scaled to unit noise are one vector; its sensitivity is √(1/z₁² + 1/z₂²).
    assert joint(3.0, 4.0) == pytest.approx(1 / math.sqrt(1 / 9 + 1 / 16))
    accountant = pld.PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE)
    accountant.compose(dp_accounting.GaussianDpEvent(3.0)).compose(dp_accounting.GaussianDpEvent(4.0))
    assert epsilon(joint(3.0, 4.0), 1e-5, 1, AtMost()) == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-3)


# --- cohorts that are known ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cohorts", "moved"), [(Poisson(0.1), 1.0), (Fixed(1000, 100), 2.0)])
def test_who_knows_the_cohorts_sees_a_gaussian_for_each_that_a_person_is_in(
    cohorts: Poisson | Fixed, moved: float
) -> None:
    often = next(k for k in range(201) if binom.sf(k, 200, 0.1) <= 0.5e-5)  # 41 of 200
    expected = gaussian_epsilon(4.0 / moved / math.sqrt(often), 0.5e-5)
    assert epsilon_if_known(4.0, 1e-5, 200, cohorts) == pytest.approx(expected, rel=1e-4)
    assert epsilon_if_known(4.0, 1e-5, 200, cohorts) > epsilon(4.0, 1e-5, 200, cohorts)


def test_where_nothing_is_hidden_there_is_one_epsilon() -> None:
    for limit in (None, 5):
        assert epsilon_if_known(4.0, 1e-5, 50, AtMost(limit)) == epsilon(4.0, 1e-5, 50, AtMost(limit))
    assert epsilon_if_known(4.0, 1e-5, 0, Poisson(0.1)) == 0


@pytest.mark.parametrize("noise", [0.01, 0.3])
def test_little_noise_is_priced_at_once_and_not_below_what_it_costs(noise: float) -> None:
    began = time.perf_counter()
    sampled = epsilon(noise, 1e-5, 200, Poisson(0.1))
    assert time.perf_counter() - began < 10  # distributions of such losses take minutes
    assert sampled <= epsilon(noise, 1e-5, 200, AtMost())


# --- the inverse ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cohorts", [AtMost(), AtMost(5), Fixed(2000, 100)])
@pytest.mark.parametrize("target", [0.5, 8.0])
def test_noise_for_a_target_meets_it_and_hardly_more(cohorts: AtMost | Fixed, target: float) -> None:
    noise = noise_for(target, 1e-5, 60, cohorts)
    assert epsilon(noise, 1e-5, 60, cohorts) <= target
    assert epsilon(noise * 0.999, 1e-5, 60, cohorts) > target


def test_noise_for_a_poisson_cohort_is_that_of_dp_accountings_own_search() -> None:
    event = dp_accounting.PoissonSampledDpEvent
    theirs = dp_accounting.calibrate_dp_mechanism(
        lambda: pld.PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE, value_discretization_interval=1e-3),
        lambda z: dp_accounting.SelfComposedDpEvent(event(0.02, dp_accounting.GaussianDpEvent(z)), 100),
        2.0,
        1e-5,
        dp_accounting.ExplicitBracketInterval(0.6, 1.2),
        tol=1e-4,
    )
    assert noise_for(2.0, 1e-5, 100, Poisson(0.02)) == pytest.approx(theirs, rel=1e-3)


@pytest.mark.parametrize("cohorts", [AtMost(), Poisson(0.1), Fixed(1000, 100)])
def test_no_target_asks_for_less_than_the_least_noise(cohorts: AtMost | Poisson | Fixed) -> None:
    assert noise_for(1e6, 1e-5, 200, cohorts) == 0.1


@pytest.mark.parametrize("cohorts", [AtMost(), Poisson(0.1), Fixed(1000, 100)])
@pytest.mark.parametrize("target", [0.0, -1.0, 1e-6, math.nan, math.inf])
def test_a_target_that_no_noise_meets_is_refused(target: float, cohorts: AtMost | Poisson | Fixed) -> None:
    assert "wanted a number of at least 0.001" in refusal(lambda: noise_for(target, 1e-5, 200, cohorts))


def test_60_people_need_noise_21_times_the_signal() -> None:
    noise = noise_for(8.0, default_delta(60), 200, AtMost())
    assert noise == pytest.approx(5.7, abs=0.05)
    assert noise_to_signal(noise, 60, 50_000) == pytest.approx(21, abs=0.5)


def test_no_rounds_cost_nothing() -> None:
    assert epsilon(1.0, 1e-5, 0, Poisson(0.1)) == 0.0


# --- mistakes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan])
def test_a_delta_that_is_no_probability_is_refused(delta: float) -> None:
    assert "wanted a number above 0 and below 1" in refusal(lambda: epsilon(1.0, delta, 1, AtMost()))


def test_a_missing_extra_is_told_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    assert "pip install 'fedaws[privacy]'" in refusal(lambda: epsilon(1.2345, 1e-5, 1, AtMost()))
