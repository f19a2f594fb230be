"""Error rates against plain loops over every threshold, closed forms, scikit-learn and other people's toolkits."""

from functools import partial
from itertools import pairwise
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from sklearn.isotonic import IsotonicRegression
from sklearn.metrics import det_curve, log_loss, roc_auc_score

from fedaws.evaluate.comparisons import Comparisons, comparisons
from fedaws.evaluate.error_rates import (
    auc,
    cllr,
    det,
    eer,
    fnir_at_fpir,
    frr_at_far,
    min_cllr,
    min_dcf,
    rates,
    rates_at,
    searches,
    threshold_at_far,
    threshold_at_frr,
)
from fedaws.evaluate.intervals import figures, figures_for_json, summary, threshold_for
from helpers import refusal

Scores = NDArray[np.float64]
# Few values, so that there are many ties.
few_values = st.lists(st.integers(-3, 3).map(lambda i: i / 4), min_size=1, max_size=12)
pairs = given(targets=few_values, nontargets=few_values)


def loop(targets: list[float], nontargets: list[float]) -> list[tuple[float, float, float]]:
    """(threshold, FAR, FRR) at every score and beyond the highest."""
    rows = []
    for t in [*sorted({*targets, *nontargets}), float("inf")]:
        accepted = sum(score >= t for score in nontargets)
        rejected = sum(score < t for score in targets)
        rows.append((t, accepted / len(nontargets), rejected / len(targets)))
    return rows


def arithmetic_scores(count: int, factor: int, centre: float) -> Scores:
    """Scores of two decimals that need no random numbers, the same for every toolkit."""
    spread = [((factor * i * i + 31 * i) % 1009 + (factor * i) % 997) / 1000 - 1 for i in range(1, count + 1)]
    return np.array([round(centre + each, 2) for each in spread])


TARGETS, NONTARGETS = arithmetic_scores(400, 7, 0.9), arithmetic_scores(1500, 11, 0.0)


# --- plain loops ------------------------------------------------------------------------------------------------------


@pairs
def test_rates_are_those_of_a_loop_over_all_thresholds(targets: list[float], nontargets: list[float]) -> None:
    assert list(zip(*map(list, rates(targets, nontargets)), strict=True)) == loop(targets, nontargets)


@pairs
def test_the_eer_lies_where_the_loop_crosses(targets: list[float], nontargets: list[float]) -> None:
    rows = loop(targets, nontargets)
    for (_, far, frr), (_, next_far, next_frr) in pairwise(rows):
        if far >= frr and next_far <= next_frr:  # the lines far + s Δfar and frr + s Δfrr meet at s
            share = (far - frr) / ((far - frr) - (next_far - next_frr))
            assert eer(targets, nontargets) == pytest.approx(far + share * (next_far - far), abs=1e-12)
            return
    raise AssertionError("no crossing")


@pairs
def test_min_dcf_is_the_least_cost_of_the_loop(targets: list[float], nontargets: list[float]) -> None:
    for p, miss, false_alarm in ((0.01, 1, 1), (0.5, 1, 1), (0.3, 10, 2)):
        costs = [miss * p * frr + false_alarm * (1 - p) * far for _, far, frr in loop(targets, nontargets)]
        wanted = min(costs) / min(miss * p, false_alarm * (1 - p))
        assert min_dcf(targets, nontargets, p, miss, false_alarm) == pytest.approx(wanted)


@pairs
def test_frr_at_far_and_its_threshold_are_the_first_of_the_loop(targets: list[float], nontargets: list[float]) -> None:
    others = nontargets * 20  # enough for a FAR of one half
    for wanted in (0.5, 0.75, 1.0):
        threshold, _, frr = next(row for row in loop(targets, others) if row[1] <= wanted)
        assert (threshold_at_far(targets, others, wanted), frr_at_far(targets, others, wanted)) == (threshold, frr)


@pairs
def test_the_threshold_at_an_frr_is_the_last_of_the_loop(targets: list[float], nontargets: list[float]) -> None:
    own = targets * 20
    threshold = [row[0] for row in loop(own, nontargets) if row[2] <= 0.5][-1]
    assert threshold_at_frr(own, nontargets, 0.5) == threshold


