"""How private rows are kept apart, as the settings say: by exact sums, or by sums with noise."""

from functools import partial

from fedaws.config import Config
from fedaws.core.method import SumSpread
from fedaws.core.noisy_sums import running_means, tell_bounded
from fedaws.core.sums import EXACT, step_by_moments, tell_moments, unknown_moments, unsound_moments
from fedaws.errors import FedawsError


def make_sum_spread(cfg: Config) -> SumSpread:
    """The configured way of keeping rows apart that only needs sums."""
    if cfg.spread.regularizer != "moments":
        raise FedawsError(
            f"privacy.rows=private cannot spread by spread.regularizer={cfg.spread.regularizer}, which needs pairs of "
            "rows; set spread.regularizer=moments"
        )
    step = partial(step_by_moments, whitening=cfg.spread.whitening)
    if not cfg.privacy.noisy_rows:
        return SumSpread(tell_moments, step, unknown_moments, EXACT, unsound_moments)
    return SumSpread(tell_bounded, step, unknown_moments, running_means(cfg), unsound_moments)
