"""Details of the slice that was clicked: its facts, its collective on all ranks, its arguments."""

from __future__ import annotations

import json
import re
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import streamlit as st

from .. import data, state
from ..engine import DataTable, TableColumn, Unit, clock_of, quantity
from ..timeline.queries import call_of, launch_of, op_of
from .download import scaled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..engine import TableSet
    from ..timeline.queries import Call, Place

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
"""Arguments of a trace that are worth a line of their own."""


def show(index: int, rank: int, event: int) -> None:
    """Show what is known of an event."""
    tables = data.open_numbered(index).tables
    if rank not in tables.ranks or not 0 <= event < len(tables.columns("events", rank)):
        return
    row = tables.columns("events", rank).arrow.slice(event, 1).to_pylist()[0]
    st.markdown(f"**Rank {rank}, event {event}**")
    st.code(row["name"], language=None, wrap_lines=True)
    arguments = _arguments(row["args"])
    facts = _facts(index, rank, row)
    call = call_of(tables, rank, event)
    if call is not None:
        facts |= _call_facts(call)
    launch = launch_of(tables, rank, event)
    if launch is not None:
        began = int(tables.columns("events", rank)["start_ns"][launch])
        facts["launched by"] = f"event {launch}, {quantity(row['start_ns'] - began, Unit.NS)} before"
    op = op_of(tables, rank, event)
    if op is not None:
        facts |= {"launched in": op[0]} | ({"shapes": _short(op[1])} if op[1] else {})
    facts |= {name: _short(arguments[key]) for key, name in _ARGUMENTS.items() if arguments.get(key) not in (None, "")}
    left, right = st.columns(2)
    fact_rows = [{"what": name, "value": str(value)} for name, value in facts.items()]
    left.dataframe(fact_rows, hide_index=True, height="content")
    with right.expander("All arguments in the trace", expanded=call is None):
        st.json(arguments) if arguments else st.caption("The trace has no arguments.")
    if call is not None:
        with right:
            _members(tables, index, call, rank, event)


def _facts(index: int, rank: int, row: dict[str, Any]) -> dict[str, str]:
    store, tables = data.timeline_store(index), data.open_numbered(index).tables

    began = int(clock_of(tables).align(rank, row["start_ns"])) - store.origin_ns
    facts = {
        "kind": str(row["category"]),
        "duration": quantity(row["dur_ns"], Unit.NS),
        "starts": f"{quantity(began, Unit.NS)} after the run's first event",
        "thread": str(row["thread"]),
    }
    if row["stream"] >= 0:
        facts["stream"] = str(row["stream"])
    return facts


def _call_facts(call: Call) -> dict[str, str]:
    size = quantity(call.bytes, Unit.BYTES) if call.bytes >= 0 else "not known"
    facts = {"collective": f"{call.op} on {call.axis}", "bytes": size}
    facts |= {"group": named(call.group), "call": f"number {call.sequence} of its group"}
    if call.late_rank >= 0:
        facts["arrived last"] = f"rank {call.late_rank}"
    return facts


def named(group: str) -> str:
    """Name a group as people do: `tp@0,1,2` is tp of the ranks 0-2; one without a name is its ranks."""
    name, _, members = group.partition("@")
    if not re.fullmatch(r"\d+(,\d+)*", members):
        return group
    ranks = f"ranks {state.format_ranks(tuple(int(rank) for rank in members.split(',')))}"
    return f"{name}, {ranks}" if name else ranks


def _members(tables: TableSet, index: int, call: Call, rank: int, event: int) -> None:
    """List the same call on every rank; the timeline frames them."""
    store = data.timeline_store(index)
    rows = []
    for member, part in call.parts:
        events = tables.columns("events", member)
        began = int(clock_of(tables).align(member, events["start_ns"][part])) - store.origin_ns
        rows.append((member, began, int(events["dur_ns"][part])))
    st.markdown(f"**The same call on {len(rows)} ranks**: follow an arrow, or select a row to go there")
    heads = TableColumn("rank"), TableColumn("start", Unit.NS), TableColumn("duration", Unit.NS)
    shown, columns = scaled(DataTable("", heads, tuple(sorted(rows, key=itemgetter(1)))))
    st.dataframe(
        shown, hide_index=True, column_config=columns or None, key=_members_key(rank, event), on_select="rerun",
        selection_mode="single-row",
    )  # fmt: skip


def _members_key(rank: int, event: int) -> str:
    return f"members-{rank}-{event}"


def chosen_member(picked: dict[str, int] | None, members: Sequence[Place]) -> Place | None:
    """Return the member that was chosen in the table of the call that is picked."""
    table = st.session_state.get(_members_key(int(picked["rank"]), int(picked["event"]))) if picked else None
    rows = table["selection"]["rows"] if table else []
    by_start = sorted(members, key=lambda member: member.start_ns)
    return by_start[rows[0]] if rows and rows[0] < len(by_start) else None


def _arguments(text: str) -> dict[str, object]:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {"as recorded": text}
    return found if isinstance(found, dict) else {"as recorded": text}


def _short(value: object, most: int = 300) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= most else f"{text[: most - 1]}…"
