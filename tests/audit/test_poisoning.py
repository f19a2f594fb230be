"""One node against a victim, with and without defences; rows that become examples."""

import pytest
import torch
import torch.nn.functional as F

from fedaws import Config
from fedaws.audit.federation import federated, rounds_of, short
from fedaws.audit.poisoning import as_long_as, defence_of, poisoning
from fedaws.audit.row_inversion import another, equal_error, row_inversion
from fedaws.config import load
from fedaws.data import load_data


def test_a_node_that_answers_honestly_changes_nothing(tiny: Config) -> None:
    cfg, data = short(tiny, 3, 0), load_data(tiny)
    honest, same = federated(cfg, data), federated(cfg, data, 1, lambda sent, update: update)
    assert torch.allclose(honest.W, same.W, atol=1e-5)


def test_a_node_sees_its_own_row_alone(tiny: Config) -> None:
    cfg, data, seen = short(tiny, 2, 0), load_data(tiny), []
    list(rounds_of(cfg, data, 2, lambda sent, update: seen.append((sent.cohort.tolist(), sent.W.shape)) or update))
    assert seen == [([2], (1, 5))] * 2


def test_capture_takes_the_victims_examples_and_apart_rows_with_median_clipping_keep_them() -> None:
    cfg = load("digits-flower")
    data = load_data(cfg)
    (captured,) = poisoning(cfg, data, ["capture"], seeds=[0])
    assert captured.victim.chance > 0.9
    assert captured.victim.high < 0.3
    defended = cfg.override(["defence.apart=0.5", "defence.clip=median", "train.rounds=12"])
    (kept,) = poisoning(defended, data, ["capture"], seeds=[0])
    assert kept.victim.low > 0.7


def test_the_attackers_change_is_as_long_as_it_may_be() -> None:
    delta = as_long_as({"a": torch.ones(3, 3), "b": torch.ones(7)}, 2.0)  # 16 ones: length 4
    assert torch.equal(delta["a"], torch.full((3, 3), 0.5))


def test_a_defence_is_told_in_a_few_words() -> None:
    cfg = Config().override(["defence.apart=0.5", "defence.clip=median"])
    assert defence_of(cfg, 10.0) == "clip median, apart 0.5"
    assert defence_of(Config(), 1.3) == "clip 1.3"


def test_the_equal_error_threshold_is_where_both_errors_meet() -> None:
    right = torch.tensor([0.9, 0.8, 0.7, 0.3])  # one of four right claims is below 0.7,
    wrong = torch.tensor([0.75, 0.2, 0.1, 0.0])  # one of four wrong ones above
    scores = torch.stack([right, wrong], 1)
    threshold, rate = equal_error(scores, torch.zeros(4, dtype=torch.int64))
    assert threshold == pytest.approx(0.7)
    assert rate == pytest.approx(0.25)


def test_a_row_becomes_an_example_that_another_model_accepts() -> None:
    cfg = load("digits-flower")
    data = load_data(cfg)
    found = row_inversion(federated(cfg, data), another(cfg, data), data, torch.Generator().manual_seed(0), tries=5)
    assert found.accepted.low > 0.5 > found.accepted.chance


def test_a_row_of_no_meaning_is_not_accepted(tiny: Config) -> None:
    cfg = tiny.override(["train.rounds=100", "model.hidden=[32]", "data.classes=8"])
    data = load_data(cfg)
    model = federated(short(cfg, 100, 0), data)
    rows = F.normalize(torch.randn(8, 5, generator=torch.Generator().manual_seed(0)), dim=1)
    shuffled = type(model)(model.encoder, model.theta, rows)
    found = row_inversion(shuffled, another(cfg, data), data, torch.Generator().manual_seed(0), tries=5)
    assert found.accepted.value < 0.5
