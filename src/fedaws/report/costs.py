"""Where time and bytes went, and who took part."""

from typing import Any

from fedaws.evaluate.catalogue import format_value
from fedaws.report import charts
from fedaws.report.collect import Group, RunData
from fedaws.report.figures import Table, in_bytes, num_classes, spaced

MOST_FEDERATIONS = 4
"""Runs of real devices whose nodes are shown one by one."""


def times(groups: list[Group]) -> dict[str, Any] | None:
    """Seconds of a round by what they went to, and bytes that a client would be sent and send."""
    rows, table, traffic = [], [], []
    for group in groups:
        run = group.shown
        rounds = run.facts.round if run.facts else 0
        if run.facts and "clients" in run.facts.parts and rounds:
            parts = run.facts.parts
            clients = parts.get("clients", 0.0)
            spent = [("clients", clients), ("server", max(0.0, run.facts.seconds - clients)),
                     ("evaluation", parts.get("evaluation", 0.0)), ("records", parts.get("records", 0.0))]  # fmt: skip
            per_round = [(name, max(0.0, seconds) / rounds) for name, seconds in spent]
            rows.append((group.label, per_round))
            table.append([group.label, *(format_value(s, "seconds") for _, s in per_round)])
        if run.sizes and run.sent_rows in ("own", "fixed", "all"):
            traffic.append(_traffic(group, run))
    if not rows and not traffic:
        return None
    about = "Time of a round by part: " + "; ".join(
        f"{label} {format_value(sum(s for _, s in p), 'seconds')}" for label, p in rows
    )
    return {
        "plot": charts.bars(rows, "seconds", about) if rows else None,
        "parts": ["clients", "server", "evaluation", "records"],
        "table": Table("Seconds a round, by part", ["method", "clients", "server", "evaluation", "records"], table),
        "traffic": Table(
            "Bytes of one client in one round",
            ["method", "to the client", "of which W", "back", "of which W"],
            traffic,
        ),
    }


def _traffic(group: Group, run: RunData) -> list[str]:
    """4 bytes a number; no framing, no compression."""
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
    found = []
    for run in runs:
        if not run.attendance and not run.rejected and not any("round_seconds" in row for row in run.rows):
            continue
        panel: dict[str, Any] = {"label": run.name, "grid": None, "table": None, "times": None, "rejected": None}
        if run.attendance:
            panel |= _attendance(run)
        if run.rejected:
            rows = [[reason, count] for reason, count in sorted(run.rejected.items(), key=lambda x: -x[1])]
            panel["rejected"] = Table("Replies that were dropped, by reason", ["reason", "replies"], rows)
        timed = [row for row in run.rows if "round_seconds" in row]
        if timed:
            panel["times"] = _round_times([timed[i] for i in spaced(list(range(len(timed))), 24)])
        found.append(panel)
    if len(found) > MOST_FEDERATIONS:
        notices.append(f"{len(found)} runs are of devices; who took part is shown of the first {MOST_FEDERATIONS}")
    return found[:MOST_FEDERATIONS]


def _attendance(run: RunData) -> dict[str, Any]:
    names = sorted({n for one in run.attendance for n in [*one.answered, *one.dropped]}, key=_natural)
    rounds = [one.round for one in run.attendance]
    chosen = [run.attendance[i] for i in spaced(list(range(len(rounds))), 60)]
    shown_names = names[:60]
    cells = [
        [
            "answered" if n in one.answered else (f"dropped, {one.dropped[n]}" if n in one.dropped else "")
            for one in chosen
        ]
        for n in shown_names
    ]
    answered = sum(one.replies for one in run.attendance)
    asked = sum(one.asked for one in run.attendance)
    about = f"{len(names):,} nodes over {len(rounds):,} rounds: {answered:,} of {asked:,} orders were answered."
    if len(names) > len(shown_names):
        about += f" The first {len(shown_names)} nodes are shown."
    rows = []
    for n in shown_names:
        drops = [one.dropped[n] for one in run.attendance if n in one.dropped]
        why = ", ".join(f"{drops.count(r)} {r}" for r in dict.fromkeys(drops)) or "–"
        rows.append([n, sum(n in one.answered for one in run.attendance), why])
    return {
        "grid": charts.attendance_grid(shown_names, [one.round for one in chosen], cells, about),
        "about": about,
        "table": Table("Nodes", ["node", "answers", "dropped"], rows),
    }


def _round_times(rows: list[dict[str, float]]) -> dict[str, Any]:
    named = [("start of the process", "import_seconds"), ("compute", "compute_seconds"), ("server", "server_seconds")]
    bars = []
    for row in rows:
        parts = [(name, max(0.0, row.get(key, 0.0))) for name, key in named]
        rest = max(0.0, row["round_seconds"] - sum(value for _, value in parts))
        bars.append((f"round {int(row['round'])}", [*parts, ("transport, waiting", rest)]))
    about = "Time of each round by part."
    table = Table(
        "Seconds of a round",
        ["round", *(name for name, _ in bars[0][1])],
        [[label, *(format_value(value, "seconds") for _, value in parts)] for label, parts in bars],
    )
    return {"plot": charts.bars(bars, "seconds", about), "parts": [name for name, _ in bars[0][1]], "table": table}


def _natural(name: str) -> list[Any]:
    """node-2 before node-10."""
    head = name.rstrip("0123456789")
    return [head, int(name[len(head) :] or 0)]
