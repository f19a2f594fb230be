"""From arrays to a federation: who gets which examples, and what is refused."""

from itertools import chain, pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from torch.utils.data import TensorDataset

from fedaws import FederatedData, from_arrays, from_dataset
from fedaws.data.arrays import as_features
from fedaws.data.federated import as_input
from fedaws.data.label_sets import from_sparse
from helpers import dense, refusal

X = np.arange(12, dtype=np.float32).reshape(6, 2)
Y = np.array([0, 1, 2, 0, 1, 2])


def numbered(labels: list[int], **options: Any) -> FederatedData:
    """A federation in which example i is the number i, so that it can be followed."""
    return from_arrays(np.arange(len(labels), dtype=np.float32)[:, None], labels, **options)


def clients(data: FederatedData) -> list[list[int]]:
    """The example numbers of each client."""
    ids = dense(data.x)[:, 0].long().tolist()
    starts = data.starts.tolist()
    return [ids[a:b] for a, b in pairwise(starts)]


# --- partitions -----------------------------------------------------------------------------------------------------


def test_each_client_is_a_class_in_the_papers_setting() -> None:
    data = numbered([1, 0, 1, 2])
    assert clients(data) == [[1], [0, 2], [3]]
    assert data.class_of.tolist() == [0, 1, 2]
    assert data.num_examples.tolist() == [1, 2, 1]


LABELS = st.lists(st.integers(0, 3), min_size=4, max_size=40).map(lambda rest: [0, 1, 2, 3, *rest])


@given(LABELS, st.integers(1, 3), st.integers(1, 2), st.integers(0, 5))
def test_every_example_is_with_exactly_one_client(
    labels: list[int], per_class: int, per_client: int, seed: int
) -> None:
    data = numbered(labels, clients_per_class=per_class, classes_per_client=per_client, seed=seed)
    assert sorted(chain(*clients(data))) == list(range(len(labels)))
    assert data.y.tolist() == [labels[int(i)] for i in dense(data.x)[:, 0]]


@given(LABELS, st.integers(1, 4), st.integers(0, 5))
def test_each_client_has_one_class_and_the_clients_of_a_class_share_it_evenly(
    labels: list[int], per_class: int, seed: int
) -> None:
    data = numbered(labels, clients_per_class=per_class, seed=seed)
    parts = clients(data)
    assert len(parts) == 4 * per_class
    for client, ids in enumerate(parts):
        assert {labels[i] for i in ids} <= {int(data.class_of[client])}
    for c in range(4):
        sizes = [len(parts[i]) for i in range(len(parts)) if data.class_of[i] == c]
        assert max(sizes) - min(sizes) <= 1


@given(LABELS, st.integers(1, 2))
def test_a_client_of_two_classes_has_its_own_and_the_next(labels: list[int], per_class: int) -> None:
    data = numbered(labels * 4, classes_per_client=2, clients_per_class=per_class)
    for client, ids in enumerate(clients(data)):
        own = int(data.class_of[client, 0])
        assert {(labels * 4)[i] for i in ids} == {own, (own + 1) % 4}


def test_another_seed_deals_the_examples_out_differently() -> None:
    deals = [clients(numbered([0] * 20 + [1] * 20, clients_per_class=2, seed=seed)) for seed in (0, 1)]
    assert deals[0] != deals[1]


def test_classes_beyond_the_labels_have_clients_that_are_never_available() -> None:
    data = numbered([0, 1, 3], num_classes=6)
    assert data.num_classes == 6
    assert data.num_examples.tolist() == [1, 1, 0, 1, 0, 0]
    assert data.available.tolist() == [0, 1, 3]


def test_more_clients_than_examples_leaves_some_without() -> None:
    data = numbered([0, 0, 1], clients_per_class=3)
    assert data.num_examples.sort().values.tolist() == [0, 0, 0, 1, 1, 1]
    assert len(data.available) == 3


@pytest.mark.parametrize("options", [{"clients_per_class": 0}, {"classes_per_client": 0}, {"classes_per_client": 4}])
def test_a_partition_that_cannot_be_is_refused(options: dict[str, int]) -> None:
    key, value = next(iter(options.items()))
    assert f"{key}={value}" in refusal(lambda: numbered([0, 1, 2], **options))


# --- hold-out -------------------------------------------------------------------------------------------------------


@given(st.integers(8, 60), st.floats(0.1, 0.6), st.integers(0, 9))
def test_what_is_held_out_is_not_trained_on(count: int, fraction: float, seed: int) -> None:
    data = numbered([i % 2 for i in range(count)], validation=fraction, seed=seed, num_classes=2)
    trained, held_out = dense(data.x)[:, 0].long().tolist(), dense(data.x_test)[:, 0].long().tolist()
    assert sorted(trained + held_out) == list(range(count))
    assert len(held_out) == round(fraction * count)


def test_a_number_of_examples_can_be_held_out() -> None:
    assert len(numbered([0, 1] * 10, validation=5).x_test) == 5


