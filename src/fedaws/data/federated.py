"""Who has which examples: class → its positives, and their partition onto clients."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, overload

import numpy as np
import torch
from torch import Tensor

from fedaws.data.strangers import Part, Strangers, Wanted, draw_strangers, renumbered
from fedaws.errors import FedawsError
from fedaws.hashing import hash64
from fedaws.sparse import Rows, SparseRows, starts_of
from fedaws.types import ClassFacts

TestedOn = Literal["test", "held-out", "training"]
_LABELS = "integer labels 0 … classes − 1"
_MOST_HASHED = 1 << 26  # bytes


@dataclass(frozen=True, repr=False)
class FederatedData:
    """Training examples sorted by client, and a test set.

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
    """A federation from arrays (NumPy or torch): x [N, …] and integer labels y [N], and the same for testing.

    Without a test set the training examples are tested on. `validation` takes that fraction (< 1) or number (≥ 1) of
    the training examples away and tests on them instead, for tuning; `tested_on` of the result says which it was.
    They are drawn out of all, or with `validation_by="class"` as large a part of every class as can be: where classes
    have few examples, one draw out of all may leave a class with none.
    `num_classes` beyond what the labels show gives the other classes a row of W that is never trained. `class_features`
    [classes, f] is what the server may know of the classes, for methods that make rows of it.

    `strangers` are classes without a client, to choose by: a share (< 1), a number (≥ 1), or a list of names, in which
    * and ? stand for any letters; a class without a name goes by its number. `test_strangers` are others, for the final
    figure alone. Both keep all of their examples, the others are numbered anew, in their order. Which are drawn
    `strangers_seed` says, and not `seed`.

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
        apart = {part: _strangers(sources, numbers, called) for part, numbers in drawn.items()}
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
        x=_channels_last(features[order]),
        y=labels[order],
        starts=starts,
        class_of=class_of,
        num_classes=classes,
        # In torch's own memory: NumPy's is aligned otherwise, and sums round otherwise.
        x_test=_channels_last(test_features.clone()),
        y_test=test_labels,
        class_names=names,
        tested_on=tested_on,
        class_facts=None if facts is None else ClassFacts(features=facts),
        strangers=apart.get("strangers"),
        test_strangers=apart.get("test_strangers"),
    )


def _strangers(
    sources: Sequence[tuple[Tensor, Tensor]], numbers: Sequence[int], names: Sequence[str]
) -> Strangers | None:
    """The examples of these classes out of all (x, y)."""
    if not numbers:
        return None
    picked = [(x, y, torch.isin(y, torch.tensor(numbers))) for x, y in sources]
    x = torch.cat([x[rows] for x, _, rows in picked])
    people = torch.cat([y[rows] for _, y, rows in picked])
    return Strangers(_channels_last(x), people, tuple(names[number] for number in numbers))


def _of_clients(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Without the rows of strangers, whose label is −1."""
    stays = y >= 0
    return x[stays], y[stays]


def checked_names(names: Sequence[str] | None, classes: int) -> tuple[str, ...] | None:
    """The classes' names, if they have any: one for each, none twice."""
    if names is None:
        return None
    if len(names) != classes:
        raise FedawsError(f"class_names has {len(names)} names for {classes} classes; give one name per class")
    if len(set(names)) < classes:
        raise FedawsError("class_names has a name twice; give every class a name of its own")
    return tuple(names)


def _class_features(given: Any, classes: int) -> Tensor:
    features = as_features(given, "class_features").to(torch.float32)
    if features.ndim != 2 or len(features) != classes:
        raise FedawsError(
            f"class_features has shape {tuple(features.shape)}; wanted a row for each of {classes} classes"
        )
    return features


def what_is_tested(has_test: bool, validation: float) -> TestedOn:
    """What `tested_on` says; refuses two test sets."""
    if has_test and validation:
        raise FedawsError(
            f"validation={validation} tests on a part of the training examples, but there is a test set too; "
            "leave one of them out"
        )
    if validation:
        return "held-out"
    return "test" if has_test else "training"


def from_dataset(dataset: Any, test: Any = None, **options: Any) -> FederatedData:
    """A federation from `torch` datasets of (x, y) pairs; options as in :func:`from_arrays`.

    >>> from torch.utils.data import TensorDataset
    >>> from_dataset(TensorDataset(torch.eye(3), torch.tensor([0, 1, 2]))).num_classes
    3
    """
    x, y = _collect(dataset)
    x_test, y_test = (None, None) if test is None else _collect(test)
    return from_arrays(x, y, x_test, y_test, **options)


@overload
def as_input(x: Tensor) -> Tensor: ...
@overload
def as_input(x: Rows) -> Rows: ...
def as_input(x: Rows) -> Rows:
    """What an encoder is given: bytes (images, kept small in memory) as numbers from 0 to 1, all else as it is."""
    if isinstance(x, SparseRows):
        return x
    return x.to(torch.float32).div_(255) if x.dtype == torch.uint8 else x


def _collect(dataset: Any) -> tuple[Tensor, Tensor]:
    try:
        pairs = [dataset[i] for i in range(len(dataset))]
        if not pairs:
            raise ValueError("it is empty")
        xs, ys = zip(*((torch.as_tensor(x), torch.as_tensor(y)) for x, y in pairs), strict=True)
        return torch.stack(xs), torch.stack(ys)
    except (TypeError, ValueError, RuntimeError) as error:
        raise FedawsError(
            f"the dataset is not one of (x, y) pairs, all x of the same shape: {str(error).splitlines()[0]}"
        ) from None


