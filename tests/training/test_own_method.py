"""A method of one's own: loss, spreading with a memory, a torch.optim server optimiser and a measure, end to end."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fedaws
from fedaws import Config, Method, Model, Reporter, Run, Spread, TestSet
from fedaws.core.method import When
from fedaws.core.methods import method_of
from fedaws.core.optimizers import from_torch
from fedaws.record.folder import RunFolder
from fedaws.record.state import read_state
from fedaws.types import Memory
from helpers import dense, refusal


def away(embeddings: Tensor, w: Tensor) -> Tensor:
    """‖g − w‖²/2."""
    return (embeddings - w).square().sum(-1) / 2


def push_from_mean(W: Tensor, classes: Tensor, when: When, rng: torch.Generator, memory: Memory) -> Memory:
    """Away from a running mean of all rows."""
    mean = 0.9 * memory["mean"] + 0.1 * W.mean(0)
    W.copy_(F.normalize(W - when.lr * mean, dim=1))
    return {"mean": mean}


def median_score(model: Model, test: TestSet) -> float:
    return float((model.embed(test.x) * model.W[dense(test.y)]).sum(1).median())


def mine(role: str = "a trial") -> Method:
    return Method(
        name="away",
        role=role,
        rows="own",
        loss=away,
        spread=Spread(push_from_mean, lambda W: {"mean": W.mean(0)}),
        server=from_torch(lambda params: torch.optim.AdamW(params, lr=0.05)),
    )


MEASURES = {"median_score": median_score}


@pytest.fixture
def cfg(tiny: Config) -> Config:
    return tiny.override(["server.momentum=0"])


class Killed(BaseException):
    """Ends a run at once."""


def killed_after(rounds: int) -> Reporter:
    def die(done: int, _loss: float) -> None:
        if done == rounds:
            raise Killed

    return Reporter(on_round=die)


def bits(run: Run) -> dict[str, list[int]]:
    return {name: t.view(torch.int32).flatten().tolist() for name, t in {"W": run.W, **run.theta}.items()}


@pytest.fixture
def half(cfg: Config, tmp_path: Path) -> Path:
    """A run killed in round 8, after its checkpoint of round 5."""
    with pytest.raises(Killed):
        fedaws.train(config=cfg, method=mine(), measures=MEASURES, folder=tmp_path / "run", reporter=killed_after(8))
    return tmp_path / "run"


def test_it_trains_and_is_measured(cfg: Config) -> None:
    run = fedaws.train(config=cfg, method=mine(), measures=MEASURES)
    assert run.config.method == "away"
    assert run.facts.own_method
    assert run.facts.role == "a trial"
    assert run.metrics[-1]["loss"] < run.metrics[0]["loss"]
    assert run.data is not None
    found = median_score(run.model, TestSet(run.data.x_test, run.data.y_test))
    assert run.metrics[-1]["median_score"] == pytest.approx(found)


def test_killed_and_resumed_it_ends_with_the_same_bits(cfg: Config, half: Path) -> None:
    resumed = fedaws.train(config=cfg, method=mine(), measures=MEASURES, folder=half, resume=True)
    whole = fedaws.train(config=cfg, method=mine(), measures=MEASURES)
    assert bits(resumed) == bits(whole)
    assert [row["median_score"] for row in resumed.metrics] == [row["median_score"] for row in whole.metrics]


def test_its_memory_is_in_the_checkpoint(cfg: Config, half: Path) -> None:
    from fedaws.record.files import read_tensors

    names = read_tensors(RunFolder(half).checkpoints()[-1])[0].keys()
    assert "spread/mean" in names
    assert {"optimizer/exp_avg/1.weight", "optimizer/exp_avg_sq/3.bias", "optimizer/step/1.bias"} <= names


def other_memory() -> Method:
    return Method("away", "a trial", "own", away)


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({}, "was started with method=away, now it is fedaws"),
        ({"method": mine()}, "was started with own_measures=('median_score',), now it is ()"),
        ({"method": mine(), "measures": {"other": median_score}}, "own_measures"),
        ({"method": mine("another"), "measures": MEASURES}, "was started with role=a trial, now it is another"),
        ({"method": other_memory(), "measures": MEASURES}, "is of another run"),
    ],
)
def test_what_was_given_must_be_given_again(cfg: Config, half: Path, given: dict[str, Any], part: str) -> None:
    assert part in refusal(lambda: fedaws.train(config=cfg, folder=half, resume=True, **given))


@pytest.mark.parametrize(
    ("other", "name"),
    [
        ({"loss": lambda g, w: 2 * away(g, w)}, "loss"),
        ({"spread": Spread(lambda W, c, when, rng, memory: memory, lambda W: {"mean": W.mean(0)})}, "spread"),
        ({"server": from_torch(lambda params: torch.optim.AdamW(params, lr=0.06))}, "server"),
        ({"rows": "fixed"}, "rows"),
        ({"measures": {"median_score": lambda model, test: 0.5}}, "measure 'median_score'"),
    ],
)
def test_it_does_not_go_on_with_another_function_of_the_same_name(
    cfg: Config, half: Path, other: dict[str, Any], name: str
) -> None:
    measures = other.pop("measures", MEASURES)
    method = replace(mine(), **other)
    told = refusal(lambda: fedaws.train(config=cfg, method=method, measures=measures, folder=half, resume=True))
    assert f"was started with another {name}; resume with the same" in told


@pytest.mark.parametrize(
    ("saved", "told"), [({}, "an older version of fedaws"), ({"python": "3.0", "loss": "1"}, "Python 3.0")]
)
def test_what_cannot_be_compared_goes_on_with_a_warning(
    cfg: Config, half: Path, saved: dict[str, str], told: str
) -> None:
    from fedaws.record.files import write_tensors

    newest = RunFolder(half).checkpoints()[-1]
    tensors, facts = read_state(newest)
    write_tensors(newest, tensors, facts.model_copy(update={"functions": saved}).model_dump(mode="json"))
    warned: list[str] = []
    fedaws.train(
        config=cfg,
        method=mine(),
        measures=MEASURES,
        folder=half,
        resume=True,
        reporter=Reporter(on_warning=warned.append),
    )
    assert [line for line in warned if f"was started by {told}: whether its own functions are the same" in line]


def test_settings_that_its_functions_replace_are_refused(cfg: Config, tmp_path: Path) -> None:
    for setting in ("spread.weight=3", "server.optimizer=adam", "clients.margin=0.7"):
        own = cfg.override([setting])
        told = refusal(partial(fedaws.train, config=own, method=mine(), folder=tmp_path / "run"))
        assert "no effect on method=away, which has functions of its own there; leave it out" in told
    assert not (tmp_path / "run").exists()


def test_settings_of_the_packages_functions_in_it_hold(cfg: Config) -> None:
    def trained(weight: float) -> Run:
        one = cfg.override([f"spread.weight={weight}", "spread.bounded=false"])
        return fedaws.train(config=one, method=replace(method_of(one), name="mine", loss=away))

    assert not trained(3).W.equal(trained(1).W)


def test_what_it_replaces_is_not_in_its_record(cfg: Config, tmp_path: Path) -> None:
    found = fedaws.compare([mine(), "fedaws"], config=cfg.override(["spread.weight=3"]), folder=tmp_path / "runs")
    assert list(found.histories) == ["away", "fedaws"]  # the setting is for one of them
    own, ours = (tmp_path / "runs" / f"{name}-seed0" for name in ("away", "fedaws"))
    assert "[spread]" not in (own / "config.toml").read_text()
    assert "margin" not in (own / "config.toml").read_text()
    assert "weight = 3.0" in (ours / "config.toml").read_text()
    copy = fedaws.load(own).save(tmp_path / "copy")
    assert (copy / "config.toml").read_text() == (own / "config.toml").read_text()


def test_a_record_of_an_older_version_that_states_them_goes_on(cfg: Config, half: Path) -> None:
    text = (half / "config.toml").read_text()
    (half / "config.toml").write_text(f"{text}\n[spread]\nweight = 3.0\n")
    fedaws.train(config=cfg, method=mine(), measures=MEASURES, folder=half, resume=True)


def test_it_has_a_name_of_its_own(cfg: Config, tmp_path: Path) -> None:
    method = replace(mine(), name="fedaws")
    for action in (
        lambda: fedaws.train(config=cfg, method=method, folder=tmp_path / "run"),
        lambda: fedaws.compare([method, "fixed"], config=cfg, folder=tmp_path / "run"),
    ):
        assert refusal(action) == "a method of your own is called 'fedaws', as one of ours; give it another name"
    assert not (tmp_path / "run").exists()


def test_its_name_alone_does_not_resume_it(half: Path) -> None:
    told = refusal(lambda: fedaws.train(config=RunFolder(half).config(), folder=half, resume=True))
    assert "no method 'away'" in told
    assert "fedaws.train(…, method=…)" in told


def test_a_measure_that_gives_no_number_is_refused(cfg: Config) -> None:
    told = refusal(lambda: fedaws.train(config=cfg, method=mine(), measures={"odd": lambda m, t: float("nan")}))
    assert told == "the measure 'odd' gave nan; wanted a finite number"


def test_it_is_loaded_as_it_was_trained(cfg: Config, tmp_path: Path) -> None:
    run = fedaws.train(config=cfg, method=mine(), measures=MEASURES, folder=tmp_path / "run")
    assert bits(fedaws.load(tmp_path / "run")) == bits(run)


def test_it_is_shown_in_a_report(cfg: Config, tmp_path: Path, cli: Callable[..., Any]) -> None:
    fedaws.train(config=cfg, method=mine(), measures=MEASURES, folder=tmp_path / "run")
    code, _, err = cli("report", tmp_path / "run", "-o", tmp_path / "page.html")
    assert code == 0, err
    assert "away" in (tmp_path / "page.html").read_text()
