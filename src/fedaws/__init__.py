"""Federated learning with only positive labels: FedAwS (Yu, Rawat, Menon, Kumar, ICML 2020)."""

from fedaws.config import Config
from fedaws.data import FederatedData, from_arrays, from_dataset
from fedaws.errors import FedawsError
from fedaws.run import Reporter, Run, load, train

__all__ = ["Config", "FedawsError", "FederatedData", "Reporter", "Run", "from_arrays", "from_dataset", "load", "train"]
__version__ = "0.1.0"
