"""Sparse examples with sets of labels: for training with the client of one of them or of each, for testing with all."""

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedaws.data.arrays import checked_names
from fedaws.data.federated import FederatedData
from fedaws.data.partition import deal_out, hold_out, what_is_tested
from fedaws.errors import FedawsError
from fedaws.hashing import hash64, hash_tensor
from fedaws.sparse import SparseRows, from_lists, from_numpy, is_scipy, starts_of
from fedaws.types import ClassFacts


class Split(NamedTuple):
    """Sparse examples and their sets of labels: a training or a test part."""

    x: SparseRows
    labels: SparseRows


def from_sparse(
    x: Any,
    labels: Any,
    x_test: Any = None,
    labels_test: Any = None,
    *,
    clients_per_class: int = 1,
    classes_per_client: int = 1,
    every_label: bool = False,
    validation: float = 0.0,
    held_out_labels: Literal["all", "one"] = "all",
    class_names: Sequence[str] | None = None,
    propensity: tuple[float, float] = (0.55, 1.5),
    cooccurrence: bool = False,
    seed: int = 0,
) -> FederatedData:
    """A federation from sparse examples with sets of labels: every label with clients of its own.

    An example without a label or without a feature is nobody's. A label that no example trains keeps an untrained row.

    Parameters
    ----------
    x, labels
        Examples [N, features] and their labels [N, labels], as scipy matrices or :class:`SparseRows`.
    x_test, labels_test
        The test set, of which all labels count; by default the training examples.
    clients_per_class, classes_per_client, class_names
        As in :func:`from_arrays`.
    every_label
        Whether an example is with the client of each of its labels, none of which knows of the others; by default it
        has one label, drawn uniformly from its positives (paper, Section 6.2).
    validation
        As in :func:`from_arrays`.
    held_out_labels
        Whether examples that are held out have `all` of their labels, or the `one` that a client would know.
    propensity
        A and B of Jain et al. 2016, for propensity-scored precision.
    cooccurrence
        Whether the server is told how many training examples have both of two labels, which some methods need and no
        client knows.
    seed
        Which label is drawn, which examples are held out, and how they are dealt out.

    Returns
    -------
    FederatedData
        What :func:`fedaws.train` trains on.

    Examples
    --------
    >>> from scipy.sparse import csr_matrix
    >>> data = from_sparse(csr_matrix([[0, 1.0], [2.0, 0], [0, 0]]), csr_matrix([[1, 0, 1], [0, 1, 0], [1, 1, 1]]))
    >>> data.num_classes, int(data.num_examples.sum()), data.y_test.counts.tolist()
    (3, 2, [2, 1, 3])
    """
    if (x_test is None) != (labels_test is None):
        raise FedawsError("x_test and labels_test come together: one of them is missing")
    tested_on = what_is_tested(x_test is not None, validation)
    features, sets = as_sparse(x, "x"), as_sparse(labels, "labels", values=False)
    test_features = features if x_test is None else as_sparse(x_test, "x_test")
    test_sets = sets if labels_test is None else as_sparse(labels_test, "labels_test", values=False)
    for a, b, part in ((features, sets, ""), (test_features, test_sets, "_test")):
        if len(a) != len(b) or not len(a):
            raise FedawsError(f"x{part} has {len(a)} rows, labels{part} {len(b)}; wanted as many of both, and some")
    for a, b, name in ((features, test_features, "x"), (sets, test_sets, "labels")):
        if a.width != b.width:
            raise FedawsError(f"{name} has {a.width} columns, {name}_test {b.width}; make them equal")
    classes = sets.width
    if classes < 2:
        raise FedawsError("only one class; wanted at least two, to tell apart")
    names = checked_names(class_names, classes)
    rows = torch.arange(len(sets))
    if validation:
        rows, held_out = hold_out(len(sets), validation, seed)
        test_features, test_sets = features.index_select(0, held_out), sets.index_select(0, held_out)
        if held_out_labels == "one":
            test_sets = from_lists([[c] if c >= 0 else [] for c in one_label(sets, seed)[held_out].tolist()], classes)
    counts = torch.bincount(sets.index_select(0, rows).indices if validation else sets.indices, minlength=classes)
    weights = inverse_propensities(counts, len(rows), *propensity)
    rows = rows[(sets.counts[rows] > 0) & has_features(features)[rows]]
    if not len(rows):
        raise FedawsError("no training example has both a label and a feature; wanted at least one")
    if every_label:
        chosen = sets.index_select(0, rows)
        pairs = torch.unique(chosen.row_of_each * classes + chosen.indices)  # a label may stand in a row twice
        rows, drawn = rows[pairs // classes], pairs % classes
    else:
        drawn = one_label(sets, seed)[rows]
    order, starts, class_of = deal_out(drawn, classes, clients_per_class, classes_per_client, seed)
    return FederatedData(
        x=features.index_select(0, rows[order]),
        y=drawn[order],
        starts=starts,
        class_of=class_of,
        num_classes=classes,
        x_test=test_features,
        y_test=test_sets,
        class_names=names,
        label_weights=weights,
        tested_on=tested_on,
        class_facts=ClassFacts(cooccurrence=label_pairs(sets.index_select(0, rows))) if cooccurrence else None,
    )


def label_pairs(sets: SparseRows) -> Tensor:
    """How many rows have both of two labels, a sparse tensor [C, C]; on its diagonal, how many have the label.

    >>> from fedaws.sparse import from_lists
    >>> label_pairs(from_lists([[0, 1], [1]], width=2)).to_dense().tolist()
    [[1.0, 1.0], [1.0, 2.0]]
    """
    labels = sets.to_scipy()
    labels.data[:] = 1
    together = (labels.T @ labels).tocoo()
    places = torch.from_numpy(np.stack([together.row, together.col]).astype(np.int64))
    return torch.sparse_coo_tensor(
        places, torch.from_numpy(together.data.astype(np.float32)), together.shape, check_invariants=False
    ).coalesce()


def one_label(sets: SparseRows, seed: int) -> Tensor:
    """A label of each row's set, each as likely as the others, from (seed, row) alone; −1 for an empty set."""
    counts = sets.counts
    if not len(sets.indices):
        return torch.full_like(counts, -1)
    chosen = hash_tensor(hash64(seed, "one label"), torch.arange(len(sets))) % counts.clamp_min(1)
    labels = sets.indices[(sets.starts[:-1] + chosen).clamp_max(len(sets.indices) - 1)].to(torch.int64)
    return torch.where(counts > 0, labels, -1)


def inverse_propensities(counts: Tensor, examples: int, a: float, b: float) -> Tensor:
    r"""1/p of each label (Jain, Prabhu & Varma 2016): how many positives there are for each that was noted down.

    .. math:: 1/p_l = 1 + C\,(n_l + B)^{-A}, \qquad C = (\log N - 1)(B + 1)^A

    >>> [round(p, 3) for p in inverse_propensities(torch.tensor([0, 98]), 100, 0.5, 2.0).tolist()]
    [5.415, 1.624]
    """
    scale = max(0.0, math.log(examples) - 1) * (b + 1) ** a
    return torch.pow(counts.to(torch.float32) + b, -a).mul_(scale).add_(1)


def as_sparse(x: Any, name: str = "x", values: bool = True) -> SparseRows:
    """A scipy matrix or rows, checked: ids in range, finite values, not below zero; without `values` a set per row."""
    if is_scipy(x):
        x = x.tocsr()
        if x.dtype.kind not in "biuf":
            raise FedawsError(f"{name} is a matrix of {x.dtype.name}; wanted real numbers")
        with np.errstate(all="ignore"):  # what is not finite afterwards is refused below
            numbers = np.require(x.data, np.float32, ["C", "W"])
        columns = np.require(x.indices, None, ["C", "W"])
        x = from_numpy(columns, numbers, np.require(x.indptr, np.int64, ["C", "W"]), x.shape[1])
    if not isinstance(x, SparseRows):
        raise FedawsError(f"{name} is a {type(x).__name__}; wanted a scipy sparse matrix or SparseRows")
    flaw = x.flaw()
    if flaw:
        raise FedawsError(f"{name} is not a matrix of rows: {flaw}; make it anew")
    if len(x.indices) and not 0 <= int(x.indices.min()) <= int(x.indices.max()) < x.width:
        wrong = int(((x.indices < 0) | (x.indices >= x.width)).nonzero()[0])
        raise _bad_entry(x, name, wrong, f"the column {int(x.indices[wrong])}, wanted 0 to {x.width - 1}")
    if x.values is not None:
        if len(x.values) and not 0 <= float(x.values.min()) <= float(x.values.max()) < math.inf:
            wrong = int((~((x.values >= 0) & (x.values < math.inf))).nonzero()[0])
            raise _bad_entry(x, name, wrong, f"the value {float(x.values[wrong]):g}, wanted finite ones, not below 0")
        if not values:  # the places of the entries that are not zero
            there = x.values != 0
            return SparseRows(x.indices[there], None, starts_of(there)[x.starts], x.width)
    return x


def _bad_entry(x: SparseRows, name: str, entry: int, what: str) -> FedawsError:
    row = int(torch.searchsorted(x.starts, entry, right=True)) - 1
    return FedawsError(f"{name} has in row {row} {what}; drop or mend it")


def has_features(x: SparseRows) -> Tensor:
    """Whether a row has a feature that is not zero, [rows]."""
    if x.values is None:
        return x.counts > 0
    totals = starts_of(x.values.to(torch.float64))[x.starts]
    return totals[1:] > totals[:-1]
