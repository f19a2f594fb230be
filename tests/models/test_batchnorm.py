"""BatchNorm for comparison: by the batch while training, by measured statistics for test images."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import fedaws
from fedaws.config import Config
from fedaws.core.methods import method_of
from fedaws.data import FederatedData, from_arrays
from fedaws.models import build_encoder, by_batch_statistics, measured_statistics
from fedaws.models.batchnorm import BatchNorm
from fedaws.models.build import trainable
from helpers import refusal

SMALL = ["model.name=resnet8", "model.embedding_dim=4", "clients.examples_per_step=4", "train.rounds=3"]


def small_data() -> FederatedData:
    x = torch.randint(0, 256, (18, 3, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    return from_arrays(x, torch.arange(3).repeat_interleave(6))


def small_config(norm: str, *settings: str) -> Config:
    return Config().override([*SMALL, f"model.norm={norm}", *settings])


def test_in_training_mode_a_layer_normalises_by_its_batch() -> None:
    layer, x = BatchNorm(2), torch.randn(5, 2, 3, 3)
    out = layer.train()(x)
    torch.testing.assert_close(out.mean((0, 2, 3)), torch.zeros(2), atol=1e-6, rtol=0)
    torch.testing.assert_close(out.var((0, 2, 3), correction=0), torch.ones(2), atol=1e-3, rtol=0)


def test_in_evaluation_mode_by_what_was_measured() -> None:
    layer, x = BatchNorm(1).eval(), torch.tensor([3.0]).view(1, 1, 1, 1)
    layer.mean.fill_(1.0)
    layer.variance.fill_(4.0)
    assert layer(x).item() == pytest.approx((3 - 1) / 2, abs=1e-5)


def test_statistics_of_one_batch_are_its_mean_and_variance() -> None:
    layer, x = torch.nn.Sequential(BatchNorm(2)), torch.randn(7, 2, 3, 3)
    found = measured_statistics(layer, {}, [x])
    torch.testing.assert_close(found["0.mean"], x.mean((0, 2, 3)))
    torch.testing.assert_close(found["0.variance"], x.var((0, 2, 3), correction=0))


def test_equal_batches_of_clients_add_up_to_the_statistics_of_all() -> None:
    layer, parts = torch.nn.Sequential(BatchNorm(2)), [torch.randn(4, 2, 3, 3) + shift for shift in (0, 2, 5)]
    apart, together = measured_statistics(layer, {}, parts), measured_statistics(layer, {}, [torch.cat(parts)])
    for name, value in apart.items():
        torch.testing.assert_close(value, together[name])


def test_the_copy_looks_at_its_batch_and_the_encoder_itself_does_not() -> None:
    encoder = build_encoder(small_config("batch-local").model, (3, 8, 8), 0).eval()
    copy, x = by_batch_statistics(encoder), torch.rand(4, 3, 8, 8)
    assert torch.allclose(encoder(x)[:1], encoder(x[:1]), atol=1e-5)
    assert not torch.allclose(copy(x)[:1], copy(x[:1]), atol=1e-2)


def test_local_statistics_are_those_of_a_clients_own_batch() -> None:
    """One client alone, or among others: the same update."""
    data, cfg = small_data(), small_config("batch-local", "train.rounds=1", "spread.weight=0", "data.augment=none")
    everyone = fedaws.train(data, config=cfg, reporter=silent())
    encoder = by_batch_statistics(build_encoder(cfg.model, (3, 8, 8), cfg.seed).eval())
    plan = fedaws.runners.common.ClientData(cfg, method_of(cfg), data)
    x = plan.examples(plan.draw(torch.tensor([1]), 0)).x[0, 0]
    W = fedaws.training.train.initial_state(cfg, data, encoder).W
    w = W[1].clone().requires_grad_()
    loss = (0.9 - F.normalize(encoder(x), dim=1) @ w).clamp_min(0).square().mean()
    (gradient,) = torch.autograd.grad(loss, w)
    torch.testing.assert_close(everyone.W[1], F.normalize(W[1] - cfg.class_lr * gradient, dim=0), atol=1e-5, rtol=0)


@pytest.mark.parametrize("norm", ["batch-local", "batch-pooled"])
def test_a_run_says_what_is_shared_and_its_model_classifies_as_it_was_measured(norm: str, tmp_path: Path) -> None:
    warnings: list[str] = []
    run = fedaws.train(small_data(), config=small_config(norm), folder=tmp_path / "run", reporter=silent(warnings))
    assert any(f"model.norm={norm}" in warning for warning in warnings)
    again = fedaws.load(tmp_path / "run")
    x = small_data().x_test
    torch.testing.assert_close(again.embed(x), run.embed(x))
    assert set(run.theta) - set(trainable(run.encoder))  # the statistics are part of the model


def test_pooled_statistics_want_the_whole_cohort_in_one_step() -> None:
    assert "does not work with train.runner=serial" in refusal(
        lambda: fedaws.train(
            small_data(), config=small_config("batch-pooled", "train.runner=serial"), reporter=silent()
        )
    )
    assert "needs one local SGD step" in refusal(
        lambda: fedaws.train(
            small_data(), config=small_config("batch-pooled", "clients.local_steps=2"), reporter=silent()
        )
    )


def silent(into: list[str] | None = None) -> fedaws.Reporter:
    return fedaws.Reporter(on_warning=(into if into is not None else []).append)
