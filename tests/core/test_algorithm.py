from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedaws.config import ClientsConfig, Config, ModelConfig, ServerConfig, SpreadConfig, TrainConfig
from fedaws.core.aggregate import aggregate
from fedaws.core.algorithm import broadcast, finish_round, run_round, sample_clients
from fedaws.core.losses import positive_hinge
from fedaws.core.methods import method_of
from fedaws.data import FederatedData, from_arrays
from fedaws.runners import make_runner
from fedaws.types import Broadcast, Params, ServerState, Update
from helpers import dense


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_state(classes: int = 4, dim: int = 3, class_of: Tensor | None = None) -> ServerState:
    theta = {"weight": torch.randn(2, 2, generator=rng(1)), "bias": torch.zeros(2)}
    return ServerState(0, theta, F.normalize(torch.randn(classes, dim, generator=rng(2)), dim=1), class_of)


def update_of(client: int, delta: float, row: Tensor, weight: float = 1.0) -> Update:
    change = {"weight": torch.full((2, 2), delta), "bias": torch.full((2,), delta)}
    return Update(torch.tensor([client]), change, row[None], torch.tensor([weight]), torch.tensor([delta]))


def make_data(classes: int = 5, per_class: int = 8, features: int = 6, **options: Any) -> FederatedData:
    y = torch.arange(classes).repeat_interleave(per_class)
    return from_arrays(torch.randn(len(y), features, generator=rng(3)), y, **options)


def make_encoder(features: int = 6, dim: int = 4) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(features, 7), nn.ReLU(), nn.Linear(7, dim))


def start(data: FederatedData, encoder: nn.Module, dim: int = 4) -> ServerState:
    W = F.normalize(torch.randn(data.num_classes, dim, generator=rng(4)), dim=1)
    return ServerState(0, {k: v.detach().clone() for k, v in encoder.named_parameters()}, W, data.class_of)


def config(method: str = "fedaws", **sections: object) -> Config:
    defaults = {
        "clients": ClientsConfig(examples_per_step=4, lr=0.2),
        "train": TrainConfig(schedule="constant", rounds=100),
        "model": ModelConfig(embedding_dim=4),
    }
    return Config.model_validate({"method": method, **defaults, **sections})


def run(state: ServerState, data: FederatedData, encoder: nn.Module, cfg: Config, rounds: int) -> ServerState:
    clients = make_runner(cfg, method_of(cfg), data, encoder)
    for t in range(rounds):
        state = run_round(state, data.available, clients, cfg, rng(t), data.num_examples)
    return state


# --- broadcast ---


def test_a_client_is_sent_exactly_one_class_embedding_in_storage_of_its_own() -> None:
    state = make_state()
    sent = broadcast(state, torch.tensor([2]))
    assert sent.theta.keys() == state.theta.keys()
    assert torch.equal(sent.W, state.W[2:3])
    assert sent.W.untyped_storage().nbytes() == sent.W.nbytes  # not a view into W: no other row hangs on it
    assert sent.W.untyped_storage().data_ptr() != state.W.untyped_storage().data_ptr()


def test_several_clients_of_one_class_are_each_sent_its_row() -> None:
    state = make_state(class_of=torch.tensor([0, 0, 1, 1, 2, 2, 3, 3]))
    assert torch.equal(broadcast(state, torch.tensor([2, 3, 6])).W, state.W[[1, 1, 3]])


def test_only_an_oracle_is_sent_all_rows() -> None:
    state = make_state()
    assert broadcast(state, torch.tensor([0])).shared is None
    shared = broadcast(state, torch.tensor([0]), all_rows=True).shared
    assert shared is not None
    assert torch.equal(shared, state.W)


