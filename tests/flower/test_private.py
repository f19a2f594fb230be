"""What is not carried over Flower is refused, not left out in silence."""

import pytest

from fedaws import Config
from fedaws.flower.strategy import FedAwS
from helpers import refusal

SHARES = [
    *("method=fixed", "privacy.clip=1", "privacy.noise=1", "privacy.secure_sums=true", "privacy.min_cohort=2"),
]
AT_HOME = ["method=fedaws", "privacy.rows=private", "spread.regularizer=moments"]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (["privacy.clip=1"], "privacy.clip without noise is for simulations"),
        (["privacy.clip=1", "privacy.noise=1"], "noise over Flower needs secure sums"),
        ([*SHARES, "privacy.clip_quantile=0.5"], "noise over Flower needs a clip that stays"),
        ([*SHARES, "privacy.participations=3"], "noise over Flower needs no limit on participations"),
        ([*SHARES, "privacy.double_masks=false"], "noise over Flower needs masks of each node's own"),
        ([*SHARES, "method=fedaws"], "moves a client's row by the others' rows"),
        ([*SHARES, *AT_HOME], "noise over Flower needs rows that are not told of"),
        ([*AT_HOME, "privacy.secure_sums=true", "privacy.min_cohort=2", "privacy.row_noise=1"], "privacy.row_noise"),
        (["clients.sampling=poisson"], "clients.sampling=poisson is not carried over Flower"),
        (["clients.sampling=examples"], "clients.sampling=examples is not carried over Flower"),
    ],
)
def test_what_is_not_carried_is_refused_in_one_line(settings: list[str], reason: str) -> None:
    cfg = Config().override(settings)
    assert reason in refusal(lambda: FedAwS({"a": 0, "b": 1}, config=cfg))
