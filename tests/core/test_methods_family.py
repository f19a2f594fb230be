"""A client of several classes that gets its own rows, and nothing of another client's."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fedaws
from fedaws import Config
from fedaws.core.aggregate import aggregate
from fedaws.core.algorithm import broadcast, run_round
from fedaws.core.methods import family, method_of
from fedaws.core.start import random_rows, start_state
from fedaws.data import FederatedData, from_arrays
from fedaws.models import build_encoder
from fedaws.runners import make_runner
from fedaws.types import ServerState, Update
from helpers import refusal


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_data(several: int = 2, noise: float = 0.5) -> FederatedData:
    y = torch.arange(6).repeat_interleave(torch.tensor([9, 5, 16, 6, 7, 12]))
    x = 2 * torch.randn(6, 10, generator=rng())[y] + noise * torch.randn(len(y), 10, generator=rng(1))
    return from_arrays(x, y, classes_per_client=several)


def config(runner: str = "serial", steps: int = 1, method: str = "family") -> Config:
    return Config.model_validate(
        {
            "method": method,
            "model": {"embedding_dim": 8, "hidden": [16]},
            "clients": {"examples_per_step": 4, "lr": 0.1, "per_round": 4, "local_steps": steps},
            "train": {"runner": runner, "rounds": 40, "threads": 1},
        }
    )


def start(cfg: Config, data: FederatedData) -> tuple[ServerState, torch.nn.Module]:
    encoder = build_encoder(cfg.model, (10,), seed=0)
    theta = {k: v.detach().clone() for k, v in encoder.named_parameters()}
    return start_state(cfg, method_of(cfg), theta, random_rows(cfg, 6), data.class_of), encoder


def trained(runner: str, several: int, steps: int) -> ServerState:
    data, cfg = make_data(several), config(runner, steps)
    state, encoder = start(cfg, data)
    run_clients = make_runner(cfg, method_of(cfg), data, encoder)
    for t in range(15):
        state = run_round(state, data.available, run_clients, cfg, rng(t))
    return state


def test_the_loss_is_a_plain_loop_over_the_own_rows() -> None:
    z, w = F.normalize(torch.randn(2, 3, 5, generator=rng()), dim=-1), F.normalize(torch.randn(2, 4, 5), dim=-1)
    places = torch.tensor([[0, 3, 1], [2, 2, 0]])
    found = family.own_contrastive(z, places, w, margin=1.2, positive_margin=0.9)
    for client in range(2):
        for b in range(3):
            scores = [float(z[client, b] @ w[client, c]) for c in range(4)]
            own = int(places[client, b])
            expected = max(0.0, 0.9 - scores[own]) ** 2
            expected += sum(max(0.0, 0.2 + s) ** 2 for c, s in enumerate(scores) if c != own)
            assert float(found[client, b]) == pytest.approx(expected, abs=1e-5)


def test_a_client_has_the_classes_of_its_examples() -> None:
    data = make_data(3)
    assert data.class_of.tolist() == [[c, (c + 1) % 6, (c + 2) % 6] for c in range(6)]
    for client, classes in enumerate(data.class_of.tolist()):
        assert set(data.y[data.starts[client] : data.starts[client + 1]].tolist()) <= set(classes)


def test_a_client_is_sent_its_own_rows_in_storage_of_their_own() -> None:
    state, _ = start(config(), make_data())
    sent = broadcast(state, torch.tensor([5]))
    assert torch.equal(sent.W, state.W[[5, 0]][None])
    assert sent.shared is None
    assert sent.W.untyped_storage().nbytes() == sent.W.nbytes  # not a view into W: no other row hangs on it
    assert sent.W.untyped_storage().data_ptr() != state.W.untyped_storage().data_ptr()


@pytest.mark.parametrize("runner", ["serial", "pooled", "stacked"])
def test_a_clients_update_does_not_depend_on_others_rows_or_examples(runner: str) -> None:
    data, cfg = make_data(), config(runner)
    state, encoder = start(cfg, data)
    own = slice(int(data.starts[2]), int(data.starts[3]))
    assert isinstance(data.x, torch.Tensor)
    x = torch.full_like(data.x, 9.0)
    x[own] = data.x[own]
    W = -state.W
    W[[2, 3]] = state.W[[2, 3]]
    cohort = torch.tensor([2])
    (mine,) = make_runner(cfg, method_of(cfg), data, encoder)(broadcast(state, cohort))
    (same,) = make_runner(cfg, method_of(cfg), replace(data, x=x), encoder)(broadcast(replace(state, W=W), cohort))
    assert torch.equal(mine.W, same.W)
    assert mine.W.shape == (1, 2, 8)
    assert all(torch.equal(mine.delta[k], same.delta[k]) for k in mine.delta)


def test_a_class_of_several_clients_has_the_weighted_mean_of_its_rows() -> None:
    # Client 0 has classes 0, 1 and weight 3; client 1 has 1, 2 and weight 1: row 1 is (3 · 2 + 1 · 6) / 4.
    state = ServerState(0, {}, torch.zeros(3, 1), torch.tensor([[0, 1], [1, 2], [2, 0]]))

    def update(client: int, rows: list[float], weight: float) -> Update:
        W: Tensor = torch.tensor(rows)[None, :, None]
        return Update(torch.tensor([client]), {}, W, torch.tensor([weight]), torch.zeros(1))

    total = aggregate(state, [update(0, [5.0, 2.0], 3.0), update(1, [6.0, 7.0], 1.0)])
    assert total.classes.tolist() == [0, 1, 2]
    assert total.rows[:, 0].tolist() == [5.0, 3.0, 7.0]


@pytest.mark.parametrize("several", [2, 3])
def test_pooled_stacked_and_serial_agree(several: int) -> None:
    serial = trained("serial", several, steps=1)
    for runner in ("pooled", "stacked"):
        torch.testing.assert_close(trained(runner, several, steps=1).W, serial.W, atol=1e-5, rtol=0)


def test_stacked_and_serial_agree_over_several_local_steps() -> None:
    torch.testing.assert_close(trained("stacked", 2, 3).W, trained("serial", 2, 3).W, atol=1e-5, rtol=0)


def test_it_learns() -> None:
    cfg = config("auto").with_(train={"rounds": 200}, clients={"per_round": "all", "lr": 0.3})
    assert fedaws.train(make_data(), config=cfg).metrics[-1]["precision@1"] > 0.95


def test_clients_of_one_class_are_refused_in_one_line() -> None:
    told = refusal(lambda: fedaws.train(make_data(1), config=config()))
    assert told.startswith("method=family needs clients of several classes; set data.classes_per_client=2")


def test_fedaws_refuses_clients_of_several_classes() -> None:
    told = refusal(lambda: fedaws.train(make_data(2), config=config(method="fedaws")))
    assert told.startswith("method=fedaws needs clients of one class")


def test_flower_refuses_it_in_one_line() -> None:
    strategy = pytest.importorskip("fedaws.flower.strategy")
    told = refusal(lambda: strategy.FedAwS({"a": 0, "b": 1}, config=config()))
    assert told == "method=family has several classes a client: not carried over Flower; use method=fedaws"