@pytest.mark.parametrize("runner", ["serial", "pooled", "stacked"])
def test_a_clients_update_does_not_depend_on_the_others(runner: str) -> None:
    data, encoder = make_data(), make_encoder()
    cfg = config(train=TrainConfig(runner=runner))
    state = start(data, encoder)
    strange = replace(data, x=torch.where((data.y == 2)[:, None], dense(data.x), 9.0))
    strange_state = replace(state, W=torch.where(torch.arange(5)[:, None] == 2, state.W, -state.W))
    cohort = torch.tensor([2])
    (mine,) = make_runner(cfg, method_of(cfg), data, encoder)(broadcast(state, cohort))
    (same,) = make_runner(cfg, method_of(cfg), strange, encoder)(broadcast(strange_state, cohort))
    assert torch.equal(mine.W, same.W)
    assert all(torch.equal(mine.delta[k], same.delta[k]) for k in mine.delta)


# --- aggregation ---


def test_theta_is_the_weighted_mean_over_the_clients_that_answered() -> None:
    state, row = make_state(), torch.zeros(3)
    total = aggregate(state, [update_of(0, 1.0, row, weight=3.0), update_of(2, 5.0, row, weight=1.0)])
    assert total.delta["bias"].tolist() == [2.0, 2.0]  # (3·1 + 1·5) / 4
    assert total.loss == 2.0


def test_a_block_of_clients_counts_as_its_clients_do() -> None:
    state, row = make_state(), torch.zeros(3)
    block = Update(
        torch.tensor([0, 1]),
        {"weight": torch.ones(2, 2), "bias": torch.ones(2)},
        torch.zeros(2, 3),
        torch.ones(2),
        torch.ones(2),
    )
    total = aggregate(state, [block, update_of(2, 4.0, row)])
    assert total.delta["bias"].tolist() == [2.0, 2.0]  # (1 + 1 + 4) / 3


def test_rows_of_one_class_are_averaged_by_weight() -> None:
    state = make_state(class_of=torch.tensor([0, 0, 1, 1]))
    rows = torch.tensor([[1.0, 0, 0], [0, 1.0, 0], [0, 0, 1.0]])
    updates = [update_of(0, 0.0, rows[0], 1.0), update_of(1, 0.0, rows[1], 3.0), update_of(2, 0.0, rows[2], 5.0)]
    total = aggregate(state, updates)
    assert total.classes.tolist() == [0, 1]
    assert total.rows.tolist() == [[0.25, 0.75, 0.0], [0.0, 0.0, 1.0]]


def test_rows_find_their_class_in_whatever_order_the_updates_come() -> None:
    state, rows = make_state(), torch.eye(3)
    total = aggregate(state, [update_of(3, 0.0, rows[0]), update_of(0, 0.0, rows[1])])
    assert total.classes.tolist() == [0, 3]
    assert torch.equal(total.rows, rows[[1, 0]])


def test_an_absent_client_leaves_its_row_and_nobody_at_all_leaves_everything() -> None:
    state, cfg = make_state(), config("positive-only")
    row = torch.tensor([0.0, 0.0, 1.0])
    after = finish_round(state, [update_of(1, 0.5, row)], cfg, rng())
    assert torch.equal(after.W[1], row)
    assert torch.equal(after.W[[0, 2, 3]], state.W[[0, 2, 3]])
    nobody = finish_round(state, [], cfg, rng())
    assert torch.equal(nobody.W, state.W)
    assert torch.equal(nobody.theta["weight"], state.theta["weight"])
    assert nobody.round_num == 1


def test_spreadout_moves_an_absent_clients_row() -> None:
    W = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, -1.0]])
    state = ServerState(0, {"bias": torch.zeros(1)}, W.clone())
    update = Update(torch.tensor([0]), {"bias": torch.zeros(1)}, W[:1], torch.ones(1), torch.zeros(1))
    after = finish_round(state, [update], config("fedaws"), rng())
    assert not torch.equal(after.W[1], W[1])


@pytest.mark.parametrize("regularizer", ["margin", "nearest", "moments"])
def test_a_round_without_any_answer_goes_by_under_every_regulariser(regularizer: str) -> None:
    cfg = config("fedaws", spread=SpreadConfig(regularizer=regularizer, neighbors="auto"))
    after = finish_round(make_state(), [], cfg, rng())
    torch.testing.assert_close(after.W.norm(dim=1), torch.ones(4))


class WithParameterW(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.eye(6)[:4].clone())

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.W.T


