"""What ranks cannot do yet, refused before anything is trained."""

from torch import nn

from fedaws.config import Config, Section, typed
from fedaws.core.method import Method
from fedaws.data.federated import FederatedData
from fedaws.errors import FedawsError
from fedaws.models import batch_norms, table_names
from fedaws.models.bag import Bag
from fedaws.ranks.group import Ranks


def check_ranks(cfg: Config, method: Method, data: FederatedData, encoder: nn.Module, ranks: Ranks) -> None:
    """Refuse in one line all that would be wrong, or that nobody has tried, with several ranks; each with its fix."""
    tables = [m for m in encoder.modules() if isinstance(m, Bag)]
    other = "take fedaws, positive-only or fixed"
    own_step = method.weighting is not None or method.last_step is not None
    several = data.class_of.ndim > 1
    many = len(table_names(encoder)) != len(tables) or len(tables) > 1
    device = data.x.device.type
    wrong = (
        (
            method.rows not in ("own", "fixed"),
            f"method={method.name}, whose clients have rows={method.rows!r}",
            "set privacy.rows=clear" if cfg.privacy.rows == "private" else other,
        ),
        (own_step, f"method={method.name}, which weighs clients or ends with a step of its own", other),
        (bool(method.needs), f"method={method.name}, which needs facts of the classes", other),
        *((True, key, "leave it out") for key in _changed("privacy", cfg.privacy) + _changed("defence", cfg.defence)),
        (cfg.train.last_step != "none", f"train.last_step={cfg.train.last_step}", "set none"),
        (
            several and cfg.train.enroll > 0,
            f"train.enroll={cfg.train.enroll:g} of clients that have several classes",
            "set 0, or data.classes_per_client=1",
        ),
        (
            several and cfg.model.start_rows != "random",
            f"model.start_rows={cfg.model.start_rows} of clients that have several classes",
            "set random, or data.classes_per_client=1",
        ),
        (cfg.spread.optimizer != "sgd", f"spread.optimizer={cfg.spread.optimizer}", "set sgd"),
        (bool(data.apart), "data.strangers or data.test_strangers", "set 0"),
        (bool(cfg.clients.join or cfg.clients.leave), "clients.join or clients.leave", "leave them out"),
        (cfg.model.crowding != 0, f"model.crowding={cfg.model.crowding:g}", "set 0: it changes scores, not training"),
        (bool(batch_norms(encoder)), "BatchNorm, whose statistics are a cohort's", "set model.norm=weight or group"),
        (many, "embedding tables beside that of a bag", "take an encoder without them"),
        (device != "cpu", f"train.device={device}", "set cpu"),
        (data.num_classes < ranks.world, f"{data.num_classes} classes", "start no more ranks than classes"),
    )
    faults = [f"{what} ({fix})" for there, what, fix in wrong if there]
    if faults:
        raise FedawsError(
            f"{ranks.world} ranks cannot train yet with {'; with '.join(faults)}; or use one process: fedaws train …"
        )


def _changed(name: str, table: Section) -> list[str]:
    """The settings of a table that are not the default."""
    return [f"{name}.{key}={typed(value)}" for key, value in table.model_dump(exclude_defaults=True).items()]
