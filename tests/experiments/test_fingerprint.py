"""A fingerprint tells code that computes otherwise from code that computes the same."""

import pytest
import torch

from fedaws import Config, config
from fedaws.core import moments, spreadout
from fedaws.experiments import fingerprint as module
from fedaws.experiments.fingerprint import fingerprint, same, shrunk


@pytest.fixture(autouse=True)
def _forgetful() -> None:
    module._of.cache_clear()


@pytest.mark.parametrize("preset", config.presets())
def test_every_preset_has_one_and_has_it_again(preset: str) -> None:
    cfg = config.load(preset)
    first = fingerprint(cfg)
    module._of.cache_clear()
    assert same(first, fingerprint(cfg))
    assert torch.tensor(first).isfinite().all()


def test_length_and_seed_are_no_part_of_it() -> None:
    cfg = config.load("digits")
    assert fingerprint(cfg) == fingerprint(cfg.override(["train.rounds=77", "seed=5", "train.evaluate_every=3"]))


@pytest.mark.parametrize(
    "setting", ["spread.weight=0.001", "clients.lr=0.5", "clients.margin=0.8", "spread.regularizer=moments"]
)
def test_what_changes_results_changes_it(setting: str) -> None:
    cfg = config.load("digits")
    assert not same(fingerprint(cfg), fingerprint(cfg.override([setting])))


def test_a_step_of_the_server_that_computes_otherwise_changes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = Config(spread={"regularizer": "moments"})
    before = fingerprint(cfg)
    module._of.cache_clear()
    monkeypatch.setattr(spreadout, "moments_", lambda W, center, whiten: moments.moments_(W, center, 0.9 * whiten))
    assert not same(before, fingerprint(cfg))


def test_a_shrunk_configuration_mines_and_takes_few_clients_where_the_preset_does() -> None:
    small = shrunk(config.load("yso-finna-en"))
    assert (small.clients.per_round, small.spread.neighbors, small.spread.candidates) == (3, 5, 12)
    assert small.spread.remember
    assert shrunk(config.load("digits")).clients.per_round == "all"
