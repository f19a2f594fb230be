"""What must hold between settings: rules that a single value cannot break. Each is given the tables it is about."""

from collections.abc import Iterable
from itertools import pairwise

from pydantic import BaseModel

from fedaws.config.keys import settings_of, typed, value_of
from fedaws.config.sections import (
    ClientsConfig,
    DataConfig,
    DefenceConfig,
    ModelConfig,
    PrivacyConfig,
    SpreadConfig,
    TrainConfig,
)
from fedaws.errors import FedawsError

Effect = tuple[str, str, tuple[str, ...]]
"""Settings of one table, the setting that decides whether they have an effect, and its values with which they have."""

OF_OPTIMIZERS: tuple[Effect, ...] = (
    ("server.momentum", "server.optimizer", ("sgd", "muon")),
    ("clients.momentum", "clients.optimizer", ("sgd",)),
    ("train.patience", "train.stop_on", ("strangers",)),
)


def check_last_step(model: ModelConfig, train: TrainConfig) -> None:
    """What is done to W after the last round, and at each measurement, suits it."""
    if not model.normalize and (model.crowding or train.enroll):
        raise FedawsError(
            f"model.crowding={model.crowding:g}, train.enroll={train.enroll:g} need unit rows and embeddings; "
            "set model.normalize=true"
        )
    if train.enroll and train.last_step != "none":
        raise FedawsError(
            f"train.enroll={train.enroll:g} has no effect beside train.last_step={train.last_step}; set one of them"
        )


def check_spread(spread: SpreadConfig) -> None:
    """The step that spreads has an optimiser, and pairs, that go with its regulariser."""
    moments = spread.regularizer == "moments"
    if spread.optimizer != "sgd" and (spread.bounded or moments):
        why = "has no pairs to step on" if moments else "has no step that is bounded"
        fix = "take another regularizer" if moments else "set spread.bounded=false"
        raise FedawsError(
            f"spread.optimizer={spread.optimizer} with spread.regularizer={spread.regularizer}, "
            f"bounded={typed(spread.bounded)} {why}; {fix}, or spread.optimizer=sgd"
        )
    if spread.regularizer == "softmax" and spread.neighbors == "all":
        raise FedawsError("spread.regularizer=softmax is over mined rows; set spread.neighbors to a number or auto")
    of_all = spread.regularizer in ("margin", "uniformity", "energy")
    if spread.candidates != "all" and (spread.neighbors == "all" or (spread.neighbors == "auto" and of_all)):
        raise FedawsError(
            f"spread.candidates={spread.candidates} has no effect on all pairs; set spread.neighbors to mine among them"
        )


def check_sampled_classes(method: str, data: DataConfig, clients: ClientsConfig) -> None:
    """Only clients of one class can be compared with a sample of the others."""
    if clients.sampled_classes and (method == "fedavg" or data.classes_per_client not in (None, 1)):
        raise FedawsError(
            f"clients.sampled_classes={clients.sampled_classes} needs clients of one class; "
            "set it to none, or method=softmax and data.classes_per_client=1"
        )


def check_sizes(train: TrainConfig) -> None:
    """The sizes of images come in the order of their rounds."""
    starts = [start for start, _ in train.sizes]
    if not _rise(starts):
        raise FedawsError(
            f"train.sizes starts at {', '.join(f'{start:g}' for start in starts)}; wanted each start above the one "
            "before it: sort the [start, size] pairs"
        )


def check_moves(clients: ClientsConfig, train: TrainConfig) -> None:
    """Schedules of joining and leaving can be followed."""
    for key, moves in (("join", clients.join), ("leave", clients.leave)):
        given = f"clients.{key}={typed(moves)}"
        shares = [who for _, who in moves if isinstance(who, float)]
        if shares and len(shares) < len(moves):
            raise FedawsError(f"{given} mixes shares and lists of classes; wanted pairs of one kind")
        for numbers, what in (([round_num for round_num, _ in moves], "rounds"), (shares, "shares")):
            if not _rise(numbers):
                raise FedawsError(f"{given} has {what} that do not rise; sort the pairs, with each round once")
        first = 0 if key == "join" and shares else 1
        if moves and not (moves[0][0] >= first and moves[-1][0] < train.rounds):
            raise FedawsError(f"{given}; wanted rounds from {first} to train.rounds − 1 = {train.rounds - 1}")
        if key == "join" and shares and (moves[0][0] != 0 or shares[-1] != 1):
            raise FedawsError(f"{given}; wanted who is there in round 0 first, and the share 1.0 last")
        if key == "leave" and shares and shares[-1] == 1:
            raise FedawsError(f"{given} leaves nobody; wanted a share below 1")


