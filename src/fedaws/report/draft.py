"""What the sections of a report share while it is made."""

from dataclasses import dataclass, field
from typing import Any

from fedaws.report.collect import Collected, Group

PANELS = 8
"""Groups whose classes are shown one by one."""
_COLOUR_OF = {"fedaws": 0, "positive-only": 1, "fixed": 2, "softmax": 3, "contrastive": 4, "triplet": 5, "fedavg": 6}


@dataclass
class Draft:
    """The groups, the colour of each, notices to the reader, and `data` for the page's script."""

    groups: list[Group]
    colours: dict[str, int]
    notices: list[str]
    data: dict[str, Any] = field(default_factory=lambda: {"charts": {}, "planes": [], "matrices": {}})


def draft_of(found: Collected) -> Draft:
    """A method has the same colour in every report in which it stands once."""
    methods = [group.config.method for group in found.groups]
    distinct = len(set(methods)) == len(methods)
    colours = {group.label: _COLOUR_OF[methods[i]] if distinct else i for i, group in enumerate(found.groups)}
    beyond = [f"classes are shown one by one for the first {PANELS} of {len(methods)} kinds of runs"]
    return Draft(found.groups, colours, found.notices + beyond * (len(methods) > PANELS))
