"""From the configuration's `data` table to a federation."""

import os
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from fedaws.config import Config
from fedaws.data.digits import digits
from fedaws.data.federated import FederatedData, from_arrays
from fedaws.data.synthetic import synthetic
from fedaws.errors import FedawsError

_PARTS = ("x_train", "y_train", "x_test", "y_test")


def load_data(cfg: Config, classes_per_client: int = 1) -> FederatedData:
    """The configured data, dealt out to clients; the configuration overrides the method's `classes_per_client`."""
    data = cfg.data
    match data.name:
        case "digits":
            arrays: tuple[Any, ...] = digits()
        case "synthetic":
            arrays = synthetic(data.classes, data.features, data.examples_per_class, data.overlap, cfg.seed)
        case path if path.endswith(".npz"):
            root = data.root or os.environ.get("FEDAWS_DATA") or "."
            arrays = _read_npz(Path(root).expanduser() / Path(path).expanduser())
        case name:
            raise FedawsError(f"no data set {name!r}; there are digits, synthetic, or the path of an .npz file")
    return from_arrays(
        *arrays,
        num_classes=data.num_classes,
        clients_per_class=data.clients_per_class,
        classes_per_client=data.classes_per_client or classes_per_client,
        validation=data.validation,
        seed=cfg.seed,
    )


def _read_npz(path: Path) -> tuple[Any, ...]:
    try:
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise ValueError("it holds one array without a name")
            missing = [part for part in _PARTS if part not in archive]
            if missing:
                raise FedawsError(f"{path} has no {', '.join(missing)}; wanted the arrays {', '.join(_PARTS)}")
            return tuple(archive[part] for part in _PARTS)
    except FedawsError:
        raise
    except MemoryError as error:
        raise FedawsError(f"{path} does not fit into memory: {error}") from None
    except OSError as error:
        raise FedawsError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise FedawsError(
            f"{path} is not a sound .npz file ({error}); save its arrays, all of numbers, anew with numpy.savez"
        ) from None
