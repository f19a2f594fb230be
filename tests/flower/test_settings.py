"""The settings of `[tool.flwr.app.config]`."""

import pytest

pytest.importorskip("flwr")

from fedaws import Config
from fedaws.flower.federation import from_classes
from fedaws.flower.settings import run_settings
from fedaws.flower.strategy import FedAwS
from helpers import refusal


def test_a_quotation_that_does_not_end_is_one_line() -> None:
    settings = run_settings({"config": "digits", "settings": "name='a b"})
    assert 'settings: got "name=\'a b"; No closing quotation' in refusal(settings.loaded)


def test_a_class_of_a_vast_number_is_refused_without_counting_up_to_it() -> None:
    assert "has no node of class 1; number classes from 0 on" in refusal(lambda: from_classes({"ada": 0, "eve": 2**40}))


def test_over_flower_people_join_by_being_registered() -> None:
    cfg = Config().override(["clients.leave=[[9, [0]]]"])
    assert "federation.toml" in refusal(lambda: FedAwS({"ada": 0, "bo": 1}, config=cfg))
