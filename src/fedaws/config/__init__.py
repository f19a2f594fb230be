"""The run's configuration: frozen, checked at the edge, unknown keys refused; TOML in and out."""

from fedaws.config.effects import check_data_name, check_effects, were_set
from fedaws.config.keys import typed, value_of
from fedaws.config.reading import from_toml, load, parse, preset_text, presets
from fedaws.config.run import Config, epochs_seen, settings, tables
from fedaws.config.sections import (
    FOLDERS,
    SOUNDS,
    SPARSE,
    ClientsConfig,
    Count,
    DataConfig,
    DefenceConfig,
    ModelConfig,
    ModelName,
    Moves,
    NormName,
    Positive,
    PrivacyConfig,
    Section,
    ServerConfig,
    ServerOptimizerName,
    SpreadConfig,
    TrainConfig,
)

__all__ = [
    "FOLDERS", "SOUNDS", "SPARSE", "ClientsConfig", "Config", "Count", "DataConfig", "DefenceConfig", "ModelConfig",
    "ModelName", "Moves", "NormName", "Positive", "PrivacyConfig", "Section", "ServerConfig", "ServerOptimizerName",
    "SpreadConfig", "TrainConfig", "check_data_name", "check_effects", "epochs_seen", "from_toml", "load", "parse",
    "preset_text", "presets", "settings", "tables", "typed", "value_of", "were_set",
]  # fmt: skip
