r"""SLEEC: sparse local embeddings for extreme classification (Bhatia, Jain, Kar, Varma, Jain, NeurIPS 2015).

Centralised: it sees all examples with all their labels. The examples are clustered; within a cluster

1. Ω are the pairs of an example and its n̄ nearest ones by label sets, with the cosines G of their label vectors;
2. embeddings Z of few dimensions keep what lies in Ω: rank-L :math:`M = Z Z^T` nearest to G there (:func:`embed`);
3. a ridge regression V takes features to embeddings, :math:`V = \arg\min \|Z - XV\|^2 + \lambda \|V\|^2`;
4. a new example goes to its cluster and to x V, and takes the labels of its nearest neighbours among the training
   examples' own x V, each as often as they have it. Several clusterings (`learners`) add up their votes.

Where this departs from the publication: no L1 penalty on XV (their ADMM; it makes Z sparse, for speed), and in the
singular value projection a step of 1 in place of 1/p, and a search in a subspace, with which the objective provably
never rises.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.cluster import MiniBatchKMeans
from sklearn.linear_model import Ridge
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import normalize

from fedaws.errors import FedawsError
from fedaws.experiments.sleec.settings import SleecConfig
from fedaws.machine.blocks import TILE

Matrix = Any
"""scipy's csr_matrix, which has no types of its own."""
Floats = NDArray[np.floating[Any]]

_CLUSTER = 6000  # examples in a cluster, as published
_SPARE = 20  # directions beside those that are looked for, in the search for the largest eigenvalues
_POWERS = 3  # multiplications in it


@dataclass(frozen=True)
class Cluster:
    """One of a learner's clusters, trained."""

    features: NDArray[np.intp]  # [f] those that occur in it
    regressor: Floats  # [f, L]
    neighbors: NearestNeighbors  # of its examples' x V, at unit length
    labels: Matrix  # [n, labels]

    @property
    def nbytes(self) -> int:
        """Of what prediction needs."""
        held = (self.features, self.regressor, self.neighbors._fit_X, self.labels.indices, self.labels.indptr)
        return sum(part.nbytes for part in held)


@dataclass(frozen=True)
class Sleec:
    """A trained model: for each learner its clustering and clusters."""

    learners: tuple[tuple[MiniBatchKMeans, tuple[Cluster, ...]], ...]
    votes: int

    @property
    def nbytes(self) -> int:
        """Of what prediction needs."""
        return sum(
            means.cluster_centers_.nbytes + sum(cluster.nbytes for cluster in clusters)
            for means, clusters in self.learners
        )


