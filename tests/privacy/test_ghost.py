"""Ghost clipping against one client after another."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from fedaws.config import Config
from fedaws.core.aggregate import Aggregate, aggregate
from fedaws.core.algorithm import broadcast
from fedaws.core.methods import method_of
from fedaws.data import FederatedData, from_arrays
from fedaws.errors import FedawsError
from fedaws.models import build_encoder
from fedaws.models.bag import Bag
from fedaws.privacy.clipping import clipped, stacked_norms
from fedaws.privacy.ghost import can_ghost, clipped_pass, sparse_grams
from fedaws.runners import make_runner
from fedaws.runners.choose import choose
from fedaws.sparse import Rows, SparseRows, from_dense
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


def work_of(cfg: Config, encoder: nn.Module, data: FederatedData, cohort: Tensor | None = None) -> Aggregate:
    W = F.normalize(torch.randn(data.num_classes, cfg.model.embedding_dim, generator=rng(1)), dim=1)
    theta = {k: v.detach().clone() for k, v in encoder.named_parameters() if v.requires_grad}
    state = ServerState(0, theta, W, data.class_of)
    run_clients = make_runner(cfg, method_of(cfg), data, encoder)
    return aggregate(state, run_clients(broadcast(state, data.available if cohort is None else cohort)))


def dense(delta: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k: v.to_dense() if v.is_sparse else v for k, v in delta.items()}


def assert_same(a: Aggregate, b: Aggregate) -> None:
    ours, theirs = dense(a.delta), dense(b.delta)
    assert ours.keys() == theirs.keys()
    for k in ours:  # ghost norms are a little too long, to the safe side
        torch.testing.assert_close(ours[k], theirs[k], atol=1e-7, rtol=2e-3)
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


# --- numbers --------------------------------------------------------------------------------------------------------


def of_one_client(x: Tensor, slopes: Tensor, most: float) -> tuple[Tensor, Tensor]:
    """A client's clipped gradient of a linear layer, where example j's loss is slopes_j · Ax_j; and the bare one."""
    encoder = nn.Linear(x.shape[1], slopes.shape[1], bias=False)

    def loss_of(theta: dict[str, Tensor], rows: Tensor, x: Rows, y: Tensor) -> Tensor:
        return (functional_call(encoder, theta, (x,)) * slopes).sum(1)

    theta, ones = {"weight": encoder.weight.detach()}, torch.ones(1, len(x))
    found = clipped_pass(encoder, loss_of, theta, ones, x, ones, ones, ones[0, :1], most, train_rows=False)[0]
    return found["weight"].double(), slopes.double().T @ x.double()


@pytest.mark.parametrize("size", [1e2, 1e4, 1e6, 1e8])
def test_gradients_that_cancel_are_not_cut_too_little(size: float) -> None:
    for seed in range(20):
        x = size * torch.randn(1, 32, generator=rng(seed)).repeat(2, 1)
        slopes = torch.randn(1, 16, generator=rng(seed + 100)).repeat(2, 1)
        slopes[1] = -slopes[0] * (1 - 1e-4 * seed)  # of two long gradients little is left
        cut, bare = of_one_client(x, slopes, most=0.01)
        if seed:
            assert float(bare.norm()) > 0.01
        assert float(cut.norm()) <= 0.01 * (1 + 1e-5)


def test_examples_whose_squares_are_lost_are_cut_all_the_same() -> None:
    x, slopes = torch.full((1, 4), 1e-23), torch.full((1, 4), 1e18)  # 4 · 1e-5 long; x · x is no float32
    cut, bare = of_one_client(x, slopes, most=1e-6)
    assert float(bare.norm()) == pytest.approx(4e-5)
    assert float(cut.norm()) <= 1e-6 * (1 + 1e-5)


def test_norms_of_float32_are_taken_in_double_precision() -> None:
    long = {"a": torch.full((3,), 1e30), "b": torch.full((3,), -1e30)}  # squares of no float32
    cut = clipped(long, 1.0)
    assert float(torch.cat(list(cut.values())).norm()) == pytest.approx(1.0)
    assert stacked_norms({k: v[None] for k, v in long.items()}).tolist() == pytest.approx([6**0.5 * 1e30])


def spoilt(data: FederatedData, value: float) -> FederatedData:
    """The same, but that all numbers of the third client's examples are this one."""
    assert isinstance(data.x, Tensor)
    return replace(data, x=torch.where((data.y == 2)[:, None], value, data.x))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("method", ["positive-only", "fixed"])
@pytest.mark.parametrize("name", ["serial", "stacked", "pooled"])
def test_a_client_that_is_not_finite_counts_as_zero(name: str, method: str, value: float) -> None:
    cfg, data = config("privacy.clip=0.02", f"train.runner={name}", f"method={method}"), federation()
    encoder = build_encoder(cfg.model, (10,), seed=0)
    total = work_of(cfg, encoder, spoilt(data, value))
    assert total.losses.isnan().tolist() == [False, False, True, False, False, False]
    torch.testing.assert_close(total.rows[2], F.normalize(torch.randn(6, 8, generator=rng(1)), dim=1)[2])
    # Six times the mean of six is five times the mean of the other five.
    five = work_of(cfg, encoder, data, torch.tensor([0, 1, 3, 4, 5]))
    for k, change in total.delta.items():
        torch.testing.assert_close(6 * change, 5 * five.delta[k])


@pytest.mark.parametrize("name", ["serial", "stacked", "pooled"])
def test_enormous_numbers_do_not_spoil_the_sum(name: str) -> None:
    cfg, data = config("privacy.clip=0.02", f"train.runner={name}"), federation()
    total = work_of(cfg, build_encoder(cfg.model, (10,), seed=0), spoilt(data, 1e30))
    assert all(bool(change.isfinite().all()) for change in [total.rows, *total.delta.values()])


@pytest.mark.parametrize("name", ["serial", "pooled"])
def test_a_client_that_is_not_finite_in_its_table_counts_as_zero(name: str) -> None:
    cfg = config("privacy.clip=0.02", f"train.runner={name}", "method=fixed", "model.name=bag", "model.hidden=[]")
    data = federation(sparse=True)
    encoder = build_encoder(cfg.model, (10,), seed=0)
    assert isinstance(data.x, SparseRows)
    assert data.x.values is not None
    client = data.y[data.x.row_of_each]
    spoilt = replace(data, x=replace(data.x, values=torch.where(client == 2, torch.nan, data.x.values)))
    total = work_of(cfg, encoder, spoilt)
    assert total.losses.isnan().tolist() == [False, False, True, False, False, False]
    assert all(bool(change.isfinite().all()) for change in dense(total.delta).values())


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
        nn.Sequential(nn.utils.spectral_norm(nn.Linear(8, 8)), nn.Tanh()),
        nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)), nn.Tanh()),
    ],
    ids=[
        "used twice",
        "used past its layer",
        "idle",
        "tied",
        "in place",
        "norm",
        "convolution",
        "weights of weights",
        "parametrised",
    ],
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
