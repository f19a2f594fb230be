"""What the sections of a report share while it is made."""

from dataclasses import dataclass, field
from typing import Any

from fedaws.report.charts import Chart
from fedaws.report.collect import Collected, Group
from fedaws.report.colours import colour_of

PANELS = 8
"""Groups whose classes are shown one by one."""


@dataclass
class Draft:
    """The groups, notices to the reader, and `data` for the page's script."""

    groups: list[Group]
    notices: list[str]
    data: dict[str, Any] = field(default_factory=lambda: {"charts": {}, "planes": [], "matrices": {}})

    def add(self, chart: Chart) -> Chart:
        """The chart; the script gets its values."""
        self.data["charts"][chart.key] = chart.data
        return chart


def draft_of(collected: Collected) -> Draft:
    """The draft of a page, its groups not yet drawn."""
    groups = collected.groups
    notices = list(collected.notices)
    if len(groups) > PANELS:
        notices.append(f"classes are shown one by one for the first {PANELS} of {len(groups)} kinds of runs")
    if len({group.shown.tested_on for group in groups}) > 1:
        notices.append("not all runs were tested on the same kind of examples: their figures cannot be compared")
    methods = {group.shown.method for group in groups}
    for number, group in enumerate(groups):  # a method has the same colour in every report in which it stands once
        group.colour = colour_of(group.shown.method, methods) if len(methods) == len(groups) else number
    return Draft(groups, notices)
