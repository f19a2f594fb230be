"""What the accounting assumes, measured: how far one client moves the sum, how much noise there is, who takes part."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedaws.config import Config
from fedaws.core.aggregate import Aggregate, aggregate
from fedaws.core.algorithm import broadcast, run_round, sample_clients
from fedaws.core.guard import Guard, following
from fedaws.core.methods import method_of
from fedaws.core.owners import send_beside
from fedaws.core.start import start_state
from fedaws.core.sums import HEARD
from fedaws.data import FederatedData, from_arrays
from fedaws.models import build_encoder
from fedaws.privacy.accountant import joint
from fedaws.privacy.clipping import clip_factors, clipped
from fedaws.privacy.mechanism import (
    beside_count,
    count_noise,
    fixed_cohort,
    from_generator,
    from_the_system,
    gaussian,
    next_clip,
    noised,
    poisson_cohort,
)
from fedaws.runners import make_runner
from fedaws.sparse import from_dense, row_delta
from fedaws.types import Params, ServerState

PEOPLE, EACH = 7, 5
CLIP = 0.01


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def federation(seed: int = 0, sparse: bool = False) -> FederatedData:
    """Clients of very unlike lengths: some changes are far above the clip."""
    y = torch.arange(PEOPLE).repeat_interleave(EACH)
    x = torch.randn(len(y), 10, generator=rng(seed)) * (1 + y)[:, None]
    data = from_arrays(x, y)
    entries = from_dense(x.abs() * (torch.rand(x.shape, generator=rng(1)) < 0.5))
    return replace(data, x=entries, x_test=entries) if sparse else data


def config(runner: str, *settings: str) -> Config:
    usual = ["method=fixed", "model.embedding_dim=4", "model.hidden=[6]", "clients.examples_per_step=3"]
    return Config().override([*usual, f"train.runner={runner}", f"privacy.clip={CLIP}", *settings])


def clipped_sum(cfg: Config, data: FederatedData, cohort: list[int]) -> Tensor:
    """Σ of the clipped changes, times n/expected: through the mechanism itself, with next to no noise."""
    encoder = build_encoder(cfg.model, data.x.shape[1:], seed=0)
    theta = {k: v.detach().clone() for k, v in encoder.named_parameters()}
    W = F.normalize(torch.randn(PEOPLE, 4, generator=rng(1)), dim=1)
    state = ServerState(0, theta, W, data.class_of)
    updates = make_runner(cfg, method_of(cfg), data, encoder)(broadcast(state, torch.tensor(cohort)))
    total = noised(aggregate(state, updates), theta, CLIP, 1e-9, 3.0, from_generator(rng()), [])
    return torch.cat([change.flatten() for change in total.delta.values()]) * 3


BAG = ("model.name=bag", "model.hidden=[4]")
RUNNERS = [
    ("serial",),
    ("pooled",),
    ("stacked",),
    ("stacked", "clients.local_steps=3"),
    ("pooled", *BAG),
    ("serial", *BAG),
]


@pytest.mark.parametrize("settings", RUNNERS, ids=" ".join)
def test_one_client_more_or_less_moves_the_sum_by_at_most_the_clip(settings: tuple[str, ...]) -> None:
    cfg, data = config(*settings), federation(sparse="model.name=bag" in settings)
    everybody = list(range(PEOPLE))
    whole = clipped_sum(cfg, data, everybody)
    moves = [float((whole - clipped_sum(cfg, data, [i for i in everybody if i != left])).norm()) for left in everybody]
    assert max(moves) <= CLIP * (1 + 1e-4)
    assert max(moves) > 0.99 * CLIP  # and the bound is reached: somebody was cut


@pytest.mark.parametrize("settings", RUNNERS[:4], ids=" ".join)
def test_one_client_in_the_place_of_another_moves_it_by_at_most_twice_the_clip(settings: tuple[str, ...]) -> None:
    cfg, data = config(*settings), federation()
    whole = clipped_sum(cfg, data, list(range(PEOPLE)))
    moves = []
    for replaced in range(PEOPLE):
        x = data.x.clone()
        mine = slice(replaced * EACH, (replaced + 1) * EACH)
        x[mine] = -x[mine] * 3 + 1
        moves.append(float((whole - clipped_sum(cfg, replace(data, x=x), list(range(PEOPLE)))).norm()))
    assert max(moves) <= 2 * CLIP * (1 + 1e-4)
    assert max(moves) > CLIP  # one clip is not enough: this is why a fixed cohort pays for two


def test_without_clipping_one_client_moves_it_by_far_more() -> None:
    cfg, data = config("serial", "privacy.clip=1000"), federation()
    whole, without = (clipped_sum(cfg, data, cohort) for cohort in ([*range(PEOPLE)], [*range(PEOPLE - 1)]))
    assert float((whole - without).norm()) > 2 * CLIP


ROWS = ("method=fedaws", "privacy.rows=private", "spread.regularizer=moments", "privacy.noise=1")


def joint_sum(cfg: Config, data: FederatedData, cohort: list[int]) -> Tensor:
    """The one vector of a round of private rows, in units in which it has noise z: (√a Δθ/S, √b w, √b wwᵀ)."""
    encoder, method = build_encoder(cfg.model, data.x.shape[1:], seed=0), method_of(cfg)
    theta = {k: v.detach().clone() for k, v in encoder.named_parameters()}
    state = start_state(cfg, method, theta, F.normalize(torch.randn(PEOPLE, 4, generator=rng(1)), dim=1))
    assert method.own_spread is not None
    means = method.own_spread.memory.means(method.own_spread, state.spread, state.W)
    told = replace(broadcast(state, torch.tensor(cohort)), means=means, heard=state.spread[HEARD][cohort])
    total = aggregate(state, make_runner(cfg, method, data, encoder)(told))
    share = cfg.privacy.row_share
    parts = [change.flatten() * len(cohort) * math.sqrt(1 - share) / CLIP for change in total.delta.values()]
    return torch.cat([*parts, *(part.flatten() * math.sqrt(share / 2) for part in total.sums.values())])


@pytest.mark.parametrize("runner", ["serial", "pooled", "stacked"])
def test_with_private_rows_one_client_moves_the_one_vector_of_a_round_by_at_most_one(runner: str) -> None:
    cfg, data = config(runner, *ROWS), federation()
    everybody = list(range(PEOPLE))
    whole = joint_sum(cfg, data, everybody)
    moves = [float((whole - joint_sum(cfg, data, [i for i in everybody if i != left])).norm()) for left in everybody]
    assert max(moves) <= 1 + 1e-4
    assert max(moves) > 0.99
    assert min(moves) > 0.99 * math.sqrt(0.2)  # the rows' part is always there in full


@pytest.mark.parametrize("runner", ["serial", "pooled", "stacked"])
def test_the_clip_goes_with_the_schedule(runner: str) -> None:
    # Half the step size, half the limit: exactly half the change.
    cfg, data = config(runner, "train.schedule=linear", "train.rounds=2"), federation()
    encoder = build_encoder(cfg.model, (10,), seed=0)
    theta = {k: v.detach().clone() for k, v in encoder.named_parameters()}
    state = ServerState(0, theta, F.normalize(torch.randn(PEOPLE, 4, generator=rng(1)), dim=1), data.class_of)
    cfg = cfg.override(["clients.examples_per_step=all"])
    run_clients = make_runner(cfg, method_of(cfg), data, encoder)
    first, second = (
        aggregate(state, run_clients(replace(broadcast(state, data.available), round_num=t))).delta for t in (0, 1)
    )
    for k in first:
        torch.testing.assert_close(second[k], first[k] / 2)


# --- a clip that follows the changes ------------------------------------------------------------------------------


def counted(cfg: Config, data: FederatedData, cohort: list[int], clip: float) -> tuple[Tensor, int]:
    """The sum of the changes, cut to this, and how many were inside."""
    encoder = build_encoder(cfg.model, data.x.shape[1:], seed=0)
    theta = {k: v.detach().clone() for k, v in encoder.named_parameters()}
    state = ServerState(0, theta, F.normalize(torch.randn(PEOPLE, 4, generator=rng(1)), dim=1), data.class_of)
    sent = replace(broadcast(state, torch.tensor(cohort)), clip=clip)
    total = aggregate(state, make_runner(cfg, method_of(cfg), data, encoder)(sent))
    return torch.cat([d.flatten() for d in total.delta.values()]).double() * len(cohort), total.inside


@pytest.mark.parametrize("settings", RUNNERS[:4], ids=" ".join)
def test_the_count_and_the_changes_together_move_as_far_as_the_noise_alone_pays_for(settings: tuple[str, ...]) -> None:
    cfg, data, everybody, noise = config(*settings), federation(), list(range(PEOPLE)), 1.5
    lengths = sorted(float(counted(cfg, data, [i], 1e9)[0].norm()) for i in everybody)
    clip, beside, of_count = (lengths[2] + lengths[3]) / 2, beside_count(noise, PEOPLE), count_noise(noise, PEOPLE)
    whole, inside = counted(cfg, data, everybody, clip)
    assert inside == 3
    moves = []
    for left in everybody:
        rest, count = counted(cfg, data, [i for i in everybody if i != left], clip)
        changes, bits = float((whole - rest).norm()), (inside - PEOPLE / 2) - (count - (PEOPLE - 1) / 2)
        moves.append(math.hypot(changes / (clip * beside), bits / of_count))
    assert max(moves) == pytest.approx(1 / noise, rel=1e-4)  # and no more: one Gaussian release of that multiplier


def test_clients_are_sent_the_clip_of_the_round() -> None:
    cfg, data = config("serial"), federation()
    state = replace(ServerState(0, {}, torch.eye(PEOPLE), data.class_of), clip=following(0.7))
    assert send_beside(broadcast(state, torch.tensor([1])), state, method_of(cfg)).clip == 0.7


def test_the_count_costs_little_and_is_paid_for() -> None:
    for noise, expected in ((0.3, 10), (5.0, 100), (5.0, 100_000)):
        beside = beside_count(noise, expected)
        assert joint(beside, 2 * count_noise(noise, expected)) == pytest.approx(noise)
        assert noise < beside <= 1.033 * noise


@pytest.mark.parametrize("quantile", [0.2, 0.5, 0.8])
def test_the_clip_reaches_the_quantile_of_the_lengths(quantile: float) -> None:
    lengths = torch.randn(2000, generator=rng()).exp()
    clip, uniform = 0.01, from_generator(rng(1))
    for _ in range(150):
        inside = int((lengths <= clip).sum())
        clip = next_clip(clip, inside, 2000, quantile, 1.0, 2000, uniform)
    assert float((lengths <= clip).double().mean()) == pytest.approx(quantile, abs=0.05)


# --- clipping -------------------------------------------------------------------------------------------------------


def test_small_changes_stay_as_they_are() -> None:
    delta = {"a": torch.tensor([0.3, 0.0]), "b": torch.tensor([[0.4]])}  # of length 0.5
    assert clipped(delta, 0.5000001) is delta
    assert clipped({"a": torch.zeros(3)}, 1e-9)["a"].tolist() == [0, 0, 0]


def test_a_change_is_cut_as_a_whole_to_the_limit_in_its_own_direction() -> None:
    cut = clipped({"a": torch.tensor([3.0, 0.0]), "b": row_delta(torch.tensor([2]), torch.tensor([[4.0]]), 5)}, 0.5)
    assert cut["a"].tolist() == pytest.approx([0.3, 0])
    assert cut["b"].to_dense().flatten().tolist() == pytest.approx([0, 0, 0.4, 0, 0])


def test_factors_are_one_below_the_limit_and_make_it_above() -> None:
    norms = torch.tensor([0.0, 0.5, 1.0, 2.0, 1e30])
    assert clip_factors(norms, 1.0).tolist() == pytest.approx([1, 1, 1, 0.5, 1e-30])


# --- noise ----------------------------------------------------------------------------------------------------------


def nothing(theta: Params) -> Aggregate:
    nobody = torch.empty(0, dtype=torch.int64)
    return Aggregate({}, nobody, torch.empty(0, 2), 0.0, None, torch.empty(0), nobody, {})


@pytest.mark.parametrize("uniform", [from_the_system, from_generator(rng())], ids=["system", "generator"])
def test_the_noise_on_the_mean_has_the_deviation_of_the_accounting(uniform: object) -> None:
    theta = {"a": torch.zeros(200, 500), "b": torch.zeros(100_001)}
    total = noised(nothing(theta), theta, 0.5, 3.0, 10.0, uniform, [])  # type: ignore[arg-type]
    for change in total.delta.values():
        # The deviation of n draws is known to 1/√(2n) of itself, 0.0022: five of these.
        assert float(change.std()) == pytest.approx(3.0 * 0.5 / 10, rel=0.012)
        assert abs(float(change.mean())) < 5 * 0.15 / math.sqrt(change.numel())


def test_the_noise_is_normal_and_its_numbers_are_independent() -> None:
    draws = gaussian(torch.Size([400_000]), from_the_system)
    for limit, share in ((1, 0.682689), (2, 0.954500), (3, 0.997300), (4, 0.999937)):
        assert float((draws.abs() < limit).double().mean()) == pytest.approx(share, abs=5 * 0.5 / math.sqrt(400_000))
    halves = draws.view(2, -1)  # cosines and sines of the same angles
    assert abs(float((halves[0] * halves[1]).mean())) < 5 / math.sqrt(200_000)
    assert abs(float((halves[0].square() * halves[1].square()).mean()) - 1) < 5 * 3 / math.sqrt(200_000)


def test_a_table_gets_noise_in_rows_that_nobody_touched() -> None:
    theta = {"table": torch.zeros(6, 3)}
    touched = row_delta(torch.tensor([4]), torch.ones(1, 3), 6)
    total = nothing(theta)._replace(delta={"table": touched}, cohort=torch.tensor([0, 1]), loss=1.0)
    change = noised(total, theta, 1.0, 0.01, 4.0, from_the_system, ["table"]).delta["table"]
    assert change.is_sparse
    assert change.is_coalesced()
    assert bool((change.to_dense() != 0).all())
    assert float(change.to_dense()[4].mean()) == pytest.approx(2 / 4, abs=0.05)  # 2 came, 4 were expected


def test_noise_is_never_the_same_and_does_not_follow_torchs_seed() -> None:
    draws = []
    for _ in range(2):
        torch.manual_seed(0)
        draws.append(gaussian(torch.Size([5]), from_the_system))
    assert not draws[0].equal(draws[1])


def test_uniform_numbers_are_inside_their_interval_and_even() -> None:
    u = from_the_system(200_000)
    assert u.dtype == torch.float64
    assert 0 < float(u.min()) < 1e-3
    assert 1 - 1e-3 < float(u.max()) < 1
    counts = torch.histc(u, 20, 0, 1)
    assert float((counts / 10_000 - 1).abs().max()) < 5 / math.sqrt(10_000)
    assert len(from_the_system(0)) == 0


# --- who takes part -------------------------------------------------------------------------------------------------


def test_poisson_takes_each_client_as_often_as_it_says_and_independently() -> None:
    available, rounds, q = torch.arange(10, 40), 4000, 0.2
    chosen = torch.zeros(rounds, 40)
    for t in range(rounds):
        chosen[t, poisson_cohort(available, q, from_the_system)] = 1
    assert not chosen[:, :10].any()
    chosen = chosen[:, 10:]
    assert float((chosen.mean(0) - q).abs().max()) < 5 * math.sqrt(q * (1 - q) / rounds)
    # The size varies as that of independent coins does: 30 · 0.16 = 4.8; a fixed cohort would have 0.
    assert float(chosen.sum(1).var()) == pytest.approx(30 * q * (1 - q), rel=0.15)


def test_a_configured_poisson_cohort_has_the_expected_size() -> None:
    cfg = Config(clients={"sampling": "poisson", "per_round": 6})
    sizes = [float(len(sample_clients(torch.arange(30), cfg.clients, rng(t)))) for t in range(3000)]
    mean, variance = torch.tensor(sizes).mean(), torch.tensor(sizes).var()
    assert float(mean) == pytest.approx(6, abs=5 * math.sqrt(4.8 / 3000))
    assert float(variance) == pytest.approx(4.8, rel=0.15)


def test_a_fixed_cohort_has_its_size_and_everybody_is_as_likely() -> None:
    counts = torch.zeros(12)
    for _ in range(4000):
        cohort = fixed_cohort(torch.arange(12), 3, from_the_system)
        assert len(cohort.unique()) == 3
        counts[cohort] += 1
    assert float((counts / 4000 - 0.25).abs().max()) < 5 * math.sqrt(0.25 * 0.75 / 4000)


def test_a_round_without_anybody_is_noise_alone() -> None:
    cfg, data = config("pooled", "method=positive-only"), federation()
    encoder = build_encoder(cfg.model, (10,), seed=0)
    theta = {k: v.detach().clone() for k, v in encoder.named_parameters()}
    state = ServerState(0, theta, F.normalize(torch.randn(PEOPLE, 4, generator=rng(1)), dim=1), data.class_of)
    released = []

    def release(state: ServerState, total: Aggregate) -> Aggregate:
        released.append(noised(total, state.theta, CLIP, 2.0, 3.0, from_the_system, []))
        return released[-1]

    guard = Guard(release, lambda available: available[:0])
    run_clients = make_runner(cfg, method_of(cfg), data, encoder)
    after = run_round(state, data.available, run_clients, cfg, rng(), guard=guard)
    assert after.loss == 0
    assert after.round_num == 1
    assert after.W.equal(state.W)
    for k, before in theta.items():
        torch.testing.assert_close(after.theta[k] - before, released[0].delta[k], atol=1e-7, rtol=0)
        assert bool((after.theta[k] != before).any())


@pytest.mark.parametrize("regularizer", ["margin", "nearest", "moments"])
def test_without_privacy_too_a_round_may_be_without_anybody(regularizer: str) -> None:
    cfg = Config().override(
        [
            "clients.sampling=poisson",
            "clients.per_round=1",
            f"spread.regularizer={regularizer}",
            "model.embedding_dim=4",
        ]
    )
    data = federation()
    encoder = build_encoder(cfg.model, (10,), seed=0)
    theta = {k: v.detach().clone() for k, v in encoder.named_parameters()}
    state = ServerState(0, theta, F.normalize(torch.randn(PEOPLE, 4, generator=rng(1)), dim=1), data.class_of)
    empty = next(s for s in range(100) if not len(sample_clients(data.available, cfg.clients, rng(s))))
    after = run_round(state, data.available, make_runner(cfg, method_of(cfg), data, encoder), cfg, rng(empty))
    assert after.round_num == 1
    assert all(after.theta[k].equal(theta[k]) for k in theta)
