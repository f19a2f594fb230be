"""A mistake in the settings, in one line: what, got, wanted."""

import difflib
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from fedaws.config.keys import settings_of, table_name, tables_of
from fedaws.errors import FedawsError


def one_line(error: ValidationError, model: type[BaseModel]) -> str:
    """The first wrong key of the whole or of a table. A union of types has one pydantic error for each of them."""
    errors = error.errors()
    first = errors[0]
    if first["type"] == "extra_forbidden":
        return unknown_key(".".join(_path(first, model)), model)
    if first["type"] == "value_error" and (not first["loc"] or isinstance(first["ctx"]["error"], FedawsError)):
        return str(first["ctx"]["error"])  # of the whole, or a table has said it already
    key = _key(first, model)
    choices = dict.fromkeys(_wanted(each) for each in errors if _key(each, model) == key)
    return f"{key}: got {shown(first['input'])}; wanted {' or '.join(choices)}"


def unknown_key(dotted: str, model: type[BaseModel]) -> str:
    """What is wrong with a key that is not known, and what is there instead."""
    home = table_name(model)
    tables = {home: model} if home else tables_of(model)
    table, _, key = dotted.rpartition(".")
    near = difflib.get_close_matches(table, tables, n=1)
    if near:
        known = {name: f"{near[0]}.{name}" for name in tables[near[0]].model_fields}
    else:  # the table may have been forgotten: rounds for train.rounds
        known = {name.rpartition(".")[2]: name for name in reversed(settings_of(model))} | {n: n for n in tables}
    close = [] if table and not near else difflib.get_close_matches(key, known, n=1)
    here = known if table in tables else model.model_fields
    hint = f"did you mean {known[close[0]]!r}?" if close else f"known here: {', '.join(here)}"
    return f"unknown key {shown(dotted)}; {hint}"


def did_you_mean(word: str, known: Iterable[str], otherwise: str) -> str:
    """The nearest word that is known, as a question; if none is near, what to say otherwise.

    >>> did_you_mean("delicous", ["digits", "delicious"], "there are two")
    "did you mean 'delicious'?"
    """
    close = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {close[0]!r}?" if close else otherwise


def shown(value: Any) -> str:
    """A value as one would type it, but not all of a long one."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits, or a list in a list in a list …
        return f"a vast {type(value).__name__}"
    return text if len(text) <= 100 else f"{text[:100]}…"


def _path(error: ErrorDetails, model: type[BaseModel]) -> list[str]:
    return [*filter(None, [table_name(model)]), *map(str, error["loc"])]


def _key(error: ErrorDetails, model: type[BaseModel]) -> str:
    """The dotted key, without what pydantic adds for the members of a union or a list."""
    path = _path(error, model)
    in_table = table_name(model) or path[:1] == ["options"]
    return ".".join(path[: 2 if in_table else 1])


def _wanted(error: ErrorDetails) -> str:
    text = error["msg"].removeprefix("Input should be ")
    match error["type"]:
        case "model_type" | "dict_type":
            text = "a table"
        case "bool_parsing" | "bool_type":
            text = "true or false"
        case "tuple_type":
            text = "a list"
        case "value_error":
            text = str(error["ctx"]["error"])
        case "too_long" if error["ctx"]["max_length"] > 2:
            text = f"at most {error['ctx']['max_length']} of them"
        case "missing" | "too_long":  # of the tuples that have a given length
            text = "pairs [start, size]" if "sizes" in error["loc"] else "pairs [round, share] or [round, [classes]]"
        case "string_pattern_mismatch" if error["loc"][0] == "options":
            text = "a name of small letters, digits and _"
        case "string_pattern_mismatch":
            text = "letters, digits, spaces and _ . + -"
        case "string_too_long":
            text = f"at most {error['ctx']['max_length']} characters"
    return f"a number {text}" if text.startswith(("greater", "less")) else text
