"""The learning rate over the rounds, as a factor in (0, 1]."""

import math

from fedaws.config import TrainConfig


def schedule(cfg: TrainConfig, round_num: int) -> float:
    """The factor on every learning rate in round t = 0 … T − 1.

    >>> [round(schedule(TrainConfig(rounds=4, schedule="linear"), t), 2) for t in range(4)]
    [1.0, 0.75, 0.5, 0.25]
    """
    warmup = min(1.0, (round_num + 1) / (cfg.warmup + 1))
    progress = min(1.0, round_num / cfg.rounds)
    match cfg.schedule:
        case "constant":
            return warmup
        case "linear":
            return warmup * max(1.0 - progress, 1.0 / cfg.rounds)
        case "cosine":
            return warmup * max(0.5 * (1.0 + math.cos(math.pi * progress)), 1e-6)


def image_size(cfg: TrainConfig, round_num: int) -> int | None:
    """What `train.sizes` says for round t; None for images as they are.

    >>> [image_size(TrainConfig(rounds=4, sizes=((0.25, 16), (0.75, 32))), t) for t in range(4)]
    [None, 16, 16, 32]
    """
    reached = [size for start, size in cfg.sizes if start <= round_num / cfg.rounds]
    return reached[-1] if reached else None
