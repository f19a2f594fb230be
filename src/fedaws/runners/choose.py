"""`train.runner` → a runner."""

from torch import nn

from fedaws.config import Config
from fedaws.data.federated import FederatedData
from fedaws.errors import FedawsError
from fedaws.runners.pooled import pooled
from fedaws.runners.serial import serial
from fedaws.runners.stacked import stacked
from fedaws.types import RunClients

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def make_runner(cfg: Config, data: FederatedData, encoder: nn.Module) -> RunClients:
    """The runner that the configuration names, or for `auto` the fastest that fits."""
    match choose(cfg, encoder):
        case "pooled":
            return pooled(cfg, data, encoder)
        case "stacked":
            return stacked(cfg, data, encoder)
        case _:
            return serial(cfg, data, encoder)


def choose(cfg: Config, encoder: nn.Module) -> str:
    """One SGD step: pooled. Several: stacked, but on a CPU convolutions are many times faster one client at a time."""
    one_step = cfg.clients.local_steps == 1 and cfg.clients.optimizer == "sgd"
    if cfg.train.runner == "pooled" and not one_step:
        raise FedawsError(
            f"train.runner=pooled needs one local SGD step, got clients.local_steps={cfg.clients.local_steps} and "
            f"clients.optimizer={cfg.clients.optimizer}; set train.runner=stacked"
        )
    if cfg.train.runner != "auto":
        return cfg.train.runner
    if one_step:
        return "pooled"
    on_cpu = all(p.device.type == "cpu" for p in encoder.parameters())
    convolutional = any(isinstance(module, _CONVOLUTIONS) for module in encoder.modules())
    return "serial" if on_cpu and convolutional else "stacked"
