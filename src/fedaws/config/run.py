"""The configuration of one run, all tables together; settings are changed here, and the whole is checked each time."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Self, get_args

import tomli_w
from pydantic import BaseModel, Field, model_validator
from pydantic.fields import FieldInfo

from fedaws.config import rules
from fedaws.config.keys import settings_of, tables_of
from fedaws.config.mistakes import shown, unknown_key
from fedaws.config.sections import (
    ClientsConfig,
    DataConfig,
    DefenceConfig,
    ModelConfig,
    Name,
    Option,
    OptionName,
    PrivacyConfig,
    Seed,
    ServerConfig,
    SpreadConfig,
    Table,
    TrainConfig,
)
from fedaws.errors import FedawsError
from fedaws.files import parse_toml


class Config(Table):
    """One run. A run is a pure function of this, seed included.

    Every setting has a default. Tables may be given as dicts. A mistake raises `FedawsError` with one line that says
    what was got and what is wanted.

    >>> Config(train={"rounds": 5}, seed=7).train.rounds
    5
    """

    name: Name = "digits"
    """What the run is called, and part of its folder's name."""
    seed: Seed = 0
    """Start of all random numbers."""
    method: Name = "fedaws"
    """A method of `fedaws.core.methods`, or one's own that is given in Python."""
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    clients: ClientsConfig = ClientsConfig()
    server: ServerConfig = ServerConfig()
    spread: SpreadConfig = SpreadConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    defence: DefenceConfig = DefenceConfig()
    train: TrainConfig = TrainConfig()
    options: dict[OptionName, Option] = Field(default_factory=dict)
    """An open table: settings that only the chosen method has."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        rules.check_last_step(self.model, self.train)
        rules.check_private_rows(self.privacy, self.data, self.clients, self.train)
        rules.check_spread(self.spread)
        rules.check_sampled_classes(self.method, self.data, self.clients)
        rules.check_sizes(self.train)
        rules.check_moves(self.clients, self.train)
        rules.refuse_idle(self, rules.OF_OPTIMIZERS)
        rules.check_noise(self.privacy, self.clients, self.defence, self.model, self.train)
        return self

    @property
    def class_lr(self) -> float:
        """η of the class embeddings."""
        return self.clients.lr if self.clients.class_lr is None else self.clients.class_lr

    def override(self, settings: Iterable[str] | Mapping[str, Any]) -> "Config":
        """This configuration with some settings changed.

        Parameters
        ----------
        settings
            Texts `key=value`, as typed after `-s`; or a mapping of dotted keys to values.

        Returns
        -------
        Config
            A new configuration, checked as a whole.

        Examples
        --------
        >>> Config().override(["spread.weight=3", "seed=7"]).spread.weight
        3.0
        >>> Config().override({"train.rounds": 5}).train.rounds
        5
        """
        if isinstance(settings, str) or not isinstance(settings, Iterable):
            raise FedawsError(f"override: got {shown(settings)}; wanted a list, as in override(['train.rounds=5'])")
        pairs = settings.items() if isinstance(settings, Mapping) else map(_key_and_value, settings)
        tree = self.model_dump()
        for key, value in pairs:
            _assign(tree, str(key), value)
        return Config(**tree)

    def with_(self, **changes: Any) -> "Config":
        """This configuration with some settings changed, as keyword arguments.

        Parameters
        ----------
        changes
            Settings, and for tables a dict of those that change.

        Returns
        -------
        Config
            A new configuration, checked as a whole.

        Examples
        --------
        >>> Config().with_(spread=dict(weight=3), seed=7).spread.weight
        3.0
        """
        tree = self.model_dump()
        for name, value in changes.items():
            table = value.model_dump() if isinstance(value, BaseModel) else value
            if isinstance(table, Mapping) and isinstance(tree.get(name), dict):
                for key, each in table.items():
                    _assign(tree, f"{name}.{key}", each)
            else:
                _assign(tree, name, value)
        return Config(**tree)

    def to_toml(self, without: Collection[str] = ()) -> str:
        """The whole configuration as TOML, or without some dotted keys."""
        tree = self.model_dump(mode="json", exclude_none=True)
        for table, _, key in (dotted.partition(".") for dotted in without):
            tree[table].pop(key, None)
        return tomli_w.dumps({name: table for name, table in tree.items() if table != {} or name == "options"})


def tables() -> dict[str, type[BaseModel]]:
    """The tables of the configuration, but for the open one."""
    return tables_of(Config)


def settings() -> dict[str, FieldInfo]:
    """Every setting by its dotted key.

    >>> settings()["train.rounds"].default
    300
    """
    return settings_of(Config)


def _key_and_value(setting: str) -> tuple[str, Any]:
    """Of `key=value`: the value as TOML has it, or else as a text; `none` is none unless it is a choice."""
    if not isinstance(setting, str):
        raise FedawsError(f"override: got {shown(setting)}; wanted a text, as in 'train.rounds=5'")
    key, separator, text = (part.strip() for part in setting.partition("="))
    if not separator:
        raise FedawsError(f"-s {setting}: wanted key=value, as in -s spread.weight=10")
    if text == "none":
        field = settings().get(key)
        return key, "none" if field and "none" in get_args(field.annotation) else None
    try:
        return key, parse_toml(f"value = {text}", key)["value"]
    except FedawsError:
        return key, text


def _assign(tree: dict[str, Any], dotted: str, value: Any) -> None:
    table, _, key = dotted.partition(".")
    if isinstance(tree.get(dotted), dict):
        example = next(iter(tree[dotted]), "key")
        raise FedawsError(f"{dotted} is a table; set one of its keys, as in {dotted}.{example}=…")
    if dotted not in settings() and not (table == "options" and key):  # the method knows its options
        raise FedawsError(unknown_key(dotted, Config))
    if key:
        tree[table][key] = value
    else:
        tree[table] = value


def epochs_seen(cfg: Config, num_examples: int, num_clients: int) -> float:
    """How often a run sees each of its training examples, at most and on average.

    >>> few = Config(clients={"per_round": 50, "examples_per_step": 4}, train={"rounds": 400})
    >>> round(epochs_seen(few, num_examples=234_242, num_clients=5000), 2)  # 400 · 50 · 4 = 80,000 examples
    0.34
    """
    clients = cfg.clients
    cohort = num_clients if clients.per_round == "all" else min(clients.per_round, num_clients)
    of_each = num_examples / max(num_clients, 1)
    step = of_each if clients.examples_per_step == "all" else clients.examples_per_step
    return cfg.train.rounds * cohort * clients.local_steps * step / max(num_examples, 1)
