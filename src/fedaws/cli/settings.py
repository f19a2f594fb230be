"""Every setting with its meaning, default and range, made from the configuration itself."""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from fedaws.config import Config, settings, tables, typed
from fedaws.config.mistakes import did_you_mean, shown
from fedaws.errors import FedawsError

_HEAD = """# Settings

Every setting of a run, made from the configuration itself by `fedaws settings --markdown > docs/settings.md`.
On the command line set them by `-s KEY=VALUE`, in a file as TOML tables, in Python by
`Config().with_(spread=dict(weight=3))` or `Config().override(["spread.weight=3"])`. `fedaws settings KEY` shows one,
`fedaws settings WORD` those that have the word in their name or description.
A value that is wrong, or that would do nothing with the data and the encoder that are named, is refused in one line.

A preset that is given other data by `-s data.name=…` takes the data's name for its run: `digits` with
`-s data.name=images -s data.root=faces` is called `faces`. `-s name=…` calls it otherwise.
"""


class Setting(NamedTuple):
    """One line of the page; all are texts."""

    key: str
    default: str
    wanted: str
    meaning: str


_EVERYDAY = {
    "lambda": "λ",
    "nu": "ν",
    "theta": "θ",
    "eta": "η",
    "negatives": "neighbo|sampled_classes",
    "mining": "mine|neighbo",
    "learning rate": "step size",
    "batch": "examples_per_step",
    "epochs": "rounds",
    "dropout": "drop",
    "temperature": "factor",
    "gpu": "cuda",
    "cores": "threads",
}
"""Words that people look for, and how the words begin that settings have for them."""


def described(key: str | None = None) -> list[Setting]:
    """The setting of this key, those of the table of this name, or all; else those that have the word.

    >>> described("spread.weight")[0].default
    '10.0'
    >>> [setting.key for setting in described("lambda")]
    ['spread.weight', 'spread.bounded', 'spread.optimizer', 'train.ridge']
    """
    if key is not None and key.startswith("options."):
        key = "options"  # the method knows which
    every = list(_all())
    chosen = [setting for setting in every if key in (None, setting.key, setting.key.partition(".")[0])]
    return chosen or _with_word(str(key), every)


def _with_word(word: str, every: list[Setting]) -> list[Setting]:
    """The settings that have a word beginning so, those first that have it in their key."""
    begins = re.compile(rf"(?<![^\W_])(?:{_EVERYDAY.get(word.lower(), re.escape(word))})", re.IGNORECASE)
    found = [setting for setting in every if begins.search(" ".join(setting))]
    if not found:
        known = [*(part for setting in every for part in (setting.key, setting.key.rpartition(".")[2])), *_EVERYDAY]
        hint = did_you_mean(word, [*tables(), *known], "`fedaws settings` shows all")
        raise FedawsError(f"no setting has {shown(word)} in its name or description; {hint}")
    return sorted(found, key=lambda setting: not begins.search(setting.key))


def settings_page() -> str:
    """The page of all settings, in Markdown."""
    lines = [_HEAD]
    heading = ""
    for setting in _all():
        table = setting.key.rpartition(".")[0]
        title = f"`[{table}]`: {_about(table)}" if table else "The run"
        if title != heading:
            lines += [f"\n## {title}\n", "| setting | default | wanted | what it does |", "|---|---|---|---|"]
            heading = title
        cells = [f"`{setting.key}`", f"`{setting.default}`", setting.wanted, setting.meaning]
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines) + "\n"


def _about(table: str) -> str:
    first = (tables()[table].__doc__ or "").partition("\n")[0].rstrip(".")
    return first[0].lower() + first[1:]


def _all() -> Iterator[Setting]:
    schemas = {"": Config.model_json_schema()} | {name: table.model_json_schema() for name, table in tables().items()}
    for key, field in settings().items():
        table, _, name = key.rpartition(".")
        schema = schemas[table]["properties"][name]
        default = field.get_default(call_default_factory=True)
        yield Setting(key, typed(default), _wanted(schema), " ".join((field.description or "").split()))


def _wanted(schema: dict[str, Any]) -> str:
    """What a JSON schema allows, in words.

    >>> _wanted({"anyOf": [{"type": "integer", "minimum": 1, "maximum": 1000000000}, {"const": "all"}]})
    'a whole number from 1 to 1e9, or `all`'
    >>> _wanted({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1})
    'a number above 0, below 1'
    """
    kind = schema.get("type")
    text = {"null": "none", "boolean": "`true`, `false`", "string": "a text"}.get(str(kind), "")
    match schema:
        case {"anyOf": list(choices)}:
            text = ", or ".join(dict.fromkeys(_wanted(choice) for choice in choices))
        case {"enum": list(names)}:
            text = ", ".join(f"`{name}`" for name in names)
        case {"const": name}:
            text = f"`{name}`"
        case {"prefixItems": list(parts)}:
            text = f"[{', '.join(_wanted(part) for part in parts)}]"
        case {"type": "array", "items": dict(item)}:
            text = f"a list, each {_wanted(item)}"
        case {"type": "integer" | "number"}:
            text = f"a {'whole ' if kind == 'integer' else ''}number {_limits(schema)}"
        case {"type": "string", "pattern": _}:
            text = "letters, digits, spaces and _ . + -"
        case {"type": "object"}:
            text = "`options.KEY=VALUE`: true, false, a number or a text"
    return text


def _limits(schema: dict[str, Any]) -> str:
    low = f"from {_short(schema['minimum'])}" if "minimum" in schema else f"above {_short(schema['exclusiveMinimum'])}"
    high = (
        f" to {_short(schema['maximum'])}" if "maximum" in schema else f", below {_short(schema['exclusiveMaximum'])}"
    )
    return low + high


def _short(number: float) -> str:
    return "1e9" if number == 1e9 else "2³¹" if number == 2**31 else f"{number:g}"