@pytest.mark.parametrize("method", ["fixed", "fedaws", "softmax"])
def test_an_encoder_may_have_a_parameter_called_w(method: str) -> None:
    data, encoder = make_data(classes=4), WithParameterW()
    state = start(data, encoder)
    after = run(state, data, encoder, config(method), 3)
    assert torch.equal(after.W, state.W) is (method == "fixed")
    assert not torch.equal(after.theta["W"], state.theta["W"])


def test_finish_round_leaves_the_old_state_alone_unless_told_to_reuse_it() -> None:
    state, cfg = make_state(), config("fedaws", spread=SpreadConfig(regularizer="moments"))
    before = state.W.clone()
    after = finish_round(state, [update_of(1, 0.5, torch.tensor([0.0, 0.0, 1.0]))], cfg, rng())
    assert torch.equal(state.W, before)
    reused = finish_round(state, [update_of(1, 0.5, torch.tensor([0.0, 0.0, 1.0]))], cfg, rng(), in_place=True)
    assert reused.W is state.W
    assert torch.equal(reused.W, after.W)


# --- the algorithm as a whole ---


def test_zero_spread_weight_is_positive_only() -> None:
    data, encoder = make_data(), make_encoder()
    plain = run(start(data, encoder), data, encoder, config("positive-only"), 10)
    zero = run(start(data, encoder), data, encoder, config("fedaws", spread=SpreadConfig(weight=0.0)), 10)
    assert torch.equal(plain.W, zero.W)
    assert all(torch.equal(plain.theta[k], zero.theta[k]) for k in plain.theta)


def test_fixed_never_moves_the_rows_and_positive_only_collapses() -> None:
    data, encoder = make_data(), make_encoder()
    state = start(data, encoder)
    fixed = run(state, data, encoder, config("fixed"), 30)
    assert torch.equal(fixed.W, state.W)
    cfg = config("positive-only", clients=ClientsConfig(examples_per_step=4, lr=1.0))
    collapsed = run(state, data, encoder, cfg, 300)
    assert (collapsed.W @ collapsed.W.T).min() > (state.W @ state.W.T).min() + 0.3


def test_one_step_of_everybody_is_centralised_sgd_on_the_pooled_batch() -> None:
    data, encoder = make_data(), make_encoder()
    cfg = config("positive-only", clients=ClientsConfig(examples_per_step="all", lr=0.2))
    state = start(data, encoder)
    after = run(state, data, encoder, cfg, 1)
    for p, v in zip(encoder.parameters(), state.theta.values(), strict=True):
        p.data.copy_(v)
    W = state.W.clone().requires_grad_()
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.2)
    loss = positive_hinge(F.normalize(encoder(data.x), dim=1), W[data.y]).mean()
    loss.backward()
    optimizer.step()
    for k, p in encoder.named_parameters():
        torch.testing.assert_close(after.theta[k], p.detach(), atol=1e-6, rtol=1e-5)
    assert W.grad is not None
    # θ is averaged over the 5 clients, w is not: a client's gradient is 5 times the pooled one.
    torch.testing.assert_close(after.W, F.normalize(W.detach() - 0.2 * 5 * W.grad, dim=1), atol=1e-6, rtol=1e-5)
    assert after.loss == pytest.approx(loss.item(), rel=1e-5)


def test_weighting_by_examples_is_the_mean_over_all_examples() -> None:
    y = torch.tensor([0] * 2 + [1] * 6)
    data, encoder = from_arrays(torch.randn(8, 6, generator=rng(3)), y), make_encoder()
    cfg = config("positive-only", clients=ClientsConfig(examples_per_step="all", lr=0.2, weighting="examples"))
    state = start(data, encoder)
    after = run(state, data, encoder, cfg, 1)
    g = F.normalize(torch.func.functional_call(encoder, state.theta, (data.x,)), dim=1)
    assert after.loss == pytest.approx(positive_hinge(g, state.W[y]).mean().item(), rel=1e-5)
    uniform = run(
        state, data, encoder, config("positive-only", clients=ClientsConfig(examples_per_step="all", lr=0.2)), 1
    )
    each = [positive_hinge(g[y == c], state.W[c]).mean().item() for c in (0, 1)]
    assert uniform.loss == pytest.approx(sum(each) / 2, rel=1e-5)


