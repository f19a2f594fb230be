"""Oracles over sampled classes: expectations by going through every sample there is."""

import math
from collections.abc import Callable
from itertools import combinations, pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedaws import Config
from fedaws.config import ClientsConfig
from fedaws.core.algorithm import run_round
from fedaws.core.losses import Sample, cosine_contrastive, softmax_cross_entropy, triplet
from fedaws.core.methods import method_of
from fedaws.core.sampled_classes import positions, sample_classes
from fedaws.data import FederatedData, from_arrays
from fedaws.models import build_encoder
from fedaws.runners import make_runner
from fedaws.types import Broadcast, ServerState, Update
from helpers import refusal

CLASSES, DIM = 6, 3
Loss = Callable[..., Tensor]
LOSSES: dict[str, Loss] = {
    "softmax": lambda g, y, W, sample=None: softmax_cross_entropy(g, y, W, 3.0, sample),
    "contrastive": lambda g, y, W, sample=None: cosine_contrastive(g, y, W, 1.2, 0.9, sample),
    "triplet": lambda g, y, W, sample=None: triplet(g, y, W, 0.5, sample),
}


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def problem() -> tuple[Tensor, Tensor, Tensor]:
    g = F.normalize(torch.randn(4, DIM, generator=rng(), dtype=torch.float64), dim=1)
    W = F.normalize(torch.randn(CLASSES, DIM, generator=rng(1), dtype=torch.float64), dim=1)
    return g, torch.tensor([0, 3, 3, 5]), W


def loss_and_gradient(loss: Loss, drawn: tuple[int, ...] | None) -> tuple[Tensor, Tensor, Tensor]:
    """The losses, and the gradient of their sum by g and by all of W, over the classes drawn (None: all, in full)."""
    g, y, W = (tensor.requires_grad_() if tensor.is_floating_point() else tensor for tensor in problem())
    if drawn is None:
        values = loss(g, y, W)
    else:
        classes = torch.tensor([*drawn, *sorted({0, 3, 5} - set(drawn))])
        values = loss(g, positions(classes, y), W[classes], Sample(len(drawn), CLASSES))
    by_g, by_W = torch.autograd.grad(values.sum(), [g, W])
    return values.detach(), by_g, by_W


def mean_over_samples(loss: Loss, count: int) -> list[Tensor]:
    found = [loss_and_gradient(loss, drawn) for drawn in combinations(range(CLASSES), count)]
    return [torch.stack(parts).mean(0) for parts in zip(*found, strict=True)]


@pytest.mark.parametrize("name", LOSSES)
def test_a_sample_of_all_classes_is_no_sample(name: str) -> None:
    for sampled, full in zip(
        loss_and_gradient(LOSSES[name], tuple(range(CLASSES))), loss_and_gradient(LOSSES[name], None), strict=True
    ):
        torch.testing.assert_close(sampled, full)


@pytest.mark.parametrize("name", ["contrastive", "triplet"])
@pytest.mark.parametrize("count", [2, 4])
def test_sums_over_classes_have_the_full_loss_and_gradient_as_their_mean(name: str, count: int) -> None:
    for mean, full in zip(mean_over_samples(LOSSES[name], count), loss_and_gradient(LOSSES[name], None), strict=True):
        torch.testing.assert_close(mean, full)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_softmaxs_sum_over_classes_has_the_full_one_as_its_mean(count: int) -> None:
    # The loss is log(Σ e^s / e^{s_y}).
    sums = [loss_and_gradient(LOSSES["softmax"], drawn)[0].exp() for drawn in combinations(range(CLASSES), count)]
    torch.testing.assert_close(torch.stack(sums).mean(0), loss_and_gradient(LOSSES["softmax"], None)[0].exp())


def test_softmaxs_mean_gradient_comes_to_the_full_one_as_the_sample_grows() -> None:
    _, by_g, by_W = loss_and_gradient(LOSSES["softmax"], None)
    errors = []
    for count in range(2, CLASSES + 1):
        _, mean_g, mean_W = mean_over_samples(LOSSES["softmax"], count)
        errors.append(max(float((mean_g - by_g).norm() / by_g.norm()), float((mean_W - by_W).norm() / by_W.norm())))
    assert all(after < before for before, after in pairwise(errors))
    # The bias is of the variance's order, (1/S)(1 − S/5) for S of five others: 0.3 at S = 2, 0.05 at S = 4.
    assert errors[2] < errors[0] / 2
    assert errors[-1] < 1e-12


