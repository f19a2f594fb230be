"""Who has which examples: class → its positives."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, overload

import torch
from torch import Tensor

from fedaws.data.arrays import as_features, as_labels, channels_last, checked_names, stacked_pairs
from fedaws.data.partition import TestedOn, deal_out, hold_out, what_is_tested
from fedaws.data.strangers import Part, Strangers, Wanted, draw_strangers, renumbered, strangers_of
from fedaws.errors import FedawsError
from fedaws.sparse import Rows, SparseRows
from fedaws.types import ClassFacts

_MOST_HASHED = 1 << 26  # bytes


@dataclass(frozen=True, repr=False)
class FederatedData:
    """Training examples sorted by client, and a test set; made by :func:`from_arrays` and the like.

    Client i has the examples `starts[i]` up to `starts[i + 1]`; a client without any is never picked and keeps its row.
    """

    x: Rows  # [N, …]
    y: Tensor  # [N]
    starts: Tensor  # [clients + 1]
    class_of: Tensor  # [clients] the class of each client, or [clients, k] where each has k
    num_classes: int
    x_test: Rows
    y_test: Rows  # [N'] or, where an example may have several labels, a set for each
    class_names: tuple[str, ...] | None = None
    label_weights: Tensor | None = None  # [classes] 1 / propensity of a label, for label sets
    tested_on: TestedOn = "test"  # what x_test is: examples of its own, held out of the training ones, or these again
    class_facts: ClassFacts | None = None  # what the server may know of the classes
    strangers: Strangers | None = None  # classes without a client, to choose by
    test_strangers: Strangers | None = None  # and others, for the final figure alone
    first_client: int = 0  # the number from which the first client here draws its batches: a node has only itself

    @property
    def example_shape(self) -> tuple[int, ...]:
        """Of one example: its features, also of sparse ones, or channels, height and width."""
        return tuple(self.x.shape[1:])

    @property
    def num_examples(self) -> Tensor:
        """n_i of each client."""
        return self.starts.diff()

    @property
    def available(self) -> Tensor:
        """The clients that have examples."""
        return self.num_examples.nonzero().squeeze(1)

    @property
    def apart(self) -> dict[Part, Strangers]:
        """The classes without a client, by what they are for."""
        parts: dict[Part, Strangers | None] = {"strangers": self.strangers, "test_strangers": self.test_strangers}
        return {part: strangers for part, strangers in parts.items() if strangers is not None}

    def digest(self) -> str:
        """What tells these training examples from others: a hash of who has which, and of their numbers, or some."""
        total = hashlib.sha256()
        numbers = self.x if isinstance(self.x, Tensor) else self.x.indices
        step = max(1, numbers.nbytes // _MOST_HASHED)
        strangers = (part for each in self.apart.values() for part in (each.people, each.x))
        for part in (self.y, self.starts, numbers[::step], *strangers):
            total.update(part.detach().cpu().contiguous().numpy().tobytes())
        return total.hexdigest()[:16]

    def __repr__(self) -> str:
        """Without the numbers."""
        clients = f"{len(self.class_of):,} clients, {self.num_classes:,} classes"
        examples = f"{len(self.y):,} examples of shape {self.example_shape}"
        return f"FederatedData({examples} with {clients}, {len(self.x_test):,} test examples)"

    def to(self, device: torch.device) -> "FederatedData":
        """The same data on a device."""
        moved: dict[str, Any] = {
            k: v.to(device)
            for k, v in vars(self).items()
            if isinstance(v, Tensor | SparseRows | ClassFacts | Strangers)
        }
        return replace(self, **moved)


def from_arrays(
    x: Any,
    y: Any,
    x_test: Any = None,
    y_test: Any = None,
    *,
    num_classes: int | None = None,
    clients_per_class: int = 1,
    classes_per_client: int = 1,
    validation: float = 0.0,
    validation_by: Literal["example", "class"] = "example",
    class_names: Sequence[str] | None = None,
    class_features: Any = None,
    strangers: Wanted = 0.0,
    test_strangers: Wanted = 0.0,
    strangers_seed: int = 0,
    seed: int = 0,
) -> FederatedData:
    """A federation from arrays (NumPy or torch): every class with clients of its own.

    Parameters
    ----------
    x, y
        Examples [N, …], bytes being divided by 255, and their classes [N], whole numbers from 0 on.
    x_test, y_test
        The test set; by default the training examples are tested on, and `tested_on` of the result says so.
    num_classes
        How many rows W has, where that is more than y shows: the other classes have a row that is never trained.
    clients_per_class, classes_per_client
        How many clients share a class, or how many classes a client has.
    validation
        The fraction (< 1) or number (≥ 1) of training examples to take away and test on instead, for tuning.
    validation_by
        `example` draws them out of all, `class` the same part of every class as nearly as can be: where classes have
        few examples, one draw out of all may leave a class with none.
    class_names
        A name for each class.
    class_features
        What the server may know of the classes, [classes, f], for methods that make rows of it.
    strangers, test_strangers
        Classes without a client, to choose by, and others for the final figure alone: each a share (< 1), a number
        (≥ 1), or a list of names, in which * and ? stand for any letters; a class without a name goes by its number.
        They keep all of their examples; the other classes are numbered anew, in their order.
    strangers_seed
        Which strangers are drawn.
    seed
        Which examples are held out, and how they are dealt out to clients.

    Returns
    -------
    FederatedData
        What :func:`fedaws.train` trains on.

    Examples
    --------
    >>> data = from_arrays([[0.0], [1.0], [2.0]], [0, 1, 1])
    >>> data.num_examples.tolist()
    [1, 2]
    """
    features, labels = as_features(x, "x"), as_labels(y, "y")
    _same_length(features, labels, "x", "y")
    if (x_test is None) != (y_test is None):
        raise FedawsError("x_test and y_test come together: one of them is missing")
    tested_on = what_is_tested(x_test is not None, validation)
    test_features = features if x_test is None else as_features(x_test, "x_test")
    test_labels = labels if y_test is None else as_labels(y_test, "y_test")
    _same_length(test_features, test_labels, "x_test", "y_test")
    kind, test_kind = _kind(features), _kind(test_features)
    if kind != test_kind:  # of bytes and numbers only the bytes would be scaled to 0 … 1
        raise FedawsError(f"x has examples of {kind}, x_test of {test_kind}; make them equal")
    classes = _count_classes(labels, test_labels, num_classes)
    names = checked_names(class_names, classes)
    facts = None if class_features is None else _class_features(class_features, classes)
    apart = dict[Part, Strangers | None]()
    if strangers not in (0, None) or test_strangers not in (0, None):
        called = names or tuple(map(str, range(classes)))
        drawn = draw_strangers(labels.unique().tolist(), called, strangers, test_strangers, strangers_seed)
        away = [number for numbers in drawn.values() for number in numbers]
        sources = [(features, labels)] if x_test is None else [(features, labels), (test_features, test_labels)]
        apart = {part: strangers_of(sources, numbers, called) for part, numbers in drawn.items()}
        number = renumbered(classes, away)
        features, labels = _of_clients(features, number[labels])
        test_features, test_labels = _of_clients(test_features, number[test_labels])
        classes -= len(away)
        names = names and tuple(name for name, stays in zip(names, number >= 0, strict=True) if stays)
        facts = None if facts is None else facts[number >= 0]
    if validation_by == "class" and not validation:
        raise FedawsError("validation_by=class has no effect on validation=0; set validation, or leave it out")
    if validation:
        keep, held_out = hold_out(len(labels), validation, seed, labels if validation_by == "class" else None)
        test_features, test_labels = features[held_out], labels[held_out]
        features, labels = features[keep], labels[keep]
    if num_classes is None:
        fix = "lower validation or set validation_by=class" if validation else "renumber the labels"
        _no_empty_class(labels, classes, fix)
    order, starts, class_of = deal_out(labels, classes, clients_per_class, classes_per_client, seed)
    return FederatedData(
        x=channels_last(features[order]),
        y=labels[order],
        starts=starts,
        class_of=class_of,
        num_classes=classes,
        # In torch's own memory: NumPy's is aligned otherwise, and sums round otherwise.
        x_test=channels_last(test_features.clone()),
        y_test=test_labels,
        class_names=names,
        tested_on=tested_on,
        class_facts=None if facts is None else ClassFacts(features=facts),
        strangers=apart.get("strangers"),
        test_strangers=apart.get("test_strangers"),
    )


def _class_features(given: Any, classes: int) -> Tensor:
    features = as_features(given, "class_features").to(torch.float32)
    if features.ndim != 2 or len(features) != classes:
        raise FedawsError(
            f"class_features has shape {tuple(features.shape)}; wanted a row for each of {classes} classes"
        )
    return features


def from_dataset(dataset: Any, test: Any = None, **options: Any) -> FederatedData:
    """A federation from `torch` datasets.

    Parameters
    ----------
    dataset, test
        Datasets of (x, y) pairs, all x of one shape; `test` by default as in :func:`from_arrays`.
    options
        The other parameters of :func:`from_arrays`.

    Returns
    -------
    FederatedData
        What :func:`fedaws.train` trains on.

    Examples
    --------
    >>> from torch.utils.data import TensorDataset
    >>> from_dataset(TensorDataset(torch.eye(3), torch.tensor([0, 1, 2]))).num_classes
    3
    """
    x, y = stacked_pairs(dataset)
    x_test, y_test = (None, None) if test is None else stacked_pairs(test)
    return from_arrays(x, y, x_test, y_test, **options)


def _of_clients(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Without the rows of strangers, whose label is −1."""
    stays = y >= 0
    return x[stays], y[stays]


