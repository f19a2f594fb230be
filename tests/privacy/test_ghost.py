"""Ghost clipping against one client after another."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedaws.config import Config
from fedaws.core.aggregate import Aggregate, aggregate
from fedaws.core.algorithm import broadcast
from fedaws.core.methods import method_of
from fedaws.data import FederatedData, from_arrays
from fedaws.errors import FedawsError
from fedaws.models import build_encoder
from fedaws.models.bag import Bag
from fedaws.privacy.ghost import can_ghost, sparse_grams
from fedaws.runners import make_runner
from fedaws.runners.choose import choose
from fedaws.sparse import SparseRows, from_dense
from fedaws.types import ServerState

UNEVEN = (9, 3, 16, 1, 7, 12)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def federation(sparse: bool = False) -> FederatedData:
    y = torch.arange(len(UNEVEN)).repeat_interleave(torch.tensor(UNEVEN))
    x = torch.randn(len(y), 10, generator=rng())
    if not sparse:
        return from_arrays(x, y)
    entries = from_dense((x.abs() + 0.1) * (torch.rand(x.shape, generator=rng(1)) < 0.4))
    return replace(from_arrays(x, y), x=entries, x_test=entries)


def config(*settings: str) -> Config:
    usual = ["model.embedding_dim=8", "model.hidden=[16]", "clients.lr=0.1", "method=positive-only"]
    return Config().override([*usual, *settings])


def work_of(cfg: Config, encoder: nn.Module, data: FederatedData) -> Aggregate:
    W = F.normalize(torch.randn(data.num_classes, cfg.model.embedding_dim, generator=rng(1)), dim=1)
    theta = {k: v.detach().clone() for k, v in encoder.named_parameters() if v.requires_grad}
    state = ServerState(0, theta, W, data.class_of)
    run_clients = make_runner(cfg, method_of(cfg), data, encoder)
    return aggregate(state, run_clients(broadcast(state, data.available)))


def dense(delta: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k: v.to_dense() if v.is_sparse else v for k, v in delta.items()}


def assert_same(a: Aggregate, b: Aggregate) -> None:
    ours, theirs = dense(a.delta), dense(b.delta)
    assert ours.keys() == theirs.keys()
    for k in ours:
        torch.testing.assert_close(ours[k], theirs[k], atol=1e-7, rtol=1e-4)
    torch.testing.assert_close(a.rows, b.rows, atol=1e-6, rtol=0)
    assert a.loss == pytest.approx(b.loss, abs=1e-6)


# The changes are between 0.005 and 0.05 long: with the first limit all are cut, with the last none.
@pytest.mark.parametrize("clip", [1e-3, 0.02, 100.0])
@pytest.mark.parametrize("weighting", ["uniform", "examples"])
@pytest.mark.parametrize("block", ["auto", 4])
def test_pooled_stacked_and_serial_clip_alike(clip: float, weighting: str, block: int | str) -> None:
    cfg = config(f"privacy.clip={clip}", f"clients.weighting={weighting}", f"train.block={block}")
    data, encoder = federation(), build_encoder(cfg.model, (10,), seed=0)
    serial = work_of(cfg.override(["train.runner=serial"]), encoder, data)
    for runner in ("pooled", "stacked"):
        assert_same(work_of(cfg.override([f"train.runner={runner}"]), encoder, data), serial)


@pytest.mark.parametrize("clip", [1e-3, 0.02, 100.0])
@pytest.mark.parametrize("hidden", ["[]", "[6]"])
def test_pooled_and_serial_clip_embedding_tables_alike(clip: float, hidden: str) -> None:
    cfg = config("model.name=bag", f"model.hidden={hidden}", f"privacy.clip={clip}", "method=fixed")
    data, encoder = federation(sparse=True), build_encoder(cfg.model, (10,), seed=0)
    serial = work_of(cfg.override(["train.runner=serial"]), encoder, data)
    assert_same(work_of(cfg.override(["train.runner=pooled"]), encoder, data), serial)


def test_serial_and_stacked_clip_alike_after_several_steps() -> None:
    cfg = config("privacy.clip=0.03", "clients.local_steps=3", "clients.examples_per_step=4")
    data, encoder = federation(), build_encoder(cfg.model, (10,), seed=0)
    serial = work_of(cfg.override(["train.runner=serial"]), encoder, data)
    assert_same(work_of(cfg.override(["train.runner=stacked"]), encoder, data), serial)


def test_a_limit_that_nobody_reaches_changes_nothing() -> None:
    data, encoder = federation(), build_encoder(config().model, (10,), seed=0)
    for runner in ("serial", "pooled", "stacked"):
        cfg = config(f"train.runner={runner}")
        assert_same(work_of(cfg.override(["privacy.clip=1000"]), encoder, data), work_of(cfg, encoder, data))


def test_clipping_keeps_no_graph() -> None:
    cfg, data = config("privacy.clip=0.01", "train.runner=pooled"), federation()
    total = work_of(cfg, build_encoder(cfg.model, (10,), seed=0), data)
    assert not any(t.requires_grad for t in [total.rows, *total.delta.values()])


def test_frozen_layers_and_layers_without_bias_are_clipped_too() -> None:
    cfg, data = config("privacy.clip=0.01"), federation()
    encoder = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 12, bias=False), nn.ReLU(), nn.Linear(12, 8))
    encoder[0].weight.requires_grad_(False)
    assert choose(cfg, encoder, data.x[:2]) == "pooled"
    serial = work_of(cfg.override(["train.runner=serial"]), encoder, data)
    assert_same(work_of(cfg, encoder, data), serial)


class TwoWords(nn.Module):
    """Three-dimensional inputs of a linear layer: two parts of an example go through the same weights at once."""

    def __init__(self) -> None:
        super().__init__()
        self.of_each, self.out = nn.Linear(5, 6), nn.Linear(6, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.of_each(x.reshape(-1, 2, 5))).sum(1))


def test_a_layer_that_sees_several_parts_of_an_example_is_clipped_right() -> None:
    cfg, data, encoder = config("privacy.clip=0.01"), federation(), TwoWords()
    assert choose(cfg, encoder, data.x[:2]) == "pooled"
    assert_same(work_of(cfg, encoder, data), work_of(cfg.override(["train.runner=serial"]), encoder, data))


def test_grams_of_sparse_rows_are_those_of_dense_ones() -> None:
    dense_rows = torch.rand(12, 7, generator=rng()) * (torch.rand(12, 7, generator=rng(1)) < 0.5)
    dense_rows[3] = 0  # an example without features
    unit = dense_rows / dense_rows.sum(1, keepdim=True).clamp_min(1e-9)
    a = unit.view(3, 4, 7)
    torch.testing.assert_close(sparse_grams(from_dense(dense_rows), 3), a @ a.mT)


def test_a_feature_that_stands_twice_in_an_example_counts_as_its_sum() -> None:
    x = SparseRows(torch.tensor([1, 1, 0]), torch.tensor([1.0, 2.0, 1.0]), torch.tensor([0, 3]), width=2)
    assert float(sparse_grams(x, 1)) == pytest.approx((9 + 1) / 16)


# --- which encoders -------------------------------------------------------------------------------------------------


class Tied(nn.Module):
    """One layer used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.relu(self.layer(x)))