@pairs
def test_auc_counts_pairs_and_halves_ties(targets: list[float], nontargets: list[float]) -> None:
    won = sum((t > n) + 0.5 * (t == n) for t in targets for n in nontargets)
    assert auc(targets, nontargets) == pytest.approx(won / (len(targets) * len(nontargets)))


@pairs
def test_the_det_curve_has_the_same_corners_and_no_point_between(targets: list[float], nontargets: list[float]) -> None:
    found = det(targets, nontargets)
    points = [(far, frr) for _, far, frr in loop(targets, nontargets)]
    corners = [
        here
        for i, here in enumerate(points)
        if not 0 < i < len(points) - 1
        or not any(points[i - 1][axis] == here[axis] == points[i + 1][axis] for axis in (0, 1))
    ]
    assert list(zip(found.far, found.frr, strict=True)) == corners


@given(st.data())
def test_searches_at_rank_one_are_those_of_a_loop(data: st.DataObject) -> None:
    scores = data.draw(arrays(np.float64, (6, 3), elements=st.integers(0, 4).map(float)))
    owner = np.array([0, 1, 2, -1, -1, 0])
    for t in (0.0, 1.0, 2.0, 3.0, 4.0, 5.0):
        missed = found = 0
        for row, own in zip(scores, owner, strict=True):
            if own >= 0:
                others = [score for j, score in enumerate(row) if j != own]
                missed += not (row[own] >= t and row[own] > max(others))
            else:
                found += max(row) >= t
        far, frr = rates_at(*searches(scores, owner), threshold=t)
        assert (far, frr) == (found / 2, missed / 4)


def test_an_enrolled_person_who_is_never_first_is_missed_at_every_fpir() -> None:
    scores = np.concatenate([[[0.1, 0.9]], np.full((10, 2), 0.5)])
    assert fnir_at_fpir(scores, [0] + 10 * [-1], fpir=1.0) == 1.0


# --- closed forms -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("distance", [0.5, 2.0, 3.0])
def test_two_gaussians_at_distance_d_have_the_eer_of_the_tail_at_half_of_it(distance: float) -> None:
    quantiles = (np.arange(20_000) + 0.5) / 20_000
    others = np.array([NormalDist().inv_cdf(q) for q in quantiles])
    own = others + distance
    assert eer(own, others) == pytest.approx(NormalDist().cdf(-distance / 2), abs=1e-4)
    assert auc(own, others) == pytest.approx(NormalDist().cdf(distance / 2**0.5), abs=1e-4)
    miss = NormalDist().cdf(NormalDist().inv_cdf(0.99) - distance)  # the share of targets below the 99 % quantile
    assert frr_at_far(own, others, 0.01) == pytest.approx(miss, abs=1e-3)


def test_a_log_likelihood_ratio_of_gaussians_is_calibrated_already() -> None:
    quantiles = (np.arange(5_000) + 0.5) / 5_000
    others = np.array([NormalDist().inv_cdf(q) for q in quantiles])
    own, distance = others + 2, 2.0
    llr = [distance * scores - distance**2 / 2 for scores in (own, others)]
    assert cllr(*llr) == pytest.approx(min_cllr(*llr), abs=2e-3)
    assert min_cllr(own, others) == min_cllr(*llr)


def test_one_percent_of_a_hundred_is_one_percent() -> None:
    others = np.arange(1000) / 1000  # 1 − 990/1000 is 0.010000000000000009
    assert threshold_at_far([0.5], others, 0.01) == 0.99


# --- scikit-learn -----------------------------------------------------------------------------------------------------


def test_auc_and_det_are_scikit_learns() -> None:
    scores = np.concatenate([TARGETS, NONTARGETS])
    labels = np.repeat([1, 0], [len(TARGETS), len(NONTARGETS)])
    assert auc(TARGETS, NONTARGETS) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)
    far, frr, thresholds = det_curve(labels, scores, drop_intermediate=False)
    ours = rates(TARGETS, NONTARGETS)
    for t, wanted_far, wanted_frr in zip(thresholds[::-1], far[::-1], frr[::-1], strict=True):
        place = np.searchsorted(ours.thresholds, t)
        assert (ours.far[place], ours.frr[place]) == pytest.approx((wanted_far, wanted_frr), abs=1e-12)


