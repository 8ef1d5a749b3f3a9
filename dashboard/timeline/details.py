"""Details of one slice: its facts, the work it belongs to and started, and the same call on other ranks."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from typing import Any

import numpy as np

from usp_prof.columns.table import Columns
from usp_prof.model.metric import Unit
from usp_prof.model.printable import spans
from usp_prof.report.format import quantity
from usp_prof.tables.clock import fit_clocks as clock_of
from usp_prof.tables.table_set import TableSet
from usp_prof.timeline.store import TimelineStore

from .queries import Call, Place, call_of, launch_of, launched_by, op_of, place, place_at

_ARGUMENTS = {
    "Input Dims": "shapes",
    "Input type": "types",
    "grid": "grid",
    "block": "block",
    "est. achieved occupancy %": "occupancy %",
    "Process Group Description": "group",
    "Process Group Ranks": "members",
    "In msg nelems": "elements in",
    "dtype": "type",
}
"""Arguments of a trace that get a line of their own."""
_PAIRWISE = {"send", "recv", "send_recv"}
MOST_STARTED = 64
"""Device events of one launch (a graph has many) that are listed."""
MOST_LETTERS = 300


def details(tables: TableSet, store: TimelineStore, rank: int, event: int) -> dict[str, Any] | None:
    """Return the details of an event as the client shows them; None if there is no such slice."""
    here = place(store, rank, event)
    if here is None:
        return None
    events = tables.columns("events", rank)
    row = events.arrow.slice(event, 1).to_pylist()[0]
    arguments, call = _arguments(row["args"]), call_of(tables, rank, event)
    facts = _facts(tables, store, here, row) | (_call_facts(call, arguments) if call is not None else {})
    op = op_of(tables, rank, event)
    if op is not None:
        facts |= {"op": op[0]} | ({"shapes": op[1]} if op[1] else {})
    for key, fact in _ARGUMENTS.items():  # what the tables know is more precise than the arguments
        if arguments.get(key) not in (None, ""):
            facts.setdefault(fact, _text(arguments[key]))
    launch, started = launch_of(tables, rank, event), launched_by(tables, rank, event)[:MOST_STARTED]
    links = []
    if launch is not None:
        links.append(_linked(events, place(store, rank, launch), "launched by"))
    host = (place(store, rank, launch) or here) if launch is not None else here
    links += [_linked(events, parent, "inside") for parent in parents(store, host)]
    links += [_linked(events, place(store, rank, kernel), "started") for kernel in started]
    flows = [(launch, event)] if launch is not None else [(event, kernel) for kernel in started]
    place_pairs = [(place(store, rank, source), place(store, rank, target)) for source, target in flows]
    members = [place(store, *part) for part in call.parts] if call is not None else []
    return {
        "name": row["name"],
        "place": asdict(here),
        "facts": [(name, _short(value)) for name, value in facts.items() if value],
        "arguments": arguments,
        "links": [link for link in links if link is not None],
        "flows": [
            (asdict(source), asdict(target))
            for source, target in place_pairs
            if source is not None and target is not None
        ],
        **neighbors(store, here),
        "members": [asdict(member) for member in sorted(filter(None, members), key=lambda member: member.start_ns)],
    }


def neighbors(store: TimelineStore, here: Place) -> dict[str, Any]:
    """Return the slices before and after a slice on its row; rows end without one."""
    line, _, index = store.line_of(here.rank, here.row)
    level = line.levels[0]
    first, last = int(level.offsets[index]), int(level.offsets[index + 1])
    at = first + int(np.flatnonzero(level.rest["event"][first:last] == here.event)[0])
    beside = {"previous": at - 1, "next": at + 1}
    return {name: asdict(place_at(store, here.rank, entry)) for name, entry in beside.items() if first <= entry < last}


def parents(store: TimelineStore, here: Place) -> list[Place]:
    """Return the host slices that enclose a host slice, the nearest first: its op, its module, its annotation."""
    line, _, index = store.line_of(here.rank, here.row)
    row, level = line.rows[index], line.levels[0]
    enclosing = []
    for number, above in enumerate(line.rows):
        if row.kind != "host" or (above.track, above.kind) != (row.track, row.kind) or above.depth >= row.depth:
            continue
        start = here.start_ns - line.shift_ns
        first, last = level.touching(number, start, start + 1)
        if last > first:
            rest = level.rest[first]
            begin = int(level.start[first]) + line.shift_ns
            enclosing.append((above.depth, Place(here.rank, number, begin, float(rest["dur"]), int(rest["event"]))))
    return [parent for _, parent in sorted(enclosing, key=lambda item: -item[0])]


def _linked(events: Columns, place: Place | None, relation: str) -> dict[str, Any] | None:
    if place is None or place.event < 0:
        return None
    name = str(events.arrow["name"][place.event].as_py())
    shown = name if len(name) <= 48 else f"{name[:47]}…"
    return asdict(place) | {"says": f"{relation} {shown}", "name": name}


def _facts(tables: TableSet, store: TimelineStore, here: Place, row: dict[str, Any]) -> dict[str, str]:
    start = int(clock_of(tables).align(here.rank, row["start_ns"])) - store.origin_ns
    stream = str(row["stream"]) if row["stream"] >= 0 else ""
    thread = "" if str(row["thread"]) == stream else str(row["thread"])  # a kernel runs on no thread
    return {
        "rank": f"{here.rank}, event {row['event']}",
        "kind": str(row["category"]),
        "duration": quantity(row["dur_ns"], Unit.NS) + _among_peers(store, here, row["name"]),
        "start": f"{quantity(start, Unit.NS)} after the first event of the run",
        "thread": thread,
        "stream": stream,
    }


def _among_peers(store: TimelineStore, here: Place, name: str) -> str:
    """Describe the place of a slice's duration among the rank's slices of the same name; empty for the only one."""
    if name not in store.names:
        return ""
    dur_ns = store.ranks[here.rank].levels[0].rest["dur"][store.entries_named(here.rank, {store.names.index(name)})]
    if len(dur_ns) < 2:
        return ""
    place_by_length = int((dur_ns > here.dur_ns).sum()) + 1
    return f" (number {place_by_length:,} of {len(dur_ns):,} by length, median {quantity(np.median(dur_ns), Unit.NS)})"


def _call_facts(call: Call, arguments: dict[str, object]) -> dict[str, str]:
    name, at, members = call.group.partition("@")
    group = f"{arguments.get('Process Group Description') or name}{at}{members}"  # NCCL's own names are numbers
    size = quantity(call.bytes, Unit.BYTES) if call.bytes >= 0 else "unknown"
    op = "send and receive" if call.op in _PAIRWISE else call.op
    facts = {"call": f"{op} on {call.axis}, {size}", "group": f"{group_label(group)}, call {call.sequence}"}
    return facts | ({"arrived last": f"rank {call.late_rank}"} if call.late_rank >= 0 else {})


def group_label(group: str) -> str:
    """Return the name of a group for readers: `tp@0,1,2` is "tp, ranks 0-2"."""
    name, _, members = group.partition("@")
    if not re.fullmatch(r"\d+(,\d+)*", members):
        return group
    ranks = f"ranks {spans([int(rank) for rank in members.split(',')]).replace(' ', '')}"
    return f"{name}, {ranks}" if name else ranks


def _arguments(text: str) -> dict[str, object]:
    try:
        parsed = json.loads(text or "{}")
    except ValueError:
        return {"as recorded": text}
    return parsed if isinstance(parsed, dict) else {"as recorded": text}


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _short(text: str) -> str:
    return text if len(text) <= MOST_LETTERS else f"{text[: MOST_LETTERS - 1]}…"