def fit(x: Matrix, labels: Matrix, cfg: SleecConfig, seed: int = 0) -> Sleec:
    """Train on all examples that have a label.

    >>> x, labels = sp.csr_matrix(np.repeat(np.eye(2), 4, 0)), sp.csr_matrix(np.repeat(np.eye(2), 4, 0))
    >>> predict(fit(x, labels, SleecConfig(dims=2, label_neighbors=3, votes=3)), x, 1).ravel().tolist()
    [0, 0, 0, 0, 1, 1, 1, 1]
    """
    labelled = np.diff(labels.indptr) > 0
    if not labelled.any():
        raise FedawsError("no training example has a label; wanted at least one")
    x = normalize(x[labelled])
    labels = sp.csr_matrix(labels[labelled] != 0, dtype=np.float32)
    count = max(1, x.shape[0] // _CLUSTER) if cfg.clusters == "auto" else min(cfg.clusters, x.shape[0])
    learners = []
    for number in range(cfg.learners):
        rng = seed + number
        means = MiniBatchKMeans(count, random_state=rng, n_init=1, batch_size=4096).fit(x)
        owner = means.predict(x)
        members = (np.flatnonzero(owner == c) for c in range(count))
        learners.append((means, tuple(_fit_cluster(x[rows], labels[rows], cfg, rng) for rows in members)))
    return Sleec(tuple(learners), cfg.votes)


def predict(model: Sleec, x: Matrix, k: int) -> NDArray[np.int64]:
    """The k labels with the most votes, [B, k]; −1 where fewer labels have any."""
    x = normalize(x)
    votes = None
    for means, clusters in model.learners:
        counted = _votes(means.predict(x), clusters, x, model.votes)
        votes = counted if votes is None else votes + counted
    assert votes is not None
    return _most(votes.tocsr(), k)


def embed(cosines: Matrix, dims: int, iterations: int, seed: int = 0) -> Floats:
    r"""Z [n, L] whose inner products are near the given ones, at the places where there are any.

    .. math:: \min_{M = Z Z^T} \tfrac12 \|P_\Omega(G - M)\|^2, \qquad
              M \leftarrow \text{best rank-}L\text{ positive part of } M + P_\Omega(G - M)

    The gradient of the objective is 1-Lipschitz, so ½‖M′ − M − P_Ω(G − M)‖² bounds it from above and touches it at
    M′ = M. The best M′ is looked for among those with rows and columns in the span of Z and P_Ω(G − M) Z, which needs
    no eigenvectors of n × n matrices. M itself is among them, so the objective never rises.

    >>> z = embed(sp.csr_matrix(np.ones((4, 4))), dims=1, iterations=1)
    >>> np.round(z @ z.T, 6).tolist() == np.ones((4, 4)).tolist()
    True
    """
    n = cosines.shape[0]
    dims = min(dims, n)
    places = sp.triu(cosines).tocoo()
    z = np.zeros((n, 0), cosines.dtype)
    residual = cosines
    further = _range(cosines, min(n, dims + _SPARE), seed)
    for _ in range(iterations):
        basis = np.linalg.qr(np.hstack([z, further]))[0]
        known = basis.T @ z
        values, vectors = np.linalg.eigh(known @ known.T + basis.T @ (residual @ basis))
        z = basis @ (vectors[:, -dims:] * np.sqrt(values[-dims:].clip(0)))
        residual = cosines - _at(places, z)
        further = residual @ z
    return z


def _fit_cluster(x: Matrix, labels: Matrix, cfg: SleecConfig, seed: int) -> Cluster:
    n = x.shape[0]
    sets = normalize(labels)
    if not n:  # k-means may leave a cluster empty; nothing can come to it but far-off test examples, who get no vote
        return Cluster(np.empty(0, np.intp), np.empty((0, 1)), NearestNeighbors(), labels)
    near = NearestNeighbors(n_neighbors=min(cfg.label_neighbors, n), metric="cosine", algorithm="brute").fit(sets)
    places = near.kneighbors_graph(sets)
    places = places.maximum(places.T)  # Ω, both ways
    row, column = places.nonzero()
    cosines = np.asarray(sets[row].multiply(sets[column]).sum(1)).ravel()
    z = embed(sp.csr_matrix((cosines, (row, column)), shape=(n, n)), cfg.dims, cfg.iterations, seed)
    features = np.flatnonzero(np.diff(x.tocsc().indptr))
    own = x[:, features]
    solver = "cholesky" if len(features) <= 2000 else "sparse_cg"
    ridge = Ridge(cfg.ridge, fit_intercept=False, solver=solver, tol=1e-3).fit(
        own.toarray() if solver == "cholesky" else own, z
    )
    regressor = ridge.coef_.reshape(z.shape[1], -1).T.astype(np.float32)
    neighbors = NearestNeighbors(n_neighbors=min(cfg.votes, n), algorithm="brute").fit(normalize(own @ regressor))
    return Cluster(features, regressor, neighbors, labels)


def _range(symmetric: Matrix, count: int, seed: int) -> Floats:
    """Roughly the directions of the eigenvalues of largest size, [n, count]: random ones, multiplied by the matrix."""
    directions: Floats = np.random.default_rng(seed).standard_normal((symmetric.shape[0], count), np.float32)
    for _ in range(_POWERS):
        directions = np.linalg.qr(symmetric @ directions)[0]
    return directions


def _at(upper: Matrix, z: Floats) -> Matrix:
    """Z Zᵀ at the places of a symmetric matrix, given by its upper half."""
    step = max(1, TILE // z.shape[1])
    values = np.empty(upper.nnz, z.dtype)
    for start in range(0, upper.nnz, step):
        part = slice(start, start + step)
        np.einsum("ij,ij->i", z[upper.row[part]], z[upper.col[part]], out=values[part])
    half = sp.csr_matrix((values, (upper.row, upper.col)), shape=upper.shape)
    return half + sp.triu(half, 1).T


def _votes(owner: NDArray[np.integer[Any]], clusters: tuple[Cluster, ...], x: Matrix, count: int) -> Matrix:
    """How many of its nearest neighbours have a label, [B, labels]."""
    blocks = []
    order = []
    for number, cluster in enumerate(clusters):
        rows = np.flatnonzero(owner == number)
        if not len(rows):
            continue
        order.append(rows)
        if not cluster.labels.shape[0]:
            blocks.append(sp.csr_matrix((len(rows), cluster.labels.shape[1]), dtype=np.float32))
            continue
        z = normalize(x[rows][:, cluster.features] @ cluster.regressor)
        near = cluster.neighbors.kneighbors(z, return_distance=False)
        ones = np.ones(near.size, np.float32)
        chosen = sp.csr_matrix((ones, near.ravel(), np.arange(0, near.size + 1, near.shape[1])))
        chosen.resize(len(rows), cluster.labels.shape[0])
        blocks.append(chosen @ cluster.labels)
    back = np.argsort(np.concatenate(order))
    return sp.vstack(blocks, format="csr")[back]


def _most(votes: Matrix, k: int) -> NDArray[np.int64]:
    """The columns of each row's k largest entries; of equal ones the first."""
    rows = np.repeat(np.arange(votes.shape[0]), np.diff(votes.indptr))
    order = np.lexsort((votes.indices, -votes.data, rows))
    place = np.arange(len(rows)) - votes.indptr[rows]
    best = np.full((votes.shape[0], k), -1, np.int64)
    first = place < k
    best[rows[first], place[first]] = votes.indices[order][first]
    return best