def test_permuting_the_classes_permutes_the_result() -> None:
    data, encoder = make_data(per_class=4), make_encoder()
    order = torch.tensor([3, 0, 4, 1, 2])
    cfg = config("fedaws", clients=ClientsConfig(examples_per_step="all", lr=0.2, local_steps=2))
    state = start(data, encoder)
    plain = run(state, data, encoder, cfg, 10)
    renamed = from_arrays(data.x, order[data.y])
    permuted_W = torch.empty_like(state.W)
    permuted_W[order] = state.W
    permuted = run(replace(state, W=permuted_W), renamed, encoder, cfg, 10)
    torch.testing.assert_close(permuted.W[order], plain.W, atol=1e-5, rtol=1e-4)
    for k in plain.theta:
        torch.testing.assert_close(permuted.theta[k], plain.theta[k], atol=1e-5, rtol=1e-4)


def test_several_clients_of_one_class_train_its_row() -> None:
    data, encoder = make_data(clients_per_class=2), make_encoder()
    assert len(data.class_of) == 10
    after = run(start(data, encoder), data, encoder, config(), 5)
    assert after.W.shape == (5, 4)
    torch.testing.assert_close(after.W.norm(dim=1), torch.ones(5))


def test_a_class_without_data_keeps_an_untrained_row() -> None:
    data, encoder = make_data(classes=5), make_encoder()
    y = data.y.clone()
    y[y >= 3] += 1  # class 3 of 6 has nobody
    data = from_arrays(data.x, y, num_classes=6)
    state = start(data, encoder)
    asked: list[int] = []

    def recording(sent: Broadcast) -> Iterator[Update]:
        asked.extend(sent.cohort.tolist())
        yield from make_runner(cfg, method_of(cfg), data, encoder)(sent)

    cfg = config("positive-only")
    for t in range(5):
        state = run_round(state, data.available, recording, cfg, rng(t), data.num_examples)
    assert 3 not in asked
    assert torch.equal(state.W[3], start(data, encoder).W[3])


def test_unnormalised_embeddings_train_too() -> None:
    data, encoder = make_data(), make_encoder()
    cfg = config("fedaws", model=ModelConfig(embedding_dim=4, normalize=False), clients=ClientsConfig(lr=0.05))
    after = run(start(data, encoder), data, encoder, cfg, 50)
    torch.testing.assert_close(after.W.norm(dim=1), torch.ones(5))
    assert after.loss < 0.8 * run(start(data, encoder), data, encoder, cfg, 1).loss


@pytest.mark.parametrize("method", ["softmax", "contrastive", "triplet", "fedavg"])
def test_the_oracles_learn_and_average_the_rows(method: str) -> None:
    data, encoder = make_data(classes_per_client=2 if method == "fedavg" else 1), make_encoder()
    cfg = config(method, clients=ClientsConfig(examples_per_step=8, lr=0.3))
    state = start(data, encoder)
    first, last = run(state, data, encoder, cfg, 1), run(state, data, encoder, cfg, 150)
    assert last.loss < 0.5 * first.loss
    torch.testing.assert_close(last.W.norm(dim=1), torch.ones(5))


def test_the_softmax_oracle_is_centralised_training_of_encoder_and_rows() -> None:
    data, encoder = make_data(), make_encoder()
    cfg = config("softmax", clients=ClientsConfig(examples_per_step="all", lr=0.2, scale=4.0))
    state = start(data, encoder)
    after = run(state, data, encoder, cfg, 1)
    W = state.W.clone().requires_grad_()
    theta = {k: v.clone().requires_grad_() for k, v in state.theta.items()}
    g = F.normalize(torch.func.functional_call(encoder, theta, (data.x,)), dim=1)
    loss = F.cross_entropy(4 * g @ F.normalize(W, dim=1).T, data.y)
    gradients = torch.autograd.grad(loss, [W, *theta.values()])
    torch.testing.assert_close(after.W, F.normalize(state.W - 0.2 * gradients[0], dim=1), atol=1e-6, rtol=1e-5)
    for (k, v), g_k in zip(state.theta.items(), gradients[1:], strict=True):
        torch.testing.assert_close(after.theta[k], v - 0.2 * g_k, atol=1e-6, rtol=1e-5)


