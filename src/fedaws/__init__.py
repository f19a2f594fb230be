"""Federated learning with only positive labels: FedAwS (Yu, Rawat, Menon, Kumar, ICML 2020)."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedaws import config, core, data
    from fedaws.config import Config
    from fedaws.data import FederatedData, from_arrays, from_dataset, from_sparse
    from fedaws.errors import FedawsError
    from fedaws.run import Reporter, Run, load, train

__all__ = [
    "Config",
    "FedawsError",
    "FederatedData",
    "Reporter",
    "Run",
    "config",
    "core",
    "data",
    "from_arrays",
    "from_dataset",
    "from_sparse",
    "load",
    "train",
]
__version__ = "0.1.0"

_HOMES = {
    "Config": "config",
    "FedawsError": "errors",
    "FederatedData": "data",
    "Reporter": "run",
    "Run": "run",
    "from_arrays": "data",
    "from_dataset": "data",
    "from_sparse": "data",
    "load": "run",
    "train": "run",
}


def __getattr__(name: str) -> Any:
    """Load a name when it is first asked for: torch takes seconds, and `fedaws --help` does not need it."""
    if name in _HOMES:
        return getattr(import_module(f"fedaws.{_HOMES[name]}"), name)
    if name in __all__:
        return import_module(f"fedaws.{name}")
    raise AttributeError(f"module 'fedaws' has no attribute {name!r}")
