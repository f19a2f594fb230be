"""Whether θ forgets who leaves."""

import pytest
import torch

import fedaws
from fedaws import Config, FederatedData
from fedaws.audit import audit
from fedaws.audit.unlearning import ANEW, BEFORE, STAY, forgetting, leads
from helpers import refusal

QUICK = Config().override(["train.rounds=8", "model.embedding_dim=6", "model.hidden=[8]", "train.threads=1"])


def people(count: int) -> FederatedData:
    rng = torch.Generator().manual_seed(0)
    y = torch.arange(count).repeat_interleave(12)
    x = torch.randn(count, 6, generator=rng)[y] + 0.5 * torch.randn(len(y), 6, generator=rng)
    test = torch.arange(len(y)) % 3 == 0
    return fedaws.from_arrays(x[~test], y[~test], x[test], y[test])


def test_people_are_parted_and_scored_after_each_kind_of_training() -> None:
    found = leads(QUICK, people(9), rounds=(2,))
    assert set(found) == {BEFORE, STAY, ANEW, "after 2 rounds"}
    assert {name: (len(inside), len(outside)) for name, (inside, outside) in found.items()} == {
        BEFORE: (1, 3),
        STAY: (5, 3),
        ANEW: (1, 3),
        "after 2 rounds": (1, 3),
    }
    assert all(sum(outside) == pytest.approx(0, abs=1e-9) for _, outside in found.values())
    assert leads(QUICK, people(9), rounds=(2,)) == found  # by the seed alone


def test_partings_are_put_together_over_people() -> None:
    found = forgetting([{BEFORE: ([0.3], [0.1, -0.1])}, {BEFORE: ([0.0], [0.2, -0.2])}])[BEFORE]
    assert found.auc.value == pytest.approx(6 / 8)  # 0.3 above all four, 0.0 above two of them
    assert found.lead.value == pytest.approx(0.15)


def test_the_audit_has_it_where_it_is_asked_for() -> None:
    data = people(6)
    run = fedaws.train(data, config=QUICK)
    lines = audit(run, data, ["unlearning"], rounds=(2,)).lines
    assert [line.does for line in lines] == [
        "asks whether somebody took part who is about to leave",
        "asks whether somebody who has left took part: after 2 rounds without them",
    ]
    assert lines[0].figure.chance == lines[1].figure.chance


def test_too_few_people_are_refused() -> None:
    assert "at least 6 classes" in refusal(lambda: leads(QUICK, people(4)))
