"""Data sets as a federation has them: every client with positives of its own class."""

from fedaws.data.federated import FederatedData, from_arrays, from_dataset
from fedaws.data.label_sets import from_sparse
from fedaws.data.load import load_data

__all__ = ["FederatedData", "from_arrays", "from_dataset", "from_sparse", "load_data"]
