"""`train.runner` → a runner."""

from typing import Literal

from torch import nn

from fedaws.config import Config
from fedaws.core.method import Method
from fedaws.data.federated import FederatedData, as_input
from fedaws.errors import FedawsError
from fedaws.machine.threads import core_by_core
from fedaws.models import batch_norms, by_batch_statistics, table_names
from fedaws.privacy.ghost import can_ghost
from fedaws.runners.at_home import at_home
from fedaws.runners.common import ClientData
from fedaws.runners.pooled import pooled
from fedaws.runners.serial import serial
from fedaws.runners.stacked import stacked
from fedaws.sparse import Rows
from fedaws.types import RunClients

Runner = Literal["serial", "pooled", "stacked"]
_RUNNERS = {"serial": serial, "pooled": pooled, "stacked": stacked}


def make_runner(
    cfg: Config, method: Method, data: FederatedData, encoder: nn.Module, clients: ClientData | None = None
) -> RunClients:
    """The runner that the configuration names, or for `auto` the fastest that fits; `clients` are those of the data."""
    runner = _RUNNERS[choose(cfg, encoder, as_input(data.x[:2]))]
    run_clients = runner(cfg, method, data, by_batch_statistics(encoder), clients)
    return run_clients if method.own_spread is None else at_home(run_clients, cfg.train, method.own_spread)


def choose(cfg: Config, encoder: nn.Module, pair: Rows | None = None) -> Runner:
    """One SGD step: pooled. Several: stacked, but on a CPU convolutions are many times faster one client at a time.

    To clip each client's change, pooled needs an encoder of linear layers and tables alone; two examples are its trial.
    """
    one_step = cfg.clients.local_steps == 1 and cfg.clients.optimizer == "sgd"
    if cfg.defence.clip == "median":
        if cfg.train.runner not in ("auto", "serial"):
            raise FedawsError(
                f"defence.clip=median needs the clients' updates one by one, got train.runner={cfg.train.runner}; set "
                "train.runner=serial"
            )
        return "serial"
    if cfg.train.runner == "pooled" and not one_step:
        raise FedawsError(
            f"train.runner=pooled needs one local SGD step, got clients.local_steps={cfg.clients.local_steps} and "
            f"clients.optimizer={cfg.clients.optimizer}; set train.runner=stacked"
        )
    if batch_norms(encoder):
        return _for_batch_norm(cfg, one_step)
    if table_names(encoder) and (not one_step or cfg.clients.momentum or cfg.train.runner == "stacked"):
        raise FedawsError(
            "an encoder with an embedding table needs one local SGD step and train.runner=auto, pooled or serial; got "
            f"clients.local_steps={cfg.clients.local_steps}, clients.optimizer={cfg.clients.optimizer}, "
            f"clients.momentum={cfg.clients.momentum:g}, train.runner={cfg.train.runner}"
        )
    together = cfg.privacy.clip is None or (one_step and can_ghost(encoder, pair))
    if cfg.train.runner == "pooled" and not together:
        raise FedawsError(
            "train.runner=pooled clips linear layers and embedding tables only, and the encoder has others; "
            "set train.runner=auto"
        )
    if cfg.train.runner != "auto":
        return cfg.train.runner
    if one_step and together:
        return "pooled"
    if table_names(encoder):
        return "serial"
    return "serial" if core_by_core(encoder) else "stacked"


def _for_batch_norm(cfg: Config, one_step: bool) -> Runner:
    """Statistics of a client's own batch want one client at a time, those of the cohort's all clients at once."""
    runner: Runner = "serial" if cfg.model.norm == "batch-local" else "pooled"
    if runner == "pooled" and not one_step:
        raise FedawsError("model.norm=batch-pooled needs one local SGD step; set clients.local_steps=1 or norm=group")
    if cfg.train.runner not in ("auto", runner):
        raise FedawsError(
            f"model.norm={cfg.model.norm} does not work with train.runner={cfg.train.runner}; set it to {runner}"
        )
    return runner