def test_min_cllr_is_the_log_loss_of_scikit_learns_isotonic_regression() -> None:
    scores = np.concatenate([TARGETS, NONTARGETS])
    labels = np.repeat([1, 0], [len(TARGETS), len(NONTARGETS)])
    weights = np.repeat([1 / len(TARGETS), 1 / len(NONTARGETS)], [len(TARGETS), len(NONTARGETS)])  # even odds
    chance = IsotonicRegression(out_of_bounds="clip").fit(scores, labels, weights).predict(scores)
    wanted = log_loss(labels, chance, sample_weight=weights) / np.log(2)
    assert min_cllr(TARGETS, NONTARGETS) == pytest.approx(wanted, abs=1e-9)


# --- other toolkits ---------------------------------------------------------------------------------------------------


def test_figures_are_those_of_bob_measure() -> None:
    # bob.measure 6.1.1: farfrr, min_weighted_error_rate_threshold, far_threshold, calibration.cllr and, with 200,000
    # points, roc_auc_score of the same scores.
    assert rates_at(TARGETS, NONTARGETS, 0.5) == pytest.approx((0.11933333333333333, 0.195), abs=1e-12)
    assert min_dcf(TARGETS, NONTARGETS, p_target=0.5) == pytest.approx(0.15716666666666668 / 0.5, abs=1e-12)
    assert min_dcf(TARGETS, NONTARGETS, p_target=0.01) == pytest.approx(0.00625 / 0.01, abs=1e-12)
    assert frr_at_far(TARGETS, NONTARGETS, 0.01) == pytest.approx(0.525, abs=1e-12)
    assert frr_at_far(TARGETS, NONTARGETS, 0.1) == pytest.approx(0.22, abs=1e-12)
    assert cllr(TARGETS, NONTARGETS) == pytest.approx(0.782010619833583, abs=1e-12)
    assert auc(TARGETS, NONTARGETS) == pytest.approx(0.9315558333333334, abs=1e-9)


def test_the_eer_of_as_many_targets_as_nontargets_is_bob_measures() -> None:
    # bob.measure 6.1.1, eer; without ties and with equally many scores all definitions give the same.
    count = range(1, 501)
    own = [((7 * i * i + 31 * i) % 1009) / 1000 + i * 1e-7 for i in count]
    others = [((11 * i * i + 17 * i) % 1013) / 1000 - 0.5 - i * 1e-7 for i in count]
    assert eer(own, others) == pytest.approx(0.258, abs=1e-12)


def test_min_cllr_is_that_of_lir() -> None:
    # lir 0.1.29 (Netherlands Forensic Institute), metrics.cllr_min of the exponentials of the same scores.
    assert min_cllr(TARGETS, NONTARGETS) == pytest.approx(0.45037600640743036, abs=1e-12)


@pytest.mark.parametrize(
    ("threshold", "found", "false_alarms"),
    [(0.7, 0.44, 0.7777777777777778), (0.9, 0.38666666666666666, 0.4), (1.1, 0.28, 0.0)],
)
def test_open_set_rates_are_those_of_bob_measure(threshold: float, found: float, false_alarms: float) -> None:
    # bob.measure 6.1.1, detection_identification_rate and false_alarm_rate.
    table = np.array(
        [[((13 * i * i + 7 * i * j + 29 * j * j + i) % 1009) / 1009 for j in range(5)] for i in range(120)]
    )
    owner = np.array([i % 8 if i % 8 < 5 else -1 for i in range(120)])
    known = np.flatnonzero(owner >= 0)
    table[known, owner[known]] += 0.35
    fpir, fnir = rates_at(*searches(table, owner), threshold=threshold)
    assert (1 - fnir, fpir) == pytest.approx((found, false_alarms), abs=1e-12)


