"""What cannot run over Flower, refused before the first round."""

from fedaws.config import Config
from fedaws.core.method import Method
from fedaws.errors import FedawsError
from fedaws.flower import secure
from fedaws.flower.federation import Federation
from fedaws.training.protection import check_promise


def check_carried(cfg: Config, method: Method, federation: Federation) -> None:
    """Refuse in one line a method or settings that real nodes cannot have."""
    if method.rows in ("all", "secret"):
        raise FedawsError(f"method={cfg.method} is not carried over Flower (rows: {method.rows}); use method=fedaws")
    if method.own_spread:
        secure.check_private(cfg, [member.class_id for member in federation.members])
    if method.classes_per_client > 1:
        raise FedawsError(
            f"method={cfg.method} has several classes a client: not carried over Flower; use method=fedaws"
        )
    if cfg.privacy.secure_sums:
        secure.check_method(cfg, method)
        if len(federation.active) < cfg.privacy.min_cohort:
            raise FedawsError(
                f"{len(federation.active)} nodes are fewer than privacy.min_cohort="
                f"{cfg.privacy.min_cohort}, and a node gives no part to a sum of fewer; lower it with care"
            )
    _check_settings(cfg)
    _check_noise(cfg, method, len(federation.members))


def _check_noise(cfg: Config, method: Method, people: int) -> None:
    """Refuse what noise in shares cannot do."""
    privacy = cfg.privacy
    if privacy.clip is not None and not privacy.noisy:
        raise FedawsError(
            "privacy.clip without noise is for simulations; over Flower set clip-norm, or privacy.epsilon"
        )
    if not privacy.noisy:
        return
    wants = {
        "secure sums, into which nodes add it; set privacy.secure_sums=true": privacy.secure_sums,
        "masks of each node's own, without which a late answer is seen with one share of noise; set "
        "privacy.double_masks=true": privacy.double_masks,
        "rows that are not told of; set method=fixed-spread": method.own_spread is None,
        "a clip that stays; set privacy.clip_quantile=none": privacy.clip_quantile is None,
        "no limit on participations, which is for simulations; set privacy.participations=none": (
            privacy.participations is None
        ),
        "weights that have seen nobody; begin at random": cfg.model.start is None or privacy.public_start,
    }
    for what, so in wants.items():
        if not so:
            raise FedawsError(f"noise over Flower needs {what}")
    check_promise(cfg, method, people)


def _check_settings(cfg: Config) -> None:
    if cfg.clients.sampling != "uniform":
        raise FedawsError(
            f"clients.sampling={cfg.clients.sampling} is not carried over Flower, where nobody controls "
            "who is online; set it to uniform"
        )
    if cfg.clients.join or cfg.clients.leave:
        raise FedawsError(
            "clients.join and clients.leave are for simulations; over Flower nodes join by a table at the end of "
            "federation.toml, and leave by removed = true in theirs"
        )
    if cfg.privacy.row_noise is not None:
        raise FedawsError("privacy.row_noise is not carried over Flower, where sums are exact; set it to none")
    if cfg.train.stop_on != "none":  # rows join as nodes do, and those of an earlier round are fewer
        raise FedawsError(
            "train.stop_on is not carried over Flower; set it to none: strangers are measured there without it"
        )
