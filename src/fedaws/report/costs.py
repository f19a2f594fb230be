"""Where time and bytes went, and who took part."""

from collections import Counter
from typing import Any

from fedaws.evaluate.catalogue import format_value
from fedaws.report.collect import Group
from fedaws.report.figures import Table, in_bytes, num_classes, spaced
from fedaws.report.run_data import Row, RunData

MOST_FEDERATIONS = 4
"""Runs of real devices whose nodes are shown one by one."""
_NODES = 60  # of a run
_COUNTED = ("own", "fixed", "all")  # ways to send rows whose bytes are known


Bar = tuple[str, list[tuple[str, float]]]
"""A label, and seconds by part."""


def times(groups: list[Group]) -> dict[str, Any] | None:
    """Seconds per round by what they went to, and bytes that a client would be sent and send."""
    bars = [bar for group in groups if (bar := _round_bar(group))]
    traffic = [_traffic(group) for group in groups if group.shown.sizes and group.shown.sent_rows in _COUNTED]
    if not bars and not traffic:
        return None
    totals = "; ".join(f"{label} {format_value(sum(s for _, s in parts), 'seconds')}" for label, parts in bars)
    head = ["method", "to the client", "of which W", "back", "of which W"]
    return {
        "time": _time_panel(bars, "method", f"Time of a round by part: {totals}") if bars else None,
        "traffic": Table("Bytes of one client in one round", head, traffic),
    }


def _round_bar(group: Group) -> Bar | None:
    """A mean round; what training took beyond its clients is the server's."""
    facts = group.shown.facts
    if not facts or not facts.round or "clients" not in facts.parts:
        return None
    spent = {"clients": 0.0, "server": facts.seconds - facts.parts["clients"], "evaluation": 0.0, "records": 0.0}
    return group.label, [(n, max(0.0, facts.parts.get(n, seconds)) / facts.round) for n, seconds in spent.items()]


def _time_panel(bars: list[Bar], kind: str, about: str) -> dict[str, Any]:
    """The bars, what their parts are, and the same as a table."""
    parts = [name for name, _ in bars[0][1]]
    rows = [[label, *(format_value(seconds, "seconds") for _, seconds in spent)] for label, spent in bars]
    table = Table("Seconds per round, by part", [kind, *parts], rows)
    longest = max(sum(seconds for _, seconds in spent) for _, spent in bars) or 1.0
    return {"bars": bars, "longest": longest, "about": about, "parts": parts, "table": table}


def _traffic(group: Group) -> list[str]:
    """Four bytes per number; no framing, no compression."""
    run = group.shown
    theta = 4 * run.theta_numbers
    all_rows = 4 * run.sizes.get("W", 0)
    classes = num_classes(run) or 1
    rows = run.sent_rows
    sent = min(classes, group.config.clients.sampled_classes or classes) if rows == "all" else 1
    down = sent * (all_rows // classes)
    up = 0 if rows == "fixed" else down
    return [group.label, *map(in_bytes, (theta + down, down, theta + up, up))]


def flower(runs: list[RunData], notices: list[str]) -> list[dict[str, Any]]:
    """Who took part in runs over real devices, and where their rounds' time went."""
    panels = []
    for run in runs:
        if not run.attendance and not run.rejected and not any("round_seconds" in row for row in run.rows):
            continue
        panel: dict[str, Any] = {"label": run.name, "names": None, "table": None, "times": None, "rejected": None}
        if run.attendance:
            panel |= _attendance(run)
        if run.rejected:
            rows = [[reason, count] for reason, count in sorted(run.rejected.items(), key=lambda x: -x[1])]
            panel["rejected"] = Table("Replies that were dropped, by reason", ["reason", "replies"], rows)
        timed = [row for row in run.rows if "round_seconds" in row]
        if timed:
            panel["times"] = _round_times(spaced(timed, 24))
        panels.append(panel)
    if len(panels) > MOST_FEDERATIONS:
        notices.append(f"{len(panels)} runs are of devices; who took part is shown of the first {MOST_FEDERATIONS}")
    return panels[:MOST_FEDERATIONS]


def _attendance(run: RunData) -> dict[str, Any]:
    names = sorted({n for one in run.attendance for n in [*one.answered, *one.dropped]}, key=_natural)
    replies = sum(one.replies for one in run.attendance)
    orders = sum(one.asked for one in run.attendance)
    about = f"{len(names):,} nodes over {len(run.attendance):,} rounds: {replies:,} of {orders:,} orders were answered."
    if len(names) > _NODES:
        about += f" The first {_NODES} nodes are shown."
    rows = []
    for name in names[:_NODES]:
        drops = Counter(one.dropped[name] for one in run.attendance if name in one.dropped)
        why = ", ".join(f"{count} {reason}" for reason, count in drops.items()) or "–"
        rows.append([name, sum(name in one.answered for one in run.attendance), why])
    return {
        "names": names[:_NODES],
        "rounds": spaced(run.attendance, 60),
        "about": about,
        "table": Table("Nodes", ["node", "answers", "dropped"], rows),
    }


def _round_times(rows: list[Row]) -> dict[str, Any]:
    """The server's and a node's time of each round; what is left went to transport."""
    keys = {"start of the process": "import_seconds", "compute": "compute_seconds", "server": "server_seconds"}
    bars: list[Bar] = []
    for row in rows:
        parts = [(name, max(0.0, row.get(key, 0.0))) for name, key in keys.items()]
        rest = max(0.0, row["round_seconds"] - sum(seconds for _, seconds in parts))
        bars.append((f"round {int(row['round'])}", [*parts, ("transport, waiting", rest)]))
    return _time_panel(bars, "round", "Time of each round by part.")


def _natural(name: str) -> list[Any]:
    """node-2 before node-10."""
    head = name.rstrip("0123456789")
    return [head, int(name[len(head) :] or 0)]