@overload
def as_input(x: Tensor) -> Tensor: ...
@overload
def as_input(x: Rows) -> Rows: ...
def as_input(x: Rows) -> Rows:
    """What an encoder is given: bytes (images, kept small in memory) as numbers from 0 to 1, all else as it is."""
    if isinstance(x, SparseRows):
        return x
    return x.to(torch.float32).div_(255) if x.dtype == torch.uint8 else x


def _kind(x: Tensor) -> str:
    return f"shape {tuple(x.shape[1:])} and type {str(x.dtype).removeprefix('torch.')}"


def _same_length(x: Tensor, y: Tensor, x_name: str, y_name: str) -> None:
    if len(x) != len(y):
        raise FedawsError(f"{x_name} has {len(x)} examples, {y_name} {len(y)} labels; make them equal")


def _count_classes(labels: Tensor, test_labels: Tensor, declared: int | None) -> int:
    highest = int(max(labels.max(), test_labels.max())) + 1
    classes = highest if declared is None else declared
    if highest > classes:
        raise FedawsError(f"label {highest - 1} does not fit num_classes={classes}; raise num_classes to {highest}")
    if classes < 2:
        raise FedawsError("only one class; wanted at least two, to tell apart")
    return classes


def _no_empty_class(labels: Tensor, classes: int, fix: str) -> None:
    seen = labels.unique()  # sorted
    if len(seen) == classes:
        return
    gaps = (seen != torch.arange(len(seen))).nonzero()  # before the first gap, the n-th label seen is n
    first = int(gaps[0]) if len(gaps) else len(seen)
    raise FedawsError(
        f"class {first} has no training example ({classes - len(seen)} of {classes} classes have none); "
        f"{fix}, or set num_classes={classes} to keep untrained rows for them"
    )