# --- cohorts ---


def test_full_participation_takes_every_available_client() -> None:
    available = torch.tensor([1, 4, 6])
    assert torch.equal(sample_clients(available, ClientsConfig(), rng()), available)
    assert torch.equal(sample_clients(available, ClientsConfig(per_round=9), rng()), available)


def test_partial_participation_draws_without_repetition_and_from_the_generator() -> None:
    available, cfg = torch.arange(100, 150), ClientsConfig(per_round=20)
    drawn = sample_clients(available, cfg, rng(1))
    assert len(set(drawn.tolist())) == 20
    assert set(drawn.tolist()) <= set(available.tolist())
    assert torch.equal(drawn, sample_clients(available, cfg, rng(1)))
    assert not torch.equal(drawn, sample_clients(available, cfg, rng(2)))


def test_sampling_by_examples_draws_in_proportion() -> None:
    counts = torch.tensor([1, 2, 7])
    cfg = ClientsConfig(per_round=1, sampling="examples")
    drawn = torch.cat([sample_clients(torch.arange(3), cfg, rng(s), counts) for s in range(3000)])
    shares = torch.bincount(drawn, minlength=3) / 3000
    torch.testing.assert_close(shares, torch.tensor([0.1, 0.2, 0.7]), atol=0.03, rtol=0)


# --- the server's optimisers ---


@pytest.mark.parametrize(
    ("server", "reference"),
    [
        (ServerConfig(lr=0.5), lambda p: torch.optim.SGD(p, lr=0.5)),
        (ServerConfig(lr=0.5, momentum=0.9), lambda p: torch.optim.SGD(p, lr=0.5, momentum=0.9)),
        (ServerConfig(optimizer="adagrad", lr=0.1), lambda p: torch.optim.Adagrad(p, lr=0.1, eps=1e-8)),
        (ServerConfig(optimizer="adam", lr=0.01), lambda p: torch.optim.Adam(p, lr=0.01)),
    ],
)
def test_server_optimisers_are_pytorchs_on_the_averaged_delta(server: ServerConfig, reference: Any) -> None:
    state, cfg = make_state(), config("fixed", server=server)
    params: Params = {k: nn.Parameter(v.clone()) for k, v in state.theta.items()}
    optimizer = reference(params.values())
    for t in range(8):
        delta = {k: torch.randn(v.shape, generator=rng(10 * t + len(k))) for k, v in state.theta.items()}
        for k, p in params.items():
            p.grad = -delta[k]
        optimizer.step()
        update = Update(torch.tensor([0]), delta, state.W[:1], torch.ones(1), torch.zeros(1))
        state = finish_round(state, [update], cfg, rng())
    for k, p in params.items():
        torch.testing.assert_close(state.theta[k], p.detach(), atol=1e-6, rtol=1e-5)


def test_plain_averaging_does_not_feel_the_schedule_twice() -> None:
    state, cfg = make_state(), config("fixed", train=TrainConfig(rounds=10, schedule="linear"))
    state = replace(state, round_num=5)
    after = finish_round(state, [update_of(0, 0.25, state.W[0])], cfg, rng())
    torch.testing.assert_close(after.theta["bias"], state.theta["bias"] + 0.25)


def test_the_schedules_factor_scales_an_adaptive_servers_step() -> None:
    steps = {}
    for round_num in (0, 5):
        state = replace(make_state(), round_num=round_num)
        server = ServerConfig(optimizer="adam", lr=0.01)
        cfg = config("fixed", server=server, train=TrainConfig(rounds=10, schedule="linear"))
        after = finish_round(state, [update_of(0, 0.25, state.W[0])], cfg, rng())
        steps[round_num] = float(after.theta["bias"][0] - state.theta["bias"][0])
    assert steps[0] == pytest.approx(0.01, rel=1e-4)  # Adam's first step is its learning rate
    assert steps[5] == pytest.approx(0.005, rel=1e-4)
