"""Noise in shares over Flower: the nodes add it, no server can lower it, and ε is written down before it is spent."""

import json
import logging
import math
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from fedaws import Config
from fedaws.core.schedule import schedule
from fedaws.flower import secure
from fedaws.flower.wire import Limits, Rejected
from fedaws.privacy.accountant import AtMost, default_delta, epsilon
from fedaws.privacy.sum_keeper import PEERS_FILE, Peers
from fedaws.record.folder import RunFolder
from fedaws.record.ledger import LEDGER
from fedaws.runners.serial import serial
from fedaws.types import Broadcast, RunClients, Update
from flower_trial import Trial
from helpers import refusal

NOISY = [
    *("privacy.secure_sums=true", "privacy.min_cohort=3", "method=fixed", "train.rounds=2"),
    *("privacy.clip=0.5", "privacy.noise=2.0", "server.lr=1.0", "server.momentum=0.0"),
]


@pytest.fixture
def noisy(trial: Callable[..., Trial], tiny: Config) -> Callable[..., Trial]:
    def make(more: tuple[str, ...] = (), **settings: Any) -> Trial:
        return trial(4, config=tiny.override([*NOISY, *more]), **settings)

    return make


def theta_of(made: Trial) -> dict[str, torch.Tensor]:
    return RunFolder(made.place.run).load_model()[0]


def test_epsilon_stands_in_ledger_metrics_and_model(noisy: Callable[..., Trial]) -> None:
    made = noisy()
    made.serve()
    folder = RunFolder(made.place.run)
    expected = epsilon(2.0, default_delta(4), 2, AtMost(discrete=True))
    assert folder.metrics()[-1]["dp_epsilon"] == pytest.approx(expected)
    assert json.loads((folder.path / LEDGER).read_text())["releases"] == 2
    facts = folder.load_model().facts.privacy
    assert facts is not None
    assert facts.epsilon == pytest.approx(expected)
    assert (facts.noise, facts.clip) == (2.0, 0.5)
    assert "noise in shares of the nodes" in facts.cohorts


def test_the_nodes_noise_is_in_the_model_as_the_accounting_has_it_and_never_the_same(
    noisy: Callable[..., Trial],
) -> None:
    made = noisy()
    made.serve()
    first, anew = theta_of(made), made.place.root / "anew"
    made.settings["folder"] = str(anew)
    made.serve()
    second = RunFolder(anew).load_model()[0]
    numbers = sum(t.numel() for t in first.values())
    apart = math.sqrt(sum(float((first[k] - t).square().sum()) for k, t in second.items()))
    # In each run two means over 4 nodes of shares of 2 · 0.5 · factor / √3 each: the threshold is 3 of 4.
    factors = sum(schedule(made.config.train, turn) ** 2 for turn in range(2))
    expected = math.sqrt(2 * factors * numbers * 4 / 3) * 2.0 * 0.5 / 4
    assert apart == pytest.approx(expected, rel=0.15)


def failures(made: Trial, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> str:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    refusal(made.serve)
    return caplog.text


@pytest.mark.parametrize(
    ("lowered", "reason"),
    [
        ("privacy.noise=1.9", "the server wants noise=1.9 × the clip; this node gives 2 or more"),
        ("privacy.noise=none privacy.clip=none", "the server wants noise=0 × the clip; this node gives 2 or more"),
        ("privacy.clip=0.6", "the server wants changes of up to 0.6; this node cuts its own to 0.5"),
        ("clients.weighting=examples privacy.noise=none privacy.clip=none", "this node gives 2 or more"),
    ],
)
def test_a_server_that_lowers_the_noise_is_refused_by_the_nodes(
    noisy: Callable[..., Trial],
    lowered: str,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert reason in failures(noisy(settings=lowered), monkeypatch, caplog)


def test_nodes_give_as_many_sums_as_their_epsilon_allows(
    noisy: Callable[..., Trial], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = noisy(("privacy.noise=none", "privacy.epsilon=8.0"))
    made.serve()
    made.settings["folder"] = str(made.place.root / "anew")
    assert "this node has given 2 sums, as many as its ε allows" in failures(made, monkeypatch, caplog)


def test_init_writes_the_noise_into_the_nodes_own_terms(noisy: Callable[..., Trial]) -> None:
    made = noisy(("privacy.noise=none", "privacy.epsilon=8.0"))
    rules = Peers(**tomllib.loads((made.place.node("node-0") / PEERS_FILE).read_text()))
    assert (rules.clip, rules.most_sums) == (0.5, 2)
    assert epsilon(rules.noise, default_delta(4), 2, AtMost(discrete=True)) == pytest.approx(8.0, rel=1e-3)


def test_with_noise_a_node_tells_neither_loss_nor_times(noisy: Callable[..., Trial]) -> None:
    made = noisy()
    made.serve()
    assert all(row["loss"] == 0 for row in RunFolder(made.place.run).metrics())


def test_a_sum_beyond_what_noise_explains_is_spoilt() -> None:
    theta, limits = {"w": torch.zeros(50)}, Limits(1.0, 1.0, 10)
    record = secure.sum_record("0" * 32, 1, {"a": 0, "b": 0, "c": 0}, "", Config().privacy, limits, noise=1.0)
    now, shares = secure.noise_terms(record, limits, theta, factor=0.5)
    assert shares is not None
    assert now.clip_norm == 0.5
    layout = secure.layout_of(theta, now, shares=shares)
    part = secure.Part({"w": torch.full((50,), 9.0)}, 10, 0.0, 0.0, 0.0, {})
    vectors = [secure.with_noise(secure.encoded(part, layout, Config(), now, 3), layout, shares) for _ in range(3)]
    total = vectors[0] + vectors[1] + vectors[2]
    assert secure.decoded(total, layout, theta, 3, 3, now, shares).weight == pytest.approx(3)
    total[:50] += 2**29
    with pytest.raises(Rejected, match="the sum is spoilt"):
        secure.decoded(total, layout, theta, 3, 3, now, shares)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_with_noise_a_node_whose_change_is_not_finite_answers_with_noise_alone(
    noisy: Callable[..., Trial], monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    """Who answers is seen by all, and must not tell of anybody's examples."""

    def spoilt(*given: Any) -> RunClients:
        def run(sent: Broadcast) -> Iterator[Update]:
            for update in serial(*given)(sent):
                yield replace(update, delta={name: torch.full_like(d, value) for name, d in update.delta.items()})

        return run

    monkeypatch.setattr("fedaws.flower.client_app.serial", spoilt)
    made = noisy()
    made.serve()
    assert RunFolder(made.place.run).metrics()[-1]["replies"] == 4
    assert all(bool(tensor.isfinite().all()) for tensor in theta_of(made).values())