class Past(nn.Module):
    """A layer whose weights are also used without it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + F.linear(x, self.layer.weight)


class Idle(nn.Module):
    """A layer that is there and not used."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.idle = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)


def two_names_for_one_weight() -> nn.Module:
    encoder = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    encoder[2].weight = encoder[0].weight
    return encoder


@pytest.mark.parametrize(
    "encoder",
    [
        Tied(),
        Past(),
        Idle(),
        two_names_for_one_weight(),
        nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 8), nn.Tanh()),
        nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)),
        nn.Sequential(nn.Unflatten(1, (2, 2, 2)), nn.Conv2d(2, 2, 2), nn.Flatten()),
    ],
    ids=["used twice", "used past its layer", "idle", "tied", "in place", "norm", "convolution"],
)
def test_whatever_else_an_encoder_has_is_clipped_client_by_client(encoder: nn.Module) -> None:
    pair = torch.randn(2, 8, generator=rng())
    assert not can_ghost(encoder, pair)
    assert choose(config("privacy.clip=1"), encoder, pair) in ("serial", "stacked")
    assert choose(config(), encoder, pair) == "pooled"


def test_linear_layers_and_bags_are_clipped_together() -> None:
    pair = torch.randn(2, 8, generator=rng()).abs()
    assert can_ghost(nn.Linear(8, 3), pair)
    assert can_ghost(Bag(8, [4], 5, residual=True), pair)


def test_pooled_by_name_refuses_what_it_cannot_clip() -> None:
    with pytest.raises(FedawsError, match="clips linear layers and embedding tables only"):
        choose(config("privacy.clip=1", "train.runner=pooled"), nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)))


class TimeFirst(nn.Module):
    """A linear layer whose input has time before the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.linear(x.transpose(0, 1)).sum(0)
        return out


def test_a_layer_that_does_not_have_the_batch_first_is_not_ghosted() -> None:
    x = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0))
    assert not can_ghost(TimeFirst(), x)