# --- people -----------------------------------------------------------------------------------------------------------


def drawn_people(people: int, each: int, seed: int = 0) -> Comparisons:
    """People around centres of their own, all of them strangers."""
    rng = np.random.default_rng(seed)
    x = np.repeat(rng.normal(size=(people, 6)), each, 0) + 0.8 * rng.normal(size=(people * each, 6))
    return comparisons(x, np.repeat(np.arange(people), each), enroll=2)


def test_comparisons_are_those_of_a_loop() -> None:
    rng = np.random.default_rng(0)
    x, who = rng.normal(size=(12, 3)), np.array([2, 0, 1, 0, 2, 1, 1, 0, 2, 2, 1, 0])
    found = comparisons(x, who, enroll=2)
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    templates, rest = [], []
    for person in range(3):
        mine = [i for i in range(12) if who[i] == person]
        mean = x[mine[:2]].sum(0)
        templates.append(mean / np.linalg.norm(mean))
        rest += mine[2:]
    wanted = sorted((p, who[i], i, float(templates[p] @ x[i])) for i in rest for p in range(3))
    got = sorted(zip(found.claimed, found.tested, found.example, found.scores, strict=True))
    assert [row[:3] for row in got] == [row[:3] for row in wanted]
    assert [row[3] for row in got] == pytest.approx([row[3] for row in wanted])


def test_an_interval_holds_its_figure_and_the_same_seed_gives_it_again() -> None:
    found = drawn_people(12, 8)
    once, again = (figures(found, {"eer": eer}, draws=200)["eer"] for _ in range(2))
    assert once == again
    assert once.low < once.value < once.high


def test_an_interval_over_people_is_wider_than_one_over_scores() -> None:
    found = drawn_people(10, 30)
    by_people = figures(found, {"eer": eer}, draws=200)["eer"]
    rng = np.random.default_rng(0)
    drawn = [rng.choice(found.targets, len(found.targets)) for _ in range(200)]
    others = [rng.choice(found.nontargets, len(found.nontargets)) for _ in range(200)]
    low, high = np.quantile([eer(t, n) for t, n in zip(drawn, others, strict=True)], [0.025, 0.975])
    assert by_people.high - by_people.low > 1.5 * (high - low)


def test_nineteen_of_twenty_intervals_hold_the_truth() -> None:
    # The truth: the EER of very many people of the same kind.
    many = drawn_people(200, 8, seed=1)
    truth = eer(many.targets, many.nontargets)
    kept = sum(
        interval.low <= truth <= interval.high
        for seed in range(2, 32)
        for interval in [figures(drawn_people(20, 8, seed), {"eer": eer}, draws=100)["eer"]]
    )
    assert kept >= 25  # of 30; 28 are expected, and of twenty people a bootstrap promises a little too much


def test_people_who_are_all_alike_have_an_interval_of_no_width() -> None:
    x = np.tile(np.eye(6), (4, 1))  # six people, four equal examples each
    found = comparisons(x, np.tile(np.arange(6), 4), enroll=1)
    assert figures(found, {"eer": eer, "auc": auc}, draws=50) == {"eer": (0.0, 0.0, 0.0), "auc": (1.0, 1.0, 1.0)}


def test_a_threshold_for_a_far_has_that_far_or_less_and_its_intervals() -> None:
    found = drawn_people(12, 8)
    got = threshold_for(found, far=0.05, draws=100)
    far, frr = rates_at(found.targets, found.nontargets, got.threshold)
    assert (got.far.value, got.frr.value, got.people) == (far, frr, 12)
    assert far <= 0.05
    assert got.far.low <= far <= got.far.high
    assert threshold_for(found, frr=0.2, draws=10).frr.value <= 0.2


def test_a_summary_has_the_figures_of_the_field() -> None:
    found = drawn_people(12, 8)
    got = summary(found, far=0.05, draws=20)
    assert got["eer"].value == eer(found.targets, found.nontargets)
    assert got["min_dcf"].value == min_dcf(found.targets, found.nontargets)
    assert got["frr_at_far"].value == frr_at_far(found.targets, found.nontargets, 0.05)


