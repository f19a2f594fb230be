"""Settings that would do nothing with the data and the encoder of a run."""

from collections.abc import Iterable
from typing import get_args

from fedaws.config.keys import typed, value_of
from fedaws.config.mistakes import did_you_mean
from fedaws.config.reading import load, presets
from fedaws.config.rules import Effect, refuse_idle
from fedaws.config.run import Config
from fedaws.config.sections import SOUNDS, SPARSE, ModelName
from fedaws.errors import FedawsError

_SETS = ("digits", "synthetic", "cifar10", "cifar100", "audiomnist", "images", "sounds", *SPARSE)
_OF_DATA: tuple[Effect, ...] = (
    ("data.classes features examples_per_class overlap", "data.name", ("synthetic",)),
    ("data.like scale", "data.name", ("xc-synthetic",)),
    ("data.drop every_label test_examples held_out_labels", "data.name", SPARSE),
    ("data.image_size", "data.name", ("images",)),
    ("data.seconds", "data.name", SOUNDS),
)
_OF_ENCODERS: tuple[Effect, ...] = (
    ("model.norm", "model.name", tuple(name for name in get_args(ModelName) if name.startswith("resnet"))),
    ("model.hidden", "model.name", ("mlp", "bag", "conv1d")),
    ("model.channels sample_rate", "model.name", ("conv1d",)),
    ("model.first_bias", "model.name", ("mlp",)),
    ("model.residual", "model.name", ("bag",)),
    ("server.table_optimizer table_lr", "model.name", ("bag",)),
)


_OF_DEALING = (
    "data.strangers", "data.test_strangers", "data.validation", "data.validation_by", "data.num_classes",
    "data.clients_per_class", "data.classes_per_client",
)  # fmt: skip


def were_set(cfg: Config, keys: Iterable[str]) -> list[str]:
    """Those of these settings, as they are typed, that are neither the defaults nor those of the run's preset."""
    usual = load(cfg.name) if cfg.name in presets() else Config()
    default = Config()
    values = ((key, value_of(cfg, key)) for key in keys)
    return [f"{k}={typed(v)}" for k, v in values if v not in (value_of(default, k), value_of(usual, k))]


def check_effects(cfg: Config, own_data: bool = False, own_encoder: bool = False) -> None:
    """Refuse settings that would do nothing with the data and the encoder that are named.

    Only a value that is not the default is refused. Spreading is not looked at: a preset serves several methods.
    `own_data` and `own_encoder` were given in Python, whatever the settings name.
    """
    if not own_data:
        check_data_name(cfg.data.name)
        refuse_idle(cfg, _OF_DATA)
    elif given := were_set(cfg, _OF_DEALING):
        raise FedawsError(f"{', '.join(given)}: no effect on data that are given; give it to fedaws.from_arrays")
    if own_encoder:
        return
    refuse_idle(cfg, _OF_ENCODERS)
    if cfg.model.residual and not cfg.model.hidden:
        raise FedawsError(
            "model.residual=true has no effect on model.hidden=[]; set model.residual=false or add a layer"
        )


def check_data_name(name: str) -> None:
    """Refuse a set that nobody has, and say how to bring one's own."""
    if name == "own":
        raise FedawsError("data.name=own: the data were given in Python; give them again: fedaws.train(data, …)")
    if name not in _SETS and not name.endswith(".npz"):
        hint = did_you_mean(name, _SETS, f"there are {', '.join(_SETS)}")
        raise FedawsError(
            f"no data set {name!r}; {hint} (your own: -s data.name=FILE.npz, or -s data.name=images, sounds or xc -s "
            "data.root=FOLDER, or in Python fedaws.train(data); see docs/own-data.md)"
        )