def test_held_out_examples_keep_their_labels() -> None:
    data = numbered([0, 1] * 10, validation=0.5)
    assert data.y_test.tolist() == [int(i) % 2 for i in dense(data.x_test)[:, 0]]


def test_held_out_examples_beside_a_test_set_are_refused() -> None:
    message = refusal(lambda: from_arrays(X, Y, X, Y, validation=1))
    assert "validation=1 tests on a part of the training examples, but there is a test set too" in message


def test_data_say_what_they_are_tested_on() -> None:
    assert from_arrays(X, Y, X, Y).tested_on == "test"
    assert from_arrays(X, Y).tested_on == "training"
    assert numbered([0, 1] * 10, validation=5).tested_on == "held-out"


def test_data_say_the_shape_of_an_example() -> None:
    assert from_arrays(np.zeros((4, 3, 2)), [0, 1, 0, 1]).example_shape == (3, 2)
    sparse = csr_matrix([[0, 1.0, 0], [2.0, 0, 0]])
    assert from_sparse(sparse, csr_matrix([[1, 0], [0, 1]])).example_shape == (3,)


def test_labels_that_are_words_are_refused_with_the_way_to_number_them() -> None:
    message = refusal(lambda: from_arrays(X, ["a", "b", "c"] * (len(X) // 3) + ["a"] * (len(X) % 3)))
    assert "y is an array of str_" in message
    assert "np.unique(y, return_inverse=True)" in message


@pytest.mark.parametrize("dtype", [np.longdouble, np.clongdouble])
def test_numbers_of_more_than_64_bits_are_refused(dtype: type) -> None:
    assert "wanted numbers of at most 64 bits" in refusal(lambda: from_arrays(X.astype(dtype), Y))


@pytest.mark.parametrize("validation", [20, 21, 0.999, -0.5])
def test_holding_out_nothing_or_everything_is_refused(validation: float) -> None:
    assert "validation=" in refusal(lambda: numbered([0, 1] * 10, validation=validation))


def test_a_class_that_is_held_out_whole_is_refused() -> None:
    message = refusal(lambda: numbered([0] * 5 + [1] * 5 + [2], validation=10))
    assert "has no training example" in message
    assert "lower validation" in message


# --- what may come in -----------------------------------------------------------------------------------------------


def test_without_a_test_set_the_training_examples_are_tested_on() -> None:
    data = from_arrays(X, Y)
    assert data.x_test.tolist() == X.tolist()
    assert data.y_test.tolist() == Y.tolist()


@pytest.mark.parametrize(
    "x",
    [
        X.tolist(),
        X.astype(np.float64),
        X.astype(np.float16),
        X.astype(np.int64),
        X.astype(np.uint16),
        X.astype(">f4"),
        X[::-1][::-1],
        np.asfortranarray(X),
        np.broadcast_to(X, X.shape),  # read-only
        torch.from_numpy(X),
        torch.from_numpy(X).to(torch.bfloat16),
        torch.from_numpy(X).requires_grad_(),
    ],
    ids=lambda x: f"{type(x).__name__}-{getattr(x, 'dtype', '')}",
)
def test_examples_may_be_of_any_real_type(x: object) -> None:
    features = as_features(x)
    assert features.dtype == torch.float32
    assert not features.requires_grad
    assert features.tolist() == X.tolist()


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.uint16, np.int32, np.uint64, ">i4"])
def test_labels_may_be_of_any_integer_type(dtype: str) -> None:
    assert from_arrays(X, Y.astype(dtype)).y.dtype == torch.int64


def test_bytes_stay_bytes_and_become_fractions_for_the_encoder() -> None:
    data = from_arrays(np.array([[0], [51], [255]], dtype=np.uint8), [0, 1, 1])
    assert data.x.dtype == torch.uint8
    torch.testing.assert_close(as_input(data.x), torch.tensor([[0.0], [0.2], [1.0]]))
    assert data.x.tolist() == [[0], [51], [255]]  # not changed in place


def test_numbers_reach_the_encoder_as_they_are() -> None:
    x = torch.tensor([[3.0]])
    assert as_input(x) is x


def test_examples_may_be_images() -> None:
    assert from_arrays(np.zeros((2, 3, 8, 8)), [0, 1]).x.shape == (2, 3, 8, 8)


def test_class_names_come_along() -> None:
    assert from_arrays(X, Y, class_names=["a", "b", "ü"]).class_names == ("a", "b", "ü")


def test_a_torch_dataset_will_do() -> None:
    train = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    data = from_dataset(train, TensorDataset(torch.ones(1, 2), torch.tensor([2])), clients_per_class=2)
    assert data.num_examples.tolist() == [1] * 6
    assert data.y_test.tolist() == [2]


def test_a_dataset_may_give_plain_numbers() -> None:
    assert from_dataset([([1.0, 2.0], 0), ([3.0, 4.0], 1)]).num_examples.tolist() == [1, 1]


# --- what may not ---------------------------------------------------------------------------------------------------


def changed(array: np.ndarray, value: float) -> np.ndarray:
    array = array.copy()
    array[2] = value
    return array


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ((changed(X, np.nan), Y), ["x has NaN or infinite values", "first in example 2", "1 rows"]),
        ((changed(X, np.inf), Y), ["x has NaN or infinite values"]),
        ((X.astype(np.float64) * 1e39, Y), ["x has NaN or infinite values"]),  # not finite as float32
        ((X, Y, changed(X, np.nan), Y), ["x_test has NaN"]),
        ((X, Y.astype(float)), ["y is torch.float64", "wanted integer labels"]),
        ((X, Y.astype(str)), ["y is an array of str_", "wanted integer labels"]),
        ((X, Y > 0), ["y is torch.bool", "wanted integer labels"]),
        ((X, Y - 1), ["y has the negative label -1"]),
        ((X, Y[:, None]), ["y has shape (6, 1)", "one label per example"]),
        ((X, Y.astype(object)), ["y is an array of object_"]),
        ((X.astype(object), Y), ["x is an array of object_", "wanted numbers"]),
        ((X.astype(complex), Y), ["x is torch.complex128", "real numbers"]),
        ((X > 3, Y), ["x is torch.bool"]),
        (("words", Y), ["x is an array of str_"]),
        (([[1.0, 2.0], [3.0]], [0, 1]), ["x is not an array", "wanted numbers"]),
        ((X[:, 0], Y), ["x has shape (6,)", "wanted [examples, …]"]),
        ((X[:0], Y[:0]), ["x has shape (0, 2)", "at least one example"]),
        ((X, Y, X[:0], Y[:0]), ["x_test has shape (0, 2)"]),
        ((X[:5], Y), ["x has 5 examples, y 6 labels"]),
        ((X, Y, X, Y[:4]), ["x_test has 6 examples, y_test 4 labels"]),
        ((X, Y, X), ["x_test and y_test come together"]),
        ((X, Y, X[:, :1], Y), ["x has examples of shape (2,)", "x_test of shape (1,)"]),
        ((X.astype(np.uint8), Y, X, Y), ["type uint8", "x_test", "type float32"]),
        ((X, Y * 0), ["only one class"]),
        ((X, Y * 2), ["class 1 has no training example (2 of 5 classes have none)", "set num_classes=5"]),
        ((X, Y + 1), ["class 0 has no training example (1 of 4"]),
        ((X, Y, X, Y + 1), ["class 3 has no training example (1 of 4"]),
        ((X, Y * 10**12), ["class 1 has no training example"]),  # and no memory is taken for 2 × 10¹² classes
    ],
)
def test_unsound_arrays_are_refused(arguments: tuple[object, ...], parts: list[str]) -> None:
    message = refusal(lambda: from_arrays(*arguments))
    for part in parts:
        assert part in message


