"""Agnostic weights: those of the classes that the encoder serves worst grow."""

import pytest
import torch
from torch import Tensor

import fedaws
from fedaws import Config
from fedaws.core.algorithm import run_round
from fedaws.core.method import Weighting
from fedaws.core.methods import method_of
from fedaws.core.start import random_rows, start_state
from fedaws.data import FederatedData, from_arrays
from fedaws.models import build_encoder
from fedaws.runners import make_runner
from fedaws.types import Memory, ServerState


def weighting(step: float = 1.0, mixing: float = 1e-9) -> Weighting:
    found = method_of(Config(method="agnostic", options={"step": step, "mixing": mixing})).weighting
    assert found is not None
    return found


def learnt(weights: Weighting, classes: list[int], losses: list[float], count: int = 4) -> Memory:
    return weights.learn(weights.init(torch.eye(count)), torch.tensor(classes), torch.tensor(losses))


def omega(memory: Memory) -> Tensor:
    return memory["log_weights"].exp()


def test_equal_losses_keep_even_weights() -> None:
    torch.testing.assert_close(omega(learnt(weighting(), [0, 1, 2, 3], [0.7] * 4)), torch.full((4,), 0.25))


def test_equal_losses_of_a_part_keep_even_weights_of_all() -> None:
    torch.testing.assert_close(omega(learnt(weighting(), [0, 2], [0.7, 0.7])), torch.full((4,), 0.25))


def test_a_step_is_the_exponential_of_the_losses() -> None:
    # ω ∝ e^R: of losses 0 and ln 3 a quarter and three quarters.
    found = omega(learnt(weighting(), [0, 1], [0.0, 1.0986123], count=2))
    assert found.tolist() == pytest.approx([0.25, 0.75])


def test_a_class_of_two_clients_counts_by_their_mean() -> None:
    # Class 0 has losses 0 and 2, class 1 the loss 1: equal.
    found = omega(learnt(weighting(), [0, 0, 1], [0.0, 2.0, 1.0], count=2))
    assert found.tolist() == pytest.approx([0.5, 0.5])


def test_no_weight_falls_below_its_part_of_the_mixing() -> None:
    weights = weighting(step=100.0, mixing=0.2)
    memory = weights.init(torch.eye(4))
    for _ in range(50):
        memory = weights.learn(memory, torch.arange(4), torch.tensor([0.0, 0.0, 0.0, 1.0]))
    assert omega(memory).tolist() == pytest.approx([0.05, 0.05, 0.05, 0.85])


def test_a_cohorts_weights_are_its_classes_shares_of_its_number() -> None:
    # Of ω = ⅛, ⅛, ¼, ½ the classes 1 and 3 have 1 to 4, of 2 in all.
    memory = {"log_weights": torch.tensor([0.125, 0.125, 0.25, 0.5]).log()}
    assert weighting().weights(memory, torch.tensor([1, 3])).tolist() == pytest.approx([0.4, 1.6])


def skewed(seed: int = 0, noise: float = 1.0) -> FederatedData:
    """Five easy classes and one whose examples lie in two clouds."""
    rng = torch.Generator().manual_seed(seed)
    centres = 3 * torch.randn(7, 6, generator=rng)
    y = torch.arange(7).repeat_interleave(30)
    x = centres[y] + noise * torch.randn(210, 6, generator=rng)
    return from_arrays(x, y.clamp_max(5))


def settings(runner: str) -> Config:
    tree = {
        "method": "agnostic",
        "options": {"step": 0.5},
        "model": {"embedding_dim": 6, "hidden": [8]},
        "clients": {"per_round": 4, "examples_per_step": 8},
        "train": {"rounds": 30, "runner": runner},
    }
    return Config.model_validate(tree)


def trained(runner: str) -> ServerState:
    data, cfg = skewed(), settings(runner)
    encoder = build_encoder(cfg.model, (6,), seed=0)
    method = method_of(cfg)
    theta = {k: v.detach().clone() for k, v in encoder.named_parameters()}
    state = start_state(cfg, method, theta, random_rows(cfg, 6), data.class_of)
    run_clients = make_runner(cfg, method, data, encoder)
    for t in range(20):
        state = run_round(state, data.available, run_clients, cfg, torch.Generator().manual_seed(t))
    return state


def test_the_weights_reach_all_runners_alike() -> None:
    serial = trained("serial")
    assert omega(serial.weighting).max() > 1.05 * omega(serial.weighting).min()
    for runner in ("pooled", "stacked"):
        other = trained(runner)
        torch.testing.assert_close(other.weighting["log_weights"], serial.weighting["log_weights"], atol=1e-4, rtol=0)
        torch.testing.assert_close(other.W, serial.W, atol=1e-4, rtol=0)


@pytest.mark.parametrize("seed", range(4))
def test_a_linear_encoder_serves_the_worst_class_better(seed: int) -> None:
    # A linear encoder cannot serve all classes well. It is the loss that evens out; precision may not follow.
    data = skewed(seed, noise=3.0)

    assert isinstance(data.y_test, torch.Tensor)
    labels = data.y_test

    def worst_loss(cfg: Config) -> float:
        run = fedaws.train(data, config=cfg)
        hinge = (0.9 - (run.embed(data.x_test) * run.W[labels]).sum(1)).clamp_min(0).square()
        return max(float(hinge[labels == c].mean()) for c in range(6))

    plain = Config.model_validate(
        {
            "model": {"embedding_dim": 6, "hidden": []},
            "clients": {"examples_per_step": 8},
            "train": {"rounds": 150, "threads": 1},
        }
    )
    assert worst_loss(plain.with_(method="agnostic", options={"step": 1.0})) < 0.9 * worst_loss(plain)
