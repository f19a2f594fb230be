"""What the sections of a report share while it is made."""

from dataclasses import dataclass, field
from typing import Any

from fedaws.report.collect import Collected, Group
from fedaws.report.colours import colour_of

PANELS = 8
"""Groups whose classes are shown one by one."""


@dataclass
class Draft:
    """The groups, the colour of each, notices to the reader, and `data` for the page's script."""

    groups: list[Group]
    colours: dict[str, int]
    notices: list[str]
    data: dict[str, Any] = field(default_factory=lambda: {"charts": {}, "planes": [], "matrices": {}})


def draft_of(collected: Collected) -> Draft:
    """The draft of a page, its groups not yet drawn."""
    groups = collected.groups
    notices = list(collected.notices)
    if len(groups) > PANELS:
        notices.append(f"classes are shown one by one for the first {PANELS} of {len(groups)} kinds of runs")
    if len({group.shown.tested_on for group in groups}) > 1:
        notices.append("not all runs were tested on the same kind of examples: their figures cannot be compared")
    return Draft(groups, _colours(groups), notices)


def _colours(groups: list[Group]) -> dict[str, int]:
    """A method has the same colour in every report in which it stands once."""
    methods = {group.shown.method for group in groups}
    if len(methods) == len(groups):
        return {group.label: colour_of(group.shown.method, methods) for group in groups}
    return {group.label: number for number, group in enumerate(groups)}