def test_a_label_beyond_the_declared_classes_is_refused() -> None:
    assert "raise num_classes to 3" in refusal(lambda: from_arrays(X, Y, num_classes=2))


def test_class_names_must_be_as_many_as_classes() -> None:
    assert "2 names for 3 classes" in refusal(lambda: from_arrays(X, Y, class_names=["a", "b"]))


@pytest.mark.parametrize(
    "dataset",
    [[], [1, 2], [(torch.ones(2), 0), (torch.ones(3), 1)], [("picture", 0)], iter([(torch.ones(2), 0)])],
    ids=["empty", "no pairs", "two shapes", "strings", "no length"],
)
def test_a_dataset_that_is_not_pairs_of_tensors_is_refused(dataset: object) -> None:
    assert "the dataset is not one of (x, y) pairs" in refusal(lambda: from_dataset(dataset))


@given(st.lists(st.integers(0, 4), min_size=10, max_size=60), st.floats(0.2, 0.7), st.integers(0, 5))
def test_validation_by_class_takes_its_part_of_every_class_and_leaves_one(
    labels: list[int], part: float, seed: int
) -> None:
    labels = [0, 0, 0, 0, 1, 1, 1, 1, *labels]
    data = numbered(labels, validation=part, validation_by="class", seed=seed, num_classes=5)
    held = round(part * len(labels)) / len(labels)
    for number in range(5):
        count = labels.count(number)
        got = int((data.y_test == number).sum())
        assert abs(got - min(held * count, max(count - 1, 0))) <= 0.5
        assert count == 0 or got < count
    assert len(data.x) + len(data.x_test) == len(labels)


def test_validation_by_class_leaves_a_class_of_few_examples_some_to_train() -> None:
    labels = [0] * 5 + [1] * 5 + [2]
    assert "set validation_by=class" in refusal(lambda: numbered(labels, validation=10))
    assert numbered(labels, validation=5, validation_by="class").num_examples.tolist() == [3, 3, 1]


def test_validation_by_class_without_validation_is_refused() -> None:
    told = refusal(lambda: numbered([0, 1] * 10, validation_by="class"))
    assert "validation_by=class has no effect on validation=0" in told
    assert "holds out no example of any class" in refusal(
        lambda: numbered(list(range(20)), validation=1, validation_by="class")
    )