def _rise(numbers: list[int] | list[float]) -> bool:
    return all(before < after for before, after in pairwise(numbers))


def check_private_rows(privacy: PrivacyConfig, data: DataConfig, clients: ClientsConfig, train: TrainConfig) -> None:
    """Nothing shows a row that is private."""
    if privacy.rows != "private":
        return
    if data.clients_per_class != 1 or train.last_step != "none":
        raise FedawsError(
            "privacy.rows=private needs a client per class and no sums of single classes; got data.clients_per_class="
            f"{data.clients_per_class}, train.last_step={train.last_step}; set them to 1 and none"
        )
    if clients.join or clients.leave:
        raise FedawsError(
            "clients.join and leave do not go with privacy.rows=private: who comes or goes changes the sums by a row "
            "of theirs, which shows it; set privacy.rows=clear"
        )


def check_noise(
    privacy: PrivacyConfig, clients: ClientsConfig, defence: DefenceConfig, model: ModelConfig, train: TrainConfig
) -> None:
    """The ε that is computed holds, and settings that only noise has do something."""
    if privacy.noise is not None and privacy.epsilon is not None:
        raise FedawsError(
            f"privacy.epsilon={privacy.epsilon:g} computes the noise, and privacy.noise={privacy.noise:g} gives it; "
            "set one of them to none"
        )
    if privacy.row_noise is not None and (privacy.rows == "clear" or privacy.noisy):
        why = "privacy.noise or privacy.epsilon decides" if privacy.noisy else "it is for privacy.rows=private"
        raise FedawsError(f"privacy.row_noise={privacy.row_noise:g} has no effect: {why}; set it to none")
    if privacy.noisy and privacy.clip is None:
        raise FedawsError("noise hides only what is bounded; set privacy.clip, as in privacy.clip=0.1")
    if not privacy.noisy:
        for key in ("clip_quantile", "delta", "participations", "public_start", "row_share"):
            if getattr(privacy, key) != type(privacy).model_fields[key].default:
                raise FedawsError(f"privacy.{key} has no effect without noise; set privacy.epsilon or privacy.noise")
        return
    means = "it sends means without noise"
    for broken, setting, fix in (
        (clients.weighting == "examples", "clients.weighting=examples", "set it to uniform"),
        (clients.sampling == "examples", "clients.sampling=examples", "set it to poisson or uniform"),
        (train.enroll > 0, f"train.enroll={train.enroll:g}", f"{means}: set it to 0"),
        (
            train.last_step != "none",
            f"train.last_step={train.last_step}",
            "it sends sums without noise: set it to none",
        ),
        (defence.clip == "median", "defence.clip=median", "one client moves everybody's length: set it to none"),
        (
            clients.join or clients.leave,
            "clients.join or leave",
            "it counts on the same clients in every round: leave them out",
        ),
        (model.start_rows == "means", "model.start_rows=means", f"{means}: set it to random"),
    ):
        if broken:
            raise FedawsError(
                f"the accounting does not hold with {setting} (privacy.noise or privacy.epsilon is set); {fix}"
            )


def refuse_idle(cfg: BaseModel, effects: Iterable[Effect]) -> None:
    """Refuse settings that have no effect; only a value that is not the default."""
    for keys, decider, values in effects:
        value = value_of(cfg, decider)
        table, _, names = keys.partition(".")
        defaults = {key: settings_of(type(cfg))[key].default for key in (f"{table}.{name}" for name in names.split())}
        idle = [key for key, default in defaults.items() if value not in values and value_of(cfg, key) != default]
        if idle:
            given = ", ".join(f"{key}={typed(value_of(cfg, key))}" for key in idle)
            usual = ", ".join(f"{key}={typed(defaults[key])}" for key in idle)
            have = "has" if len(idle) == 1 else "have"
            instead = f"{decider}={values[0]}" if len(values) == 1 else f"{decider} to one of {', '.join(values)}"
            raise FedawsError(f"{given} {have} no effect on {decider}={value}; set {usual} or {instead}")