def as_features(x: Any, name: str = "x") -> Tensor:
    """Examples [N, …] as float32, or bytes as they are; refused unless they are finite numbers."""
    features = _tensor(x, name, "numbers")
    if features.ndim < 2 or not features.numel():
        raise FedawsError(f"{name} has shape {tuple(features.shape)}; wanted [examples, …] with at least one example")
    if features.is_complex() or features.dtype == torch.bool:
        raise FedawsError(f"{name} is {features.dtype}; wanted real numbers")
    if features.dtype == torch.uint8:
        return features
    features = features.to(torch.float32)
    bad = (~features.flatten(1).isfinite().all(1)).nonzero()
    if len(bad):
        raise FedawsError(
            f"{name} has NaN or infinite values, first in example {int(bad[0])}; drop or mend {len(bad)} rows"
        )
    return features


def _channels_last(x: Tensor) -> Tensor:
    """Images in the memory layout in which pixels are whole and convolutions are fast; the same numbers."""
    return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x


def _kind(x: Tensor) -> str:
    return f"shape {tuple(x.shape[1:])} and type {str(x.dtype).removeprefix('torch.')}"


def as_labels(y: Any, name: str = "y") -> Tensor:
    """One class per example [N] as int64; refused unless they are integers from 0 on."""
    labels = _tensor(y, name, _LABELS)
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise FedawsError(f"{name} is {labels.dtype}; wanted {_LABELS}")
    if labels.ndim != 1:
        raise FedawsError(f"{name} has shape {tuple(labels.shape)}; wanted one label per example, [examples]")
    labels = labels.to(torch.int64)
    if len(labels) and int(labels.min()) < 0:
        raise FedawsError(f"{name} has the negative label {int(labels.min())}; wanted {_LABELS}")
    return labels


def _tensor(values: Any, name: str, wanted: str) -> Tensor:
    """A CPU tensor, from NumPy also where torch itself is choosy: reversed, read-only, of the other byte order."""
    if isinstance(values, Tensor):
        return values.detach().cpu()
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise FedawsError(f"{name} is not an array: {error}; wanted {wanted}") from None
    if array.dtype.kind not in "biufc":
        fix = "; names, y = np.unique(y, return_inverse=True) numbers them" if wanted == _LABELS else ""
        raise FedawsError(f"{name} is an array of {array.dtype.type.__name__}; wanted {wanted}{fix}")
    if array.dtype.itemsize > (16 if array.dtype.kind == "c" else 8):
        raise FedawsError(f"{name} is an array of {array.dtype.name}; wanted numbers of at most 64 bits")
    return torch.from_numpy(np.require(array, array.dtype.newbyteorder("="), ["C", "W"]))


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


def hold_out(count: int, validation: float, seed: int, labels: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The numbers of the examples that stay, and of those held out for tuning; with labels, a part of every class.

    Of a class one example always stays.

    >>> kept, held = hold_out(7, 0.4, seed=0, labels=torch.tensor([0, 0, 0, 0, 0, 1, 1]))
    >>> sorted(held.tolist())[-1] >= 5, len(held)  # two of five, one of two
    (True, 3)
    """
    held = round(validation * count) if validation < 1 else int(validation)
    if not 0 < held < count:
        raise FedawsError(f"validation={validation} holds out {held} of {count} training examples; wanted some of both")
    order = torch.randperm(count, generator=torch.Generator().manual_seed(hash64(seed, "validation")))
    if labels is None:
        return order[held:].sort().values, order[:held].sort().values
    order = order[torch.argsort(labels[order], stable=True)]
    counts = torch.bincount(labels)
    rank = torch.arange(count) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    of_class = torch.minimum((counts * held / count).round().long(), counts - 1)
    away = rank < of_class[labels[order]]
    if not bool(away.any()):
        raise FedawsError(f"validation={validation} holds out no example of any class; raise it")
    return order[~away].sort().values, order[away].sort().values


def deal_out(
    labels: Tensor, classes: int, clients_per_class: int, classes_per_client: int, seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The order that sorts examples by client, where each client's begin, and its class, or its classes.

    >>> deal_out(torch.tensor([2, 0, 1]), classes=3, clients_per_class=1, classes_per_client=2, seed=0)[2].tolist()
    [[0, 1], [1, 2], [2, 0]]
    """
    client = _assign_clients(labels, classes, clients_per_class, classes_per_client, seed)
    counts = torch.bincount(client, minlength=classes * clients_per_class)
    first = torch.arange(classes).repeat_interleave(clients_per_class)
    class_of = first if classes_per_client == 1 else (first[:, None] + torch.arange(classes_per_client)) % classes
    return torch.argsort(client, stable=True), starts_of(counts), class_of


def _assign_clients(labels: Tensor, classes: int, clients_per_class: int, classes_per_client: int, seed: int) -> Tensor:
    """The client of each example.

    Client c · clients_per_class + j has class c; with several classes per client also the next ones, and each class is
    dealt out evenly to those that have it.
    """
    if clients_per_class < 1 or not 1 <= classes_per_client <= classes:
        raise FedawsError(
            f"got clients_per_class={clients_per_class} and classes_per_client={classes_per_client}; "
            f"wanted at least 1 of both, and no more classes than there are ({classes})"
        )
    shares = clients_per_class * classes_per_client
    if shares == 1:
        return labels
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(hash64(seed, "clients")))
    by_class = shuffled[torch.argsort(labels[shuffled], stable=True)]
    counts = torch.bincount(labels, minlength=classes)
    rank = torch.arange(len(labels)) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    share = torch.empty_like(labels)
    share[by_class] = rank % shares
    first_class = (labels - share // clients_per_class) % classes
    return first_class * clients_per_class + share % clients_per_class
