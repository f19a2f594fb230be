"""The paper's tables as data, one TOML each: rows, and the figures that the paper has for them."""

from importlib import resources
from pathlib import Path
from typing import Annotated

from pydantic import Field

from fedaws.config import Config, Count, Section, load
from fedaws.core.methods import method_names, role_of
from fedaws.errors import FedawsError
from fedaws.files import checked, parse_toml, read_toml

Percentages = tuple[float, ...]
"""One for each of the table's measures; none at all where the paper has none."""

CENTRALISED = {"sleec": "oracle, centralised"}
"""What is not federated at all: one place has all examples with all their labels, and there are no rounds."""
ROLES = {name: role_of(name) for name in method_names()} | CENTRALISED
"""All that a table may compare."""


class Row(Section):
    """A preset, with further settings if the row has them, and what the paper reports for each method."""

    preset: str  # or the path of a .toml file
    label: str
    settings: tuple[str, ...] = ()  # key=value, as after -s
    paper: Annotated[dict[str, Percentages], Field(min_length=1)]  # the row has these methods and no others
    method_settings: dict[str, tuple[str, ...]] = Field(default_factory=dict)  # what a method has in this row alone
    as_paper: tuple[str, ...] = ()  # what the paper's configuration has in this row beside the table's


class Table(Section):
    """What is run, and what it is compared with."""

    source: str  # its name, or the path of its file
    title: str
    measures: Annotated[tuple[str, ...], Field(min_length=1)] = ("precision@1",)
    stop_early: dict[str, Count] = Field(default_factory=dict)  # rounds that are enough to see a method collapse
    settings: dict[str, tuple[str, ...]] = Field(default_factory=dict)  # what a method has beside its row's
    as_paper: tuple[str, ...] = ()  # what makes the presets the paper's configuration
    plots: bool = True  # a plot by round for each row
    rows: Annotated[dict[str, Row], Field(min_length=1)]

    @property
    def name(self) -> str:
        """Part of the names of folders and files."""
        return Path(self.source).stem

    def own_settings(self, row: str, method: str) -> list[str]:
        """What a method of a row has beside the row's preset and settings."""
        return [*self.settings.get(method, ()), *self.rows[row].method_settings.get(method, ())]

    def preset(self, row: str, method: str, as_paper: bool = False) -> Config:
        """The row's preset with its settings and the method's own, or as the paper has it."""
        of_row = self.rows[row]
        settings = [*self.as_paper, *of_row.settings, *of_row.as_paper] if as_paper else [*of_row.settings]
        own = [] if as_paper else self.own_settings(row, method)
        return load(of_row.preset).override([*settings, *own, f"method={method}"])

    def most_rounds(self, method: str, wanted: int) -> int:
        """The rounds of a method where so many are wanted; a centralised one has none, which counts as one."""
        return 1 if method in CENTRALISED else min(wanted, self.stop_early.get(method, wanted))

    @property
    def methods(self) -> list[str]:
        """Those of any row, in order."""
        return list(dict.fromkeys(method for row in self.rows.values() for method in row.paper))


def tables() -> list[str]:
    """The names of the tables that come with the package.

    >>> "table1" in tables()
    True
    """
    files = (f.name for f in resources.files("fedaws.experiments.paper_tables").iterdir())
    return sorted(name.removesuffix(".toml") for name in files if name.endswith(".toml"))


def load_table(source: str) -> Table:
    """The table of this name, or in the TOML file at this path.

    >>> load_table("table1").rows["cifar10-resnet8"].paper["fedaws"]
    (86.3,)
    """
    if source in tables():
        file = resources.files("fedaws.experiments.paper_tables") / f"{source}.toml"
        tree = parse_toml(file.read_text(encoding="utf-8"), source)
    elif source.endswith(".toml"):
        tree = read_toml(Path(source))
    else:
        raise FedawsError(f"no table {source!r}; there are {', '.join(tables())}, or give the path of a .toml file")
    table = checked(Table, tree | {"source": source}, source)
    for name, row in table.rows.items():
        named = [*row.paper, *row.method_settings, *table.stop_early, *table.settings]
        choose(list(ROLES), ",".join(named), "method", source)
        for method, figures in row.paper.items():
            if figures and len(figures) != len(table.measures):
                raise FedawsError(
                    f"{source}: rows.{name}.paper.{method} has {len(figures)} figures for {', '.join(table.measures)}"
                )
    return table


def choose(known: list[str], wanted: str | None, what: str, where: str) -> list[str]:
    """The names in a comma-separated list, in the order of the known ones; all of them for None.

    >>> choose(["fixed", "fedaws", "softmax"], "fedaws, fixed", "method", "table1")
    ['fixed', 'fedaws']
    """
    names = known if wanted is None else [name.strip() for name in wanted.split(",") if name.strip()]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise FedawsError(
            f"{where}: unknown {what} {', '.join(map(repr, unknown or [str(wanted)]))}; there are {', '.join(known)}"
        )
    return [name for name in known if name in names]
