"""All measures together, and what `evaluate` does to the encoder (nothing)."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedaws.config import Config
from fedaws.evaluate import evaluate
from fedaws.evaluate.measures import embed_all

RAW = Config.model_validate({"model": {"normalize": False}})
BOUNDS = ("error_bound", "error_bound_cosine", "lemma1_bound")


def normal(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_the_measures_of_two_classes_and_two_examples_by_hand():
    x, y = torch.tensor([[3.0, 4.0], [0.0, 2.0]]), torch.tensor([0, 1])  # (0.6, 0.8) once normalised: wrong
    assert evaluate(nn.Identity(), {}, torch.eye(2), x, y, Config()) == {
        "precision@1": 0.5,
        "test_loss": pytest.approx(0.3**2 / 2),
        "min_separation": pytest.approx(math.sqrt(2)),
        "max_cosine": 0.0,
        "positive_radius": pytest.approx(math.sqrt(0.8) / 2),
        "error_bound": pytest.approx(math.sqrt(0.4)),
        "error_bound_cosine": pytest.approx(0.2 / (1 - math.sqrt(0.5))),
        "lemma1_bound": pytest.approx(0.73 / 0.81),
        "theorem1_gap": pytest.approx(0.32),
        "theorem1_bound": pytest.approx(0.8),
    }


def test_the_configured_margins_are_those_of_the_loss_and_of_the_bounds():
    cfg = Config.model_validate({"clients": {"margin": 0.8}, "spread": {"margin": 0.5}})
    measures = evaluate(nn.Identity(), {}, torch.eye(2), torch.tensor([[0.6, 0.8]]), torch.tensor([0]), cfg)
    assert measures["test_loss"] == pytest.approx(0.2**2)
    assert measures["theorem1_gap"] == pytest.approx(0.3**2)
    assert measures["theorem1_bound"] == pytest.approx(2 * 0.5 * 0.8)


def test_without_normalisation_scores_are_inner_products_and_there_are_no_bounds():
    W, x = torch.tensor([[1.0, 0.0], [0.0, 3.0]]), torch.tensor([[2.0, 1.0]])  # scores 2 and 3: class 1 wins
    assert evaluate(nn.Identity(), {}, W, x, torch.tensor([1]), RAW) == {
        "precision@1": 1.0,
        "test_loss": 0.0,
        "min_separation": pytest.approx(math.sqrt(10)),
        "max_cosine": 0.0,
    }


@pytest.mark.parametrize(("classes", "ks"), [(2, [1]), (3, [1, 3]), (4, [1, 3]), (5, [1, 3, 5])])
def test_precision_is_given_for_no_more_ranks_than_there_are_classes(classes, ks):
    measures = evaluate(nn.Identity(), {}, torch.eye(classes), torch.eye(classes), torch.arange(classes), Config())
    assert [name for name in measures if name.startswith("precision")] == [f"precision@{k}" for k in ks]
    assert [measures[f"precision@{k}"] for k in ks] == pytest.approx([1 / k for k in ks])


@given(st.integers(0, 2**31), st.integers(2, 8), st.floats(0, 3), st.floats(0.2, 2))
def test_the_bounds_of_a_random_model_are_above_its_error(seed, classes, noise, nu):
    W, y = F.normalize(normal(seed, classes, 4), dim=1), torch.arange(40) % classes
    cfg = Config.model_validate({"spread": {"margin": nu}})
    measures = evaluate(nn.Identity(), {}, W, W[y] + noise * normal(seed + 1, 40, 4) / 2, y, cfg)
    for name in BOUNDS:
        assert 1 - measures["precision@1"] <= measures[name] + 1e-5, name


def test_a_model_that_stands_on_its_well_separated_classes_is_certified_right():
    measures = evaluate(nn.Identity(), {}, torch.eye(3), torch.eye(3), torch.arange(3), Config())
    assert [measures[name] for name in BOUNDS] == [0.0, 0.0, 0.0]


def test_parameters_are_taken_from_theta_and_not_from_the_encoder():
    encoder = nn.Linear(2, 2, bias=False)
    swap = {"weight": torch.tensor([[0.0, 1.0], [1.0, 0.0]])}
    assert evaluate(encoder, swap, torch.eye(2), torch.eye(2), torch.tensor([1, 0]), Config())["precision@1"] == 1.0


# --- the encoder ----------------------------------------------------------------------------------------------------


def parameters(encoder):
    return dict(encoder.named_parameters())


@pytest.mark.parametrize("training", [True, False])
def test_every_part_of_the_encoder_keeps_its_mode(training):
    encoder = nn.Sequential(nn.Linear(2, 2), nn.Dropout(), nn.BatchNorm1d(2)).train(training)
    encoder[2].train(not training)  # such as a layer frozen by its owner
    evaluate(encoder, parameters(encoder), torch.eye(2), torch.eye(2), torch.arange(2), Config())
    assert [module.training for module in encoder.modules()] == [training, training, training, not training]


def test_the_mode_is_kept_when_the_encoder_fails():
    encoder = nn.Sequential(nn.Linear(2, 2), nn.Dropout()).train()
    with pytest.raises(RuntimeError, match="shape"):
        embed_all(encoder, parameters(encoder), torch.zeros(1, 3), normalize=True)
    assert all(module.training for module in encoder.modules())


def test_nothing_is_dropped_out_in_evaluation():
    encoder = nn.Sequential(nn.Dropout(0.5)).train()
    assert embed_all(encoder, {}, torch.ones(50, 4), normalize=False).tolist() == torch.ones(50, 4).tolist()


def test_no_gradient_graph_is_built():
    encoder = nn.Linear(2, 2)
    assert not embed_all(encoder, parameters(encoder), torch.eye(2), normalize=True).requires_grad
    W = torch.eye(2, requires_grad=True)
    evaluate(encoder, parameters(encoder), W, torch.eye(2), torch.arange(2), Config())
    assert W.grad is None
    assert all(p.grad is None for p in encoder.parameters())


def test_blocks_of_any_size_give_the_same_embeddings():
    encoder, x = nn.Linear(4, 3), normal(0, 10, 4)
    whole = embed_all(encoder, parameters(encoder), x, normalize=True)
    torch.testing.assert_close(embed_all(encoder, parameters(encoder), x, normalize=True, block=3), whole)


def test_bytes_are_given_to_the_encoder_as_fractions():
    x = torch.tensor([[0, 51, 255]], dtype=torch.uint8)
    assert embed_all(nn.Identity(), {}, x, normalize=False)[0].tolist() == pytest.approx([0.0, 0.2, 1.0])
