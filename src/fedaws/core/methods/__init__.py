"""The methods that come with the package: a file each, found by its name. To add one, add a file.

A file has a function `method(cfg, classes)` that gives the :class:`Method` of a configuration; `classes` is what the
server knows of the classes, or None where only the method's description is wanted. Settings of its own are a
pydantic model `Options` in the same file, set as `options.key=value`.
"""

import difflib
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Literal, TypeVar

from pydantic import BaseModel, ValidationError
from torch import Tensor

from fedaws.config import Config, value_of, were_set
from fedaws.core.defences import guarded
from fedaws.core.method import Method
from fedaws.errors import FedawsError
from fedaws.types import ClassFacts

_FIRST = ("fedaws", "positive-only", "fixed", "softmax")  # the paper's table; the others follow by name


@cache
def method_names() -> tuple[str, ...]:
    """All methods, those of the paper's tables first."""
    found = {module.name.replace("_", "-") for module in iter_modules(__path__)}
    return (*_FIRST, *sorted(found - set(_FIRST)))


def method_of(cfg: Config, classes: ClassFacts | None = None) -> Method:
    """The method that a configuration names, with its settings."""
    if cfg.method not in method_names():
        close = difflib.get_close_matches(cfg.method, method_names(), n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(method_names())}"
        raise FedawsError(f"no method {cfg.method!r}; {hint} (or give one of your own: fedaws.train(…, method=…))")
    module = import_module(f"{__name__}.{cfg.method.replace('-', '_')}")
    options = getattr(module, "Options", None)
    if options is None and cfg.options:
        raise FedawsError(f"method={cfg.method} has no options, got {', '.join(cfg.options)}; leave them out")
    made: Method = module.method(cfg, classes)
    return guarded(made, cfg)


def named_after(method: Method, cfg: Config, others: bool = False) -> Config:
    """The configuration of a run with a method of one's own, which reads no options.

    Settings that its functions replace have their defaults; one that was set is refused, unless there are `others`
    whom it may be for.
    """
    if method.name.casefold() in method_names():
        raise FedawsError(f"a method of your own is called {method.name!r}, as one of ours; give it another name")
    idle = were_set(cfg, method.replaces)
    if idle and not others:
        raise FedawsError(
            f"{', '.join(idle)}: no effect on method={method.name}, which has functions of its own there; leave it out"
        )
    default = Config()
    cfg = cfg.override({key: value_of(default, key) for key in method.replaces})
    if cfg.options:
        raise FedawsError(
            f"options ({', '.join(cfg.options)}) have no effect on a method of your own; set them where you make it, "
            "and leave them out here"
        )
    return cfg.with_(method=method.name)


def wanted_fact(classes: ClassFacts | None, name: Literal["features", "cooccurrence"]) -> Tensor | None:
    """What the server knows of the classes; refused where it does not, None where only a description is wanted."""
    if classes is None:
        return None
    fact: Tensor | None = getattr(classes, name)
    if fact is None:
        where = "class_features=… in fedaws.from_arrays" if name == "features" else "data with sets of labels"
        raise FedawsError(f"the method needs the classes' {name}, which these data do not have; give {where}")
    return fact


OptionsModel = TypeVar("OptionsModel", bound=BaseModel)


def options_of(cfg: Config, model: type[OptionsModel]) -> OptionsModel:
    """A method's own settings, checked."""
    try:
        return model.model_validate(cfg.options)
    except ValidationError as error:
        first = error.errors()[0]
        key, known = ".".join(map(str, first["loc"])), ", ".join(model.model_fields)
        if first["type"] == "extra_forbidden":
            raise FedawsError(f"unknown key 'options.{key}'; method={cfg.method} has {known}") from None
        raise FedawsError(f"options.{key}: got {first['input']!r}; {first['msg'].lower()}") from None


def role_of(name: str) -> str:
    """What a method is, in a few words; of one that is not ours its name says all there is."""
    return method_of(Config(method=name)).role if name in method_names() else ""