def test_the_sample_comes_first_and_the_cohorts_own_classes_are_there_once() -> None:
    for seed in range(20):
        classes = sample_classes(torch.tensor([1, 4, 4]), 3, CLASSES, rng(seed)).tolist()
        assert len(set(classes)) == len(classes)
        assert {1, 4} <= set(classes)
        assert set(classes[3:]) <= {1, 4}


def test_every_class_is_drawn_equally_often() -> None:
    drawn = torch.cat([sample_classes(torch.tensor([0]), 2, CLASSES, rng(seed))[:2] for seed in range(3000)])
    share = torch.bincount(drawn, minlength=CLASSES) / 3000
    assert share.tolist() == pytest.approx([1 / 3] * CLASSES, abs=5 * math.sqrt(2 / 9 / 3000))


# --- rounds ---------------------------------------------------------------------------------------------------------


def make_data() -> FederatedData:
    y = torch.arange(8).repeat_interleave(torch.tensor([9, 3, 16, 1, 7, 12, 5, 2]))
    return from_arrays(torch.randn(len(y), 10, generator=rng()).abs(), y)


def train(model: str, rounds: int, *settings: str, method: str = "softmax") -> ServerState:
    cfg = Config.model_validate({"method": method, "clients": ClientsConfig(examples_per_step=3, per_round=4)})
    chosen = [f"model.name={model}", "model.embedding_dim=5", "model.hidden=[6]", "server.table_optimizer=sgd"]
    cfg = cfg.override([*chosen, *settings])
    data, encoder = make_data(), build_encoder(cfg.model, (10,), seed=0)
    W = F.normalize(torch.randn(8, 5, generator=rng(1)), dim=1)
    state = ServerState(0, {k: v.detach().clone() for k, v in encoder.named_parameters()}, W, data.class_of)
    run_clients = make_runner(cfg, method_of(cfg), data, encoder)
    for t in range(rounds):
        state = run_round(state, data.available, run_clients, cfg, rng(t), data.num_examples, in_place=True)
    return state


def assert_same(a: ServerState, b: ServerState) -> None:
    torch.testing.assert_close(a.W, b.W, atol=1e-5, rtol=0)
    for k in a.theta:
        torch.testing.assert_close(a.theta[k], b.theta[k], atol=1e-5, rtol=0)


@pytest.mark.parametrize("method", ["softmax", "contrastive", "triplet"])
@pytest.mark.parametrize("model", ["mlp", "bag"])
def test_the_runners_agree(method: str, model: str) -> None:
    sampled = "clients.sampled_classes=3"
    serial = train(model, 8, sampled, "train.runner=serial", method=method)
    for others in (["train.runner=pooled"], ["train.runner=pooled", "train.block=3"], ["train.runner=stacked"]):
        if model == "mlp" or "train.runner=pooled" in others:
            assert_same(train(model, 8, sampled, *others, method=method), serial)


@pytest.mark.parametrize("model", ["mlp", "bag"])
def test_rounds_with_all_classes_in_the_sample_are_those_of_the_full_oracle(model: str) -> None:
    full = train(model, 5)
    for count in (8, 100):
        assert_same(train(model, 5, f"clients.sampled_classes={count}"), full)


def test_only_the_rows_that_were_sent_move() -> None:
    data, cfg = make_data(), Config(method="softmax").override(["clients.sampled_classes=2", "clients.per_round=2"])
    encoder = build_encoder(cfg.model, (10,), seed=0)
    W = F.normalize(torch.randn(8, cfg.model.embedding_dim, generator=rng(1)), dim=1)
    state = ServerState(0, {k: v.detach().clone() for k, v in encoder.named_parameters()}, W.clone(), data.class_of)
    inner, sent = make_runner(cfg, method_of(cfg), data, encoder), list[Broadcast]()

    def noting(broadcast: Broadcast) -> list[Update]:
        sent.append(broadcast)
        return list(inner(broadcast))

    after = run_round(state, data.available, noting, cfg, rng(), data.num_examples)
    assert sent[0].classes is not None
    moved = ((after.W - W).abs().amax(1) > 0).nonzero().ravel().tolist()
    assert moved == sorted(sent[0].classes.tolist())
    assert len(moved) <= 4
    assert state.W.equal(W)  # not in place
    torch.testing.assert_close(after.W.norm(dim=1), torch.ones(8))


def test_clients_of_several_classes_are_refused() -> None:
    message = refusal(lambda: Config(method="fedavg").override(["clients.sampled_classes=5"]))
    assert message.startswith("clients.sampled_classes=5 needs clients of one class")
    assert "wanted a number greater than or equal to 2" in refusal(
        lambda: Config().override(["clients.sampled_classes=1"])
    )
