"""Settings by their dotted keys, such as `train.rounds`."""

import json
from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo


def table_name(model: type[BaseModel]) -> str:
    """What the table of this class is called: `train` of `TrainConfig`, and nothing of `Config`, the whole."""
    return model.__name__.removesuffix("Config").lower()


@cache
def tables_of(model: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """The tables of a model, but for an open one."""
    kinds = {name: field.annotation for name, field in model.model_fields.items()}
    return {name: kind for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, BaseModel)}


@cache
def settings_of(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Every setting of a model by its dotted key."""
    tables = tables_of(model)
    single = {name: field for name, field in model.model_fields.items() if name not in tables}
    return single | {f"{t}.{key}": field for t, table in tables.items() for key, field in table.model_fields.items()}


def value_of(cfg: BaseModel, dotted: str) -> Any:
    """The value of the setting `table.key`."""
    table, _, key = dotted.partition(".")
    return getattr(getattr(cfg, table), key)


def typed(value: Any) -> str:
    """As it is typed after -s.

    >>> typed(None), typed("all"), typed((5, 6)), typed(True)
    ('none', 'all', '[5, 6]', 'true')
    """
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value)
