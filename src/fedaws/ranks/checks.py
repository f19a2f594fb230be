"""What ranks cannot do yet, refused before anything is trained."""

from torch import nn

from fedaws.config import Config, DefenceConfig, PrivacyConfig
from fedaws.core.method import Method
from fedaws.data.federated import FederatedData
from fedaws.errors import FedawsError
from fedaws.models import batch_norms, table_names
from fedaws.models.bag import Bag
from fedaws.ranks.group import Ranks


def check_ranks(cfg: Config, method: Method, data: FederatedData, encoder: nn.Module, ranks: Ranks) -> None:
    """Refuse in one line what would be wrong, or what nobody has tried, with several ranks."""
    tables = [m for m in encoder.modules() if isinstance(m, Bag)]
    wrong = {
        f"method={method.name}, whose clients have rows={method.rows!r}": method.rows not in ("own", "fixed"),
        f"method={method.name}, which weighs clients or ends with a step of its own": method.weighting is not None
        or method.last_step is not None,
        f"method={method.name}, which needs facts of the classes": bool(method.needs),
        "privacy.*": cfg.privacy != PrivacyConfig(),
        "defence.*": cfg.defence != DefenceConfig(),
        f"train.last_step={cfg.train.last_step}": cfg.train.last_step != "none",
        "train.enroll of clients that have several classes": cfg.train.enroll > 0 and data.class_of.ndim > 1,
        f"spread.optimizer={cfg.spread.optimizer}": cfg.spread.optimizer != "sgd",
        f"model.start_rows={cfg.model.start_rows}": cfg.model.start_rows != "random",
        "data.strangers and data.test_strangers": bool(data.apart),
        "clients.join and clients.leave": bool(cfg.clients.join or cfg.clients.leave),
        f"model.crowding={cfg.model.crowding:g}": cfg.model.crowding != 0,
        "BatchNorm, whose statistics are a cohort's": bool(batch_norms(encoder)),
        "embedding tables beside that of a bag": len(table_names(encoder)) != len(tables) or len(tables) > 1,
        f"train.device={data.x.device.type}": data.x.device.type != "cpu",
        f"{data.num_classes} classes": data.num_classes < ranks.world,
    }
    for what, there in wrong.items():
        if there:
            raise FedawsError(f"{ranks.world} ranks cannot train with {what} yet; train in one process: fedaws train …")
