"""Federated learning with only positive labels: FedAwS (Yu, Rawat, Menon, Kumar, ICML 2020)."""

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedaws import config as config
    from fedaws import core as core
    from fedaws import data as data
    from fedaws.config import Config as Config
    from fedaws.core.method import Method as Method
    from fedaws.core.method import Spread as Spread
    from fedaws.data import FederatedData as FederatedData
    from fedaws.data import from_arrays as from_arrays
    from fedaws.data import from_dataset as from_dataset
    from fedaws.data import from_sparse as from_sparse
    from fedaws.errors import FedawsError as FedawsError
    from fedaws.evaluate import Model as Model
    from fedaws.evaluate import TestSet as TestSet
    from fedaws.experiments.compare import compare as compare
    from fedaws.people.export import export as export
    from fedaws.people.gallery import Gallery as Gallery
    from fedaws.training.run import Run as Run
    from fedaws.training.run import load as load
    from fedaws.training.session import Reporter as Reporter
    from fedaws.training.train import train as train

__version__ = "0.1.0"

_HOMES = {
    "Config": "fedaws.config",
    "FedawsError": "fedaws.errors",
    "FederatedData": "fedaws.data",
    "Gallery": "fedaws.people.gallery",
    "Method": "fedaws.core.method",
    "Model": "fedaws.evaluate",
    "Reporter": "fedaws.training.session",
    "Run": "fedaws.training.run",
    "Spread": "fedaws.core.method",
    "TestSet": "fedaws.evaluate",
    "compare": "fedaws.experiments.compare",
    "config": "fedaws",
    "core": "fedaws",
    "data": "fedaws",
    "export": "fedaws.people.export",
    "from_arrays": "fedaws.data",
    "from_dataset": "fedaws.data",
    "from_sparse": "fedaws.data",
    "load": "fedaws.training.run",
    "train": "fedaws.training.train",
}
__all__ = [*_HOMES]  # noqa: PLE0604 - names, all of them

if "torch" not in sys.modules:
    # Threads that wait for each other by spinning take the cores that the others need: on a busy machine a round is
    # 15 times slower. OpenMP reads this once, when torch loads it.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def __getattr__(name: str) -> Any:
    """Load a name when it is first asked for: torch takes seconds, and `fedaws --help` does not need it."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'fedaws' has no attribute {name!r}")
    return import_module(f"fedaws.{name}") if home == "fedaws" else getattr(import_module(home), name)


def __dir__() -> list[str]:
    """The public names, and what every module has."""
    return [*__all__, "__all__", "__doc__", "__file__", "__name__", "__path__", "__version__"]
