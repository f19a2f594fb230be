"""What is not carried over Flower is refused, not left out in silence."""

import pytest

from fedaws import Config
from fedaws.flower.strategy import FedAwS
from helpers import refusal


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (["privacy.clip=1"], "privacy.clip and noise are not carried over Flower yet"),
        (["clients.sampling=poisson"], "clients.sampling=poisson is not carried over Flower"),
        (["clients.sampling=examples"], "clients.sampling=examples is not carried over Flower"),
    ],
)
def test_privacy_and_coins_are_refused(settings: list[str], reason: str) -> None:
    cfg = Config().override(settings)
    assert reason in refusal(lambda: FedAwS({"a": 0, "b": 1}, config=cfg))
