"""The people behind error rates."""

import json

import numpy as np
import pytest

from fedaws.evaluate.comparisons import Comparisons, comparisons
from fedaws.evaluate.error_rates import eer, rates_at
from fedaws.evaluate.people import MOST_POINTS, examine_people
from helpers import refusal

NAMES = ["Ada", "Bo", "Cy"]


def of_three() -> Comparisons:
    """Two examples each. Ada's are accepted as Ada; Bo's second scores low; one of Cy's passes for Ada."""
    scores = {
        (0, 0): [0.9, 0.8], (1, 0): [0.1, 0.1], (2, 0): [0.2, 0.1],
        (0, 1): [0.3, 0.2], (1, 1): [0.7, 0.3], (2, 1): [0.1, 0.2],
        (0, 2): [0.75, 0.1], (1, 2): [0.1, 0.2], (2, 2): [0.9, 0.85],
    }  # fmt: skip
    rows = [
        (s, claimed, tested, 2 * tested + n) for (claimed, tested), two in scores.items() for n, s in enumerate(two)
    ]
    score, claimed, tested, example = zip(*rows, strict=True)
    return Comparisons(np.array(score), np.array(claimed), np.array(tested), np.array(example))


def test_goats_lambs_and_pairs_are_counted_by_hand() -> None:
    found = examine_people(of_three(), NAMES)
    assert 0.3 < found["at"] <= 0.7  # one of 6 own rejected, one of 12 others accepted
    each = {line["name"]: (line["examples"], line["frr"], line["far"]) for line in found["each"]}
    assert each == {"Ada": (2, 0.0, 0.25), "Bo": (2, 0.5, 0.0), "Cy": (2, 0.0, 0.0)}
    assert [line["name"] for line in found["each"]] == ["Bo", "Ada", "Cy"]  # the worst first
    assert found["pairs"] == [{"tested": "Cy", "taken": "Ada", "share": 0.5, "examples": 2}]


def test_everything_is_of_the_same_scores() -> None:
    found = of_three()
    told = examine_people(found, NAMES)
    assert told["eer"]["value"] == eer(found.targets, found.nontargets)
    assert (told["people"], told["same"], told["other"]) == (3, 6, 12)
    assert (sum(told["histogram"]["same"]), sum(told["histogram"]["other"])) == (6, 12)
    for line in told["thresholds"]:
        assert (line["far"]["value"], line["frr"]["value"]) == rates_at(
            found.targets, found.nontargets, line["threshold"]
        )
    json.dumps(told, allow_nan=False)


def test_an_interval_needs_five_people() -> None:
    rng = np.random.default_rng(0)
    centres, who = rng.normal(size=(6, 8)), np.repeat(np.arange(6), 12)
    found = comparisons(centres[who] + rng.normal(size=(72, 8)), who, enroll=4)
    told = examine_people(found, [str(n) for n in range(6)], draws=50)
    assert told["eer"]["low"] <= told["eer"]["value"] <= told["eer"]["high"]
    assert examine_people(of_three(), NAMES)["eer"]["low"] is None


def test_a_rate_that_few_scores_cannot_show_has_no_threshold() -> None:
    rng = np.random.default_rng(0)
    who = np.repeat(np.arange(6), 12)
    found = comparisons(
        rng.normal(size=(6, 8))[who] + rng.normal(size=(72, 8)), who, enroll=4
    )  # 6 · 8 · 5 = 240 of two
    told = [line["wanted"] for line in examine_people(found, [""] * 6, draws=2)["thresholds"]]
    assert told == ["equal error rate", "FAR 10 %", "FAR 5 %"]


def test_a_curve_of_many_scores_stays_small_and_keeps_its_ends() -> None:
    rng = np.random.default_rng(0)
    who = np.repeat(np.arange(20), 60)
    found = comparisons(rng.normal(size=(20, 8))[who] + rng.normal(size=(1200, 8)), who)
    curve = examine_people(found, [""] * 20, draws=2)["det"]
    assert len(curve["far"]) <= MOST_POINTS
    assert (curve["far"][0], curve["frr"][0], curve["far"][-1], curve["frr"][-1]) == (1, 0, 0, 1)


@pytest.mark.parametrize("same", [True, False])
def test_scores_of_one_kind_alone_are_refused(same: bool) -> None:
    one = Comparisons(np.array([0.1, 0.2]), np.array([0, 0]), np.array([0, 0]) + (not same), np.arange(2))
    assert "one of them is missing" in refusal(lambda: examine_people(one, NAMES))
