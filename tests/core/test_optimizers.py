"""Muon: what becomes of a matrix's singular values and vectors, and of what is no matrix."""

import pytest
import torch
from torch import Tensor

from fedaws.config import Config
from fedaws.core.algorithm import finish_round
from fedaws.core.optimizers import make_optimizer, orthogonal
from fedaws.types import Memory, Params, ServerState, Update


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=rng(seed))


def with_values(values: Tensor, rows: int, columns: int) -> Tensor:
    """A matrix with these singular values and random singular vectors."""
    left, _ = torch.linalg.qr(random(rows, len(values)))
    right, _ = torch.linalg.qr(random(columns, len(values), seed=1))
    return left @ values.diag() @ right.T


def singular_values(matrix: Tensor) -> Tensor:
    """Without the factor that tall ones have."""
    rows, columns = matrix.shape
    return torch.linalg.svdvals(matrix) / max(1.0, rows / columns) ** 0.5


def muon_step(
    direction: Params, lr: float, momentum: float = 0.0, memory: Memory | None = None
) -> tuple[Params, Memory]:
    muon = make_optimizer("muon", momentum)
    return muon.step({}, direction, memory or muon.init(direction), lr)


MATRICES = {
    "wide": random(16, 64),
    "tall": random(64, 16),
    "filters": random(32, 16, 3, 3),
    "tall filters": random(64, 3, 3, 3),
    "condition 100": with_values(torch.logspace(0, -2, 20), 20, 50),
    "condition 100, tall": with_values(torch.logspace(0, -2, 20), 50, 20),
    "one large": with_values(torch.tensor([1.0] + [0.02] * 15), 16, 16),
}


@pytest.mark.parametrize("name", MATRICES)
def test_every_singular_value_comes_near_one(name: str) -> None:
    matrix = MATRICES[name]
    values = singular_values(orthogonal(matrix).flatten(1))
    assert float(values.min()) > 0.6
    assert float(values.max()) < 1.3


@pytest.mark.parametrize("name", MATRICES)
def test_the_singular_vectors_stay(name: str) -> None:
    matrix = MATRICES[name].flatten(1)
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    nearest, found = left @ right, orthogonal(matrix)
    assert float((nearest * found).sum() / nearest.norm() / found.norm()) > 0.98
    # In the coordinates of the singular vectors it is diagonal.
    diagonal = left.T @ found @ right.T
    assert float((diagonal - diagonal.diag().diag()).norm() / diagonal.norm()) < 1e-3


@pytest.mark.parametrize("scale", [1e-4, 1e-2, 1e3, 1e6])
def test_the_size_of_the_matrix_does_not_matter(scale: float) -> None:
    matrix = random(12, 30)
    torch.testing.assert_close(orthogonal(scale * matrix), orthogonal(matrix), atol=1e-3, rtol=0)


def test_filters_are_the_matrix_of_their_numbers() -> None:
    filters = random(8, 4, 3, 3)
    assert orthogonal(filters).shape == filters.shape
    torch.testing.assert_close(orthogonal(filters).flatten(1), orthogonal(filters.flatten(1)))
    last = filters.contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(orthogonal(last), orthogonal(filters))


def test_a_tall_matrix_is_longer_by_the_root_of_its_shape() -> None:
    wide = random(10, 40)
    torch.testing.assert_close(orthogonal(wide.T), 2 * orthogonal(wide).T)


def test_nothing_stays_nothing() -> None:
    assert not orthogonal(torch.zeros(4, 9)).any()
    step, _ = muon_step({"a": torch.zeros(4, 9), "b": torch.zeros(5)}, lr=0.1, momentum=0.9)
    assert not step["a"].any()
    assert not step["b"].any()


@pytest.mark.parametrize("name", ["weight", "bias", "gain"])
def test_the_length_of_the_clients_step_does_not_matter(name: str) -> None:
    delta = {"weight": random(6, 4, 3, 3), "bias": random(6), "gain": random(6, 1, 1, 1)}[name]
    one, memory = muon_step({"x": delta}, lr=0.1, momentum=0.9)
    other, _ = muon_step({"x": 50 * delta}, lr=0.1, momentum=0.9)
    torch.testing.assert_close(other["x"], one["x"], atol=1e-4, rtol=0)
    assert memory["momentum/x"].equal(delta)


def test_a_bias_and_a_gain_keep_their_direction() -> None:
    # They are no matrices, though a gain has four dimensions: every number times the same factor.
    for delta in (random(6), random(6, 1, 1, 1), random(1, 6)):
        step, _ = muon_step({"x": delta}, lr=0.1)
        factor = step["x"] / delta
        torch.testing.assert_close(factor, factor.flatten()[0].expand_as(factor))
        assert float(factor.flatten()[0]) > 0


def test_the_momentum_is_nesterovs() -> None:
    first, second, mu = random(4, 9), random(4, 9, seed=1), 0.9
    _, memory = muon_step({"x": first}, lr=1.0, momentum=mu)
    step, memory = muon_step({"x": second}, lr=1.0, momentum=mu, memory=memory)
    kept = mu * first + second
    torch.testing.assert_close(memory["momentum/x"], kept)
    torch.testing.assert_close(step["x"], orthogonal(second + mu * kept))


@pytest.mark.parametrize("name", ["weight", "bias"])
def test_the_schedule_scales_every_step_of_muon(name: str) -> None:
    # A client's delta already has the schedule's factor in it; the step has it once, for matrices and for biases.
    delta = {"weight": random(4, 9), "bias": random(4)}
    steps = []
    for round_num, factor in ((0, 1.0), (5, 0.5)):
        settings = ["server.optimizer=muon", "server.lr=0.1", "server.momentum=0.9", "method=fixed"]
        cfg = Config().override([*settings, "train.rounds=10", "train.schedule=linear"])
        state = ServerState(round_num, {k: torch.zeros_like(d) for k, d in delta.items()}, torch.eye(2))
        update = Update(
            torch.tensor([0]), {k: factor * d for k, d in delta.items()}, state.W[:1], torch.ones(1), torch.zeros(1)
        )
        steps.append(finish_round(state, [update], cfg, rng()).theta[name])
    torch.testing.assert_close(steps[1], 0.5 * steps[0])


def test_weight_decay_shrinks_matrices_by_the_step_size_and_leaves_biases_and_gains() -> None:
    theta = {"weight": random(4, 9), "filters": random(4, 3, 3, 3), "bias": random(4), "gain": random(4, 1, 1, 1)}
    settings = ["server.lr=0.1", "server.weight_decay=0.02", "method=fixed", "train.rounds=10", "train.schedule=linear"]
    state = ServerState(5, theta, torch.eye(2))  # in round 5 of 10 the schedule's factor is 1/2
    still = {k: torch.zeros_like(v) for k, v in theta.items()}
    update = Update(torch.tensor([0]), still, state.W[:1], torch.ones(1), torch.zeros(1))
    after = finish_round(state, [update], Config().override(settings), rng()).theta
    for name in ("weight", "filters"):
        torch.testing.assert_close(after[name], (1 - 0.1 * 0.02 / 2) * theta[name])
    for name in ("bias", "gain"):
        assert after[name].equal(theta[name])
