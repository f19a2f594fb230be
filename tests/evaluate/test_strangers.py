"""The open set: error rates on people who took no part."""

import pytest
import torch
from torch import nn

from fedaws.data.strangers import Strangers
from fedaws.evaluate import Model
from fedaws.evaluate.strangers import check_strangers, open_set
from helpers import refusal

MODEL = Model(nn.Identity(), {}, torch.eye(2))


def two(per_person: int, wrong: int) -> Strangers:
    """Two people at right angles, both enrolled by one example; of the first so many later ones are the second's."""
    own = torch.tensor([[1.0, 0.0]])
    other = torch.tensor([[0.0, 1.0]])
    ada = torch.cat([own.repeat(per_person - wrong, 1), other.repeat(wrong, 1)])
    return Strangers(
        torch.cat([ada, other.repeat(per_person, 1)]), torch.tensor([3, 8]).repeat_interleave(per_person), ("ada", "bo")
    )


def test_the_equal_error_rate_of_two_people_of_whom_one_is_half_mistaken() -> None:
    # 10 later examples each: of Ada's 5 score 0 against herself and 1 against Bo. FAR = FRR = 5/20 at the threshold 1.
    assert open_set(MODEL, two(11, wrong=5), enroll=1) == {"strangers_eer": pytest.approx(0.25)}


def test_with_a_thousand_comparisons_of_two_people_rejections_at_one_percent_are_counted() -> None:
    assert set(open_set(MODEL, two(500, wrong=0), enroll=1)) == {"strangers_eer"}  # 998
    found = open_set(MODEL, two(501, wrong=0), enroll=1, part="test_strangers")
    assert found == {"test_strangers_eer": 0, "test_strangers_frr": 0}


def test_a_stranger_with_too_few_examples_is_named_before_training() -> None:
    few = Strangers(torch.ones(5, 2), torch.tensor([4, 4, 4, 9, 9]), ("ada", "bo"))
    check_strangers("strangers", few, enroll=1)
    assert "strangers: 'bo' has 2 examples, and 2 enrol" in refusal(lambda: check_strangers("strangers", few, 2))


def test_more_comparisons_than_a_measurement_should_take_are_refused() -> None:
    people = torch.arange(8000).repeat_interleave(2)
    many = Strangers(torch.ones(16000, 1), people, tuple(map(str, range(8000))))
    assert "8,000 people are 64,000,000 comparisons" in refusal(lambda: check_strangers("strangers", many, 1))
