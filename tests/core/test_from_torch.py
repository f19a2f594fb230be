"""PyTorch's optimisers on the server: the same steps as by hand, kept in a checkpoint, or refused in one line."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedaws import Config
from fedaws.core.algorithm import finish_round
from fedaws.core.method import Method
from fedaws.core.methods import method_of
from fedaws.core.optimizers import from_torch
from fedaws.core.start import start_state
from fedaws.record.facts import Facts
from fedaws.record.folder import RunFolder
from fedaws.types import Params, ServerState, Update
from helpers import refusal

Factory = Callable[[Iterable[Tensor]], torch.optim.Optimizer]
FACTORIES: dict[str, Factory] = {
    "AdamW": lambda params: torch.optim.AdamW(params, lr=0.1, weight_decay=0.3),
    "SGD with momentum": lambda params: torch.optim.SGD(params, lr=0.5, momentum=0.9),
    "Adagrad": lambda params: torch.optim.Adagrad(params, lr=0.2, initial_accumulator_value=0.1),
}
CFG = Config().override(["method=fixed", "train.schedule=constant", "server.lr=0.5", "model.embedding_dim=2"])


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def theta() -> Params:
    return {"weight": normal(0, 3, 2), "bias": normal(1, 3)}


def deltas(round_num: int) -> Params:
    return {"weight": normal(10 + round_num, 3, 2), "bias": normal(20 + round_num, 3)}


def with_server(factory: Factory) -> Method:
    return replace(method_of(CFG), server=from_torch(factory))


def begin(method: Method) -> ServerState:
    return start_state(CFG, method, theta(), torch.eye(2))


def go_on(state: ServerState, method: Method, rounds: int) -> ServerState:
    for _ in range(rounds):
        update = Update(torch.tensor([0]), deltas(state.round_num), state.W[:1], torch.ones(1), torch.zeros(1))
        state = finish_round(state, [update], CFG, torch.Generator(), method)
    return state


@pytest.mark.parametrize("name", FACTORIES)
def test_three_rounds_are_three_steps_of_the_optimiser_by_hand(name: str) -> None:
    method = with_server(FACTORIES[name])
    params = {k: nn.Parameter(v) for k, v in theta().items()}
    optimizer = FACTORIES[name](params.values())
    for group in optimizer.param_groups:
        group["lr"] *= 0.5  # server.lr
    for round_num in range(3):
        for k, p in params.items():
            p.grad = -deltas(round_num)[k]
        optimizer.step()
    after = go_on(begin(method), method, 3)
    for k, p in params.items():
        torch.testing.assert_close(after.theta[k], p.detach(), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", FACTORIES)
@pytest.mark.parametrize("stopped", [1, 2])
def test_a_run_goes_on_from_a_checkpoint_to_the_same_bits(name: str, stopped: int, tmp_path: Path) -> None:
    method, folder = with_server(FACTORIES[name]), RunFolder(tmp_path)
    half = go_on(begin(method), method, stopped)
    folder.save_checkpoint(half, Facts(example_shape=(2,), example_dtype="float32", round=half.round_num))
    found = folder.load_checkpoint(begin(method))
    assert found is not None
    resumed, whole = go_on(found[0], method, 3 - stopped), go_on(begin(method), method, 3)
    assert all(resumed.theta[k].equal(whole.theta[k]) for k in whole.theta)
    assert all(resumed.optimizer[k].equal(whole.optimizer[k]) for k in whole.optimizer)


class Counting(torch.optim.Optimizer):
    """Keeps its steps as a plain number."""

    def __init__(self, params: Iterable[Tensor]) -> None:
        super().__init__(params, {"lr": 1.0})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["count"] = self.state[p].get("count", 0) + 1


def test_an_optimiser_whose_memory_is_no_tensor_is_refused() -> None:
    told = refusal(lambda: begin(with_server(Counting)))
    assert told.startswith("the optimiser keeps 'count' as int, which cannot be saved; wanted tensors only")


def test_an_optimiser_that_needs_a_closure_is_refused() -> None:
    told = refusal(lambda: begin(with_server(torch.optim.LBFGS)))
    assert "LBFGS" in told
    assert "take another torch.optim class" in told