def test_examples_asked_about_at_once_are_their_mean_direction_each_in_one_question() -> None:
    rng = np.random.default_rng(0)
    people = rng.permutation(np.repeat([0, 1, 2], [9, 11, 8]))
    x = rng.normal(size=(28, 4))
    found = comparisons(x, people, enroll=2, ask=3)
    unit = [[z / np.linalg.norm(z) for z in x[people == person]] for person in range(3)]
    wanted = []
    for tested, own in enumerate(unit):
        for first in range(2, len(own) - 2, 3):
            asked = sum(own[first : first + 3])
            for claimed, other in enumerate(unit):
                enrolled = other[0] + other[1]
                cosine = asked @ enrolled / np.linalg.norm(asked) / np.linalg.norm(enrolled)
                wanted.append((tested, claimed, round(cosine, 9)))
    got = zip(found.tested, found.claimed, found.scores.round(9), strict=True)
    assert sorted((int(t), int(c), float(score)) for t, c, score in got) == sorted(wanted)
    assert len(np.unique(found.example)) == 2 + 3 + 2
    assert (found.ask, threshold_for(drawn_people(12, 8), far=0.05, draws=5).ask) == (3, 1)


def test_who_has_too_few_examples_for_one_question_is_named() -> None:
    told = refusal(lambda: comparisons(np.eye(8), [0, 0, 0, 0, 0, 1, 1, 1], enroll=2, ask=2))
    assert "of '1' 3 examples; wanted two people or more and over 3 examples of each: 2 are enrolled" in told
    assert "ask=0; wanted at least one" in refusal(lambda: comparisons(np.eye(4), [0, 0, 1, 1], enroll=1, ask=0))


def test_figures_of_few_people_have_no_intervals() -> None:
    found = comparisons(np.tile(np.eye(4), (2, 1)), np.tile(np.arange(4), 2), enroll=1)
    assert figures_for_json(found, {"eer": eer}) == {"eer": {"value": 0.0, "low": None, "high": None}}


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_a_far_that_the_nontargets_cannot_show_is_refused() -> None:
    told = refusal(partial(frr_at_far, [1.0], np.zeros(999), far=0.01))
    assert told.startswith("far=0.01 cannot be measured on 999 nontargets; wanted 1,000 or more (10/far)")
    assert frr_at_far([1.0], np.zeros(1000), far=0.01) == 0.0


@pytest.mark.parametrize(
    ("targets", "nontargets", "told"),
    [
        ([], [1.0], "targets have shape (0,); wanted a list of at least one score"),
        ([1.0], [[1.0]], "nontargets have shape (1, 1); wanted a list of at least one score"),
        ([float("nan")], [1.0], "targets have scores that are NaN or infinite; leave them out"),
        ([1.0], [-float("inf")], "nontargets have scores that are NaN or infinite; leave them out"),
    ],
)
def test_what_is_no_list_of_scores_is_refused(targets: list[float], nontargets: list[float], told: str) -> None:
    assert refusal(lambda: eer(targets, nontargets)) == told


def test_people_without_an_example_to_test_are_refused() -> None:
    assert "of '1' 2 examples; wanted two people or more and over 2" in refusal(
        lambda: comparisons(np.eye(5), [0, 0, 0, 1, 1], enroll=2)
    )


def test_an_interval_over_four_people_is_refused() -> None:
    found = comparisons(np.tile(np.eye(4), (2, 1)), np.tile(np.arange(4), 2), enroll=1)
    assert refusal(lambda: figures(found, {"eer": eer})).startswith("an interval over 4 people says nothing")


def test_both_or_neither_of_far_and_frr_are_refused() -> None:
    found = drawn_people(6, 4)
    assert "wanted one of them" in refusal(lambda: threshold_for(found))
    assert "wanted one of them" in refusal(lambda: threshold_for(found, far=0.5, frr=0.5))


def test_a_million_scores_take_a_moment() -> None:
    rng = np.random.default_rng(0)
    assert 0 < eer(rng.normal(size=10_000) + 1, rng.normal(size=1_000_000)) < 0.5
