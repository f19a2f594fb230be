"""ε from below never exceeds the accountant's, and is not always nothing."""

import pytest
import torch

from fedaws import Config, FederatedData, from_arrays
from fedaws.audit.canary import canary
from fedaws.audit.federation import federated, short
from fedaws.audit.membership import membership_of_halves
from fedaws.privacy.accountant import AtMost, epsilon
from fedaws.privacy.mechanism import from_generator
from helpers import refusal

PEOPLE = 12


def federation() -> FederatedData:
    rng = torch.Generator().manual_seed(0)
    y = torch.arange(PEOPLE).repeat_interleave(4)
    x = torch.randn(len(y), 5, generator=rng) + 2 * torch.randn(PEOPLE, 5, generator=rng)[y]
    return from_arrays(x[::2], y[::2], x[1::2], y[1::2])


def config(*settings: str) -> Config:
    usual = ["method=fixed", "model.embedding_dim=4", "model.hidden=[]", "train.rounds=2", "train.schedule=constant"]
    return Config().override([*usual, "privacy.clip=0.01", "privacy.delta=1e-3", *settings])


@pytest.mark.parametrize("cohort", [[], ["clients.per_round=6", "clients.sampling=poisson"]], ids=["all", "coins"])
def test_an_attack_shows_less_than_the_accountant_says(cohort: list[str]) -> None:
    uniform = from_generator(torch.Generator().manual_seed(1))
    found = canary(config("privacy.epsilon=3", *cohort), federation(), person=4, runs=60, uniform=uniform)
    assert found.at_least <= found.at_most <= 3.0


def test_little_noise_is_found_out() -> None:
    """If 30 of 30 each are told apart, ln(0.025^(1/30) / (1 − 0.025^(1/30))) = 2.03 is shown, and never more."""
    uniform = from_generator(torch.Generator().manual_seed(2))
    found = canary(config("privacy.noise=0.2"), federation(), person=4, runs=60, uniform=uniform)
    assert 1.0 < found.at_least < 2.04
    assert found.at_most == pytest.approx(epsilon(0.2, 1e-3, 2, AtMost()))


def test_a_canary_is_of_private_training_with_plain_averaging() -> None:
    plain = Config().override(["method=fixed", "train.rounds=1", "train.schedule=constant"])
    assert "set privacy.clip" in refusal(lambda: canary(plain, federation(), 0, 2))
    adam = config("privacy.noise=1", "server.optimizer=adam")
    assert "server.optimizer=sgd" in refusal(lambda: canary(adam, federation(), 0, 2))


def test_the_short_federations_of_a_private_run_are_private() -> None:
    cfg = short(config("privacy.noise=5"), rounds=2, seed=0)
    first, second = (federated(cfg, federation()).theta for _ in range(2))
    assert any(not first[k].equal(second[k]) for k in first)


def test_membership_of_a_private_run_has_the_accountants_bound_beside_it() -> None:
    cfg = config("privacy.epsilon=4")
    found = membership_of_halves(cfg, federation(), splits=2)
    assert found.delta == 1e-3
    assert found.promised is not None
    assert found.epsilon <= found.promised <= 4.0
    assert "by the accountant at most" in found.finding().learns
