"""SLEEC on data whose answer is known beforehand."""

from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp

from fedaws.experiments.sleec.settings import SleecConfig
from fedaws.experiments.sleec.sleec import _most, embed, fit, predict
from helpers import refusal


def groups(count: int, size: int, features: int = 40, seed: int = 0) -> tuple[sp.csr_matrix, sp.csr_matrix]:
    """`count` well separated groups of examples, each with a label of its own."""
    rng = np.random.default_rng(seed)
    centres = np.kron(np.eye(count), np.ones(features // count))
    x = np.repeat(centres, size, 0) + 0.05 * rng.random((count * size, features))
    return sp.csr_matrix(x), sp.csr_matrix(np.repeat(np.eye(count), size, 0))


def objective(cosines: sp.csr_matrix, z: np.ndarray) -> float:
    """½ ‖P_Ω(G − Z Zᵀ)‖²."""
    whole = cosines.toarray()
    return 0.5 * float(np.square((whole - z @ z.T)[whole != 0]).sum())


@pytest.mark.parametrize("clusters", [1, 2, 8])
@pytest.mark.parametrize("learners", [1, 3])
def test_well_separated_groups_of_one_label_are_told_apart(clusters: int, learners: int) -> None:
    x, labels = groups(count=8, size=30)
    new, right = groups(count=8, size=5, seed=1)
    cfg = SleecConfig(clusters=clusters, learners=learners, dims=8, label_neighbors=10, votes=5)
    assert predict(fit(x, labels, cfg), new, 1).ravel().tolist() == right.toarray().argmax(1).tolist()


def test_all_labels_of_a_group_are_found() -> None:
    x, labels = groups(count=4, size=20)
    both = sp.csr_matrix(np.hstack([labels.toarray(), labels.toarray()]))  # example of group g: labels g and g + 4
    found = predict(fit(x, both, SleecConfig(clusters=1, dims=4, label_neighbors=8, votes=5)), x, 2)
    assert [sorted(row) for row in found.tolist()] == [[g, g + 4] for g in np.repeat(np.arange(4), 20)]


def test_with_all_pairs_one_step_is_the_best_low_rank_approximation() -> None:
    rng = np.random.default_rng(0)
    factor = rng.standard_normal((30, 3))
    z = embed(sp.csr_matrix(factor @ factor.T), dims=3, iterations=1)
    np.testing.assert_allclose(z @ z.T, factor @ factor.T, atol=1e-8)
    values = np.linalg.eigvalsh(factor @ factor.T)
    z = embed(sp.csr_matrix(factor @ factor.T), dims=2, iterations=1)
    assert objective(sp.csr_matrix(factor @ factor.T), z) == pytest.approx(0.5 * values[-3] ** 2)  # Eckart–Young


@pytest.mark.parametrize("n", [60, 300])
def test_the_objective_never_rises(n: int) -> None:
    rng = np.random.default_rng(1)
    upper = np.triu(rng.random((n, n)) < 0.1)
    places = np.where(upper | upper.T, rng.random((n, n)), 0)
    cosines = sp.csr_matrix((places + places.T) / 2)
    steps = [objective(cosines, embed(cosines, 5, count)) for count in range(1, 8)]
    assert all(after <= before * (1 + 1e-6) for before, after in pairwise(steps))
    assert steps[-1] < steps[0]


def test_whoever_has_no_label_takes_no_part() -> None:
    x, labels = groups(count=4, size=10)
    none = sp.vstack([labels, sp.csr_matrix((10, 4))]).tocsr()
    more = sp.vstack([x, groups(count=4, size=10)[0][:10]]).tocsr()
    cfg = SleecConfig(clusters=1, dims=4, label_neighbors=5, votes=3)
    assert (predict(fit(more, none, cfg), x, 1) == predict(fit(x, labels, cfg), x, 1)).all()
    assert "no training example has a label" in refusal(lambda: fit(x, sp.csr_matrix((40, 4)), cfg))


def test_the_most_voted_come_first_and_what_has_no_vote_is_left_out() -> None:
    votes = sp.csr_matrix(np.array([[0, 3, 0, 5], [0, 0, 0, 0], [2, 2, 1, 9]]))
    assert _most(votes, 3).tolist() == [[3, 1, -1], [-1, -1, -1], [3, 0, 1]]
