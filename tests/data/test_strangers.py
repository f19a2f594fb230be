"""Classes without a client: who they are, and that nothing of them is trained on."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedaws
from fedaws import Config
from fedaws.data import FederatedData, load_data
from fedaws.data.strangers import Strangers, draw_strangers, renumbered
from helpers import dense, refusal

Y = np.repeat(np.arange(6), 3)
X = (10 * Y + np.tile(np.arange(3), 6))[:, None].astype(np.float32)  # 42: the third example of class 4
NAMES = ("Greek_alpha", "Greek_beta", "Latin_a", "Latin_b", "Latin_c", "Runes_f")


def data(**options: Any) -> FederatedData:
    return fedaws.from_arrays(X, Y, X + 0.5, Y, class_names=NAMES, **options)


def there(strangers: Strangers | None) -> Strangers:
    assert strangers is not None
    return strangers


def test_strangers_have_no_client_no_number_and_no_test_example_among_the_others() -> None:
    made = data(strangers=["Greek_beta", "Latin_c"])
    assert made.num_classes == len(made.class_of) == 4
    assert made.class_names == ("Greek_alpha", "Latin_a", "Latin_b", "Runes_f")
    for x, y in ((dense(made.x), made.y), (dense(made.x_test), dense(made.y_test))):
        assert (x[:, 0] // 10).unique().tolist() == [0, 2, 3, 5]
        assert [NAMES.index(made.class_names[c]) for c in y] == (x[:, 0] // 10).tolist()


def test_strangers_keep_all_their_examples_those_for_training_first() -> None:
    found = there(data(strangers=["Greek_beta", "Latin_c"]).strangers)
    assert found.names == ("Greek_beta", "Latin_c")
    assert found.x[:, 0].tolist() == [10, 11, 12, 40, 41, 42, 10.5, 11.5, 12.5, 40.5, 41.5, 42.5]
    assert found.people.tolist() == [1, 1, 1, 4, 4, 4] * 2


def test_without_a_test_set_no_example_of_a_stranger_is_there_twice() -> None:
    made = fedaws.from_arrays(X, Y, strangers=["1", "4"])
    assert there(made.strangers).x[:, 0].tolist() == [10, 11, 12, 40, 41, 42]


def test_an_alphabet_is_named_by_its_beginning() -> None:
    made = data(strangers=["Latin_[ab]"], test_strangers=["Greek_*"])
    assert there(made.strangers).names == ("Latin_a", "Latin_b")
    assert there(made.test_strangers).names == ("Greek_alpha", "Greek_beta")


@given(
    st.integers(8, 40),
    st.sampled_from([0.0, 0.25, 2, 3]),
    st.sampled_from([0.0, 0.25, 2, 3]),
    st.integers(0, 2**31 - 1),
)
def test_strangers_for_choosing_and_for_the_test_are_different_people(
    classes: int, tuning: float, final: float, seed: int
) -> None:
    drawn = draw_strangers(range(classes), list(map(str, range(classes))), tuning, final, seed)
    assert not set(drawn["strangers"]) & set(drawn["test_strangers"])
    for part, wanted in (("strangers", tuning), ("test_strangers", final)):
        assert len(set(drawn[part])) == (round(wanted * classes) if wanted < 1 else wanted)  # type: ignore[index]


def test_the_test_strangers_are_the_same_whatever_is_taken_to_choose_by() -> None:
    names = list(map(str, range(20)))
    some, more = (draw_strangers(range(20), names, wanted, 5, seed=3) for wanted in (0, 8))
    assert some["test_strangers"] == more["test_strangers"]


def test_another_seed_of_strangers_draws_others_and_another_seed_of_the_run_does_not() -> None:
    drawn = [there(data(strangers=3, **seeds).strangers).names for seeds in ({}, {"seed": 7}, {"strangers_seed": 1})]
    assert drawn[0] == drawn[1] != drawn[2]


def test_numbers_close_up_where_a_class_has_gone() -> None:
    assert renumbered(5, [0, 3]).tolist() == [-1, 0, 1, -1, 2]


def test_features_of_classes_go_with_their_classes() -> None:
    made = data(strangers=["Greek_*"], class_features=np.arange(12).reshape(6, 2))
    assert made.class_facts is not None
    assert made.class_facts.features is not None
    assert made.class_facts.features[:, 0].tolist() == [4, 6, 8, 10]


def test_held_out_examples_are_of_classes_with_a_client() -> None:
    made = fedaws.from_arrays(X, Y, strangers=["0", "1"], validation=3)
    assert len(made.y_test) == 3
    assert set((dense(made.x_test)[:, 0] // 10).tolist()) <= {2, 3, 4, 5}


def test_other_strangers_are_other_data() -> None:
    digests = {data(strangers=each).digest() for each in (["Latin_*"], 0.0)}
    assert len({*digests, data(strangers=["Latin_*"]).digest()}) == 2


def test_strangers_go_to_the_device_with_the_others() -> None:
    moved = data(strangers=2).to(torch.device("meta"))
    assert there(moved.strangers).x.device.type == "meta"


def test_the_settings_draw_them_from_any_data_of_one_label() -> None:
    cfg = Config().override(["data.strangers=['3', '[5-6]']", "data.test_strangers=0.2"])
    made = load_data(cfg)
    assert there(made.strangers).names == ("3", "5", "6")
    assert len(there(made.test_strangers).names) == 2
    assert made.num_classes == 5


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"strangers": ["Greek_alpa", "Latin_a"]}, "no class is called 'Greek_alpa'; did you mean 'Greek_alpha'?"),
        ({"strangers": 1}, "strangers=1 is one class; wanted 2 or more"),
        ({"strangers": ["Runes_f"]}, "is one class; wanted 2 or more"),
        ({"strangers": 5}, "strangers=5 and test_strangers=0 leave fewer than two of 6 classes to train"),
        ({"strangers": 2, "test_strangers": 3}, "leave fewer than two"),
        ({"strangers": 70}, "strangers=70 is 70 of 6 classes"),
        ({"strangers": 0.01}, "strangers=0.01 is 0 of 6 classes"),
        ({"strangers": 2.5}, "wanted a share of the classes below 1, or a whole number"),
        ({"strangers": float("nan")}, "wanted a share of the classes below 1, or a whole number"),
        ({"strangers": "Latin_*"}, "is a text; wanted a number, or a list of names: ['Latin_*']"),
        ({"strangers": ["Latin_*"], "test_strangers": ["*_a", "Greek_*"]}, "'Latin_a' is also one of test_strangers"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(options: dict[str, Any], told: str) -> None:
    assert told in refusal(lambda: data(**options))


def test_mistakes_in_settings_are_told_by_their_keys() -> None:
    cfg = Config().override(["data.strangers=9"])
    assert refusal(lambda: load_data(cfg)).startswith("data.strangers=9 and data.test_strangers=0 leave")


def test_sets_of_labels_have_no_strangers() -> None:
    cfg = Config().override(["data.name=xc-synthetic", "data.like=delicious", "data.strangers=5"])
    assert "delicious" not in (line := refusal(lambda: load_data(cfg)))
    assert "data.strangers: xc-synthetic has sets of labels" in line
