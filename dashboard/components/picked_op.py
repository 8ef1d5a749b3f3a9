"""The op that was clicked on the Kernels page: its figures, its kernels, and its calls on the timeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np
import streamlit as st

from usp_prof.analyses.measures.op_work import of_rank as op_work_of
from usp_prof.charts.inputs import RankBars, RooflinePoints
from usp_prof.model.metric import Unit
from usp_prof.model.selection import Selection
from usp_prof.report.document import Chart, DataTable, Document, data_table
from usp_prof.report.format import quantity
from usp_prof.tables.clock import fit_clocks as clock_of
from usp_prof.tables.table_set import TableSet

from .. import data, state
from ..answers.pictures import blocks_of
from ..state import View
from ..timeline.queries import literal
from ..work import wait
from .blocks import page_link, show

MOST_LISTED = 20
LONGEST = 4
"""Calls that are offered on the timeline; one a rank at most, so that a slow rank does not hide the others."""
KERNEL_COLUMNS = {"kernel": None, "calls": Unit.COUNT, "time": Unit.NS, "longest": Unit.NS}


def picked_op(view: View, document: Document, charts: Sequence[Chart]) -> None:
    """Show the op that the address names, if it is one of the charts'."""
    offered: set[str] = set()
    for chart in charts:
        if isinstance(chart.data, RooflinePoints):
            offered.update(chart.data.label)
        elif isinstance(chart.data, RankBars):
            offered.update(chart.data.labels)
    label = st.query_params.get("op", "")
    if label not in offered:
        state.ignore("op")
        st.caption("Click an op to see its figures, its kernels and its longest calls on the timeline.")
        return
    with st.container(border=True, key="picked-op"):
        st.markdown(f"**{state.plain(label)}**")
        rows = rows_of(document, label)
        if rows is not None:
            show(rows, "picked-op-figures")
        tables = data.open_numbered(view.run).tables
        key = ("op calls", view.selection, label)
        calls = wait(data.ask_made(key, lambda: calls_of_op(tables, view.selection, label), view.run))
        if calls is None:
            st.caption("The traces assign no kernels to this op.")
            return
        _links(calls.longest, str(calls.kernels.rows[0][0]))
        show(calls.kernels, "picked-op-kernels")


def rows_of(document: Document, label: str) -> DataTable | None:
    """Return the rows of one op in the report's table, by its label: its name, or name and shapes."""
    tables = [block for block in blocks_of(document, "kernels") if isinstance(block, DataTable)]
    for table in tables:
        heads = [column.head for column in table.columns]
        if "op" in heads:
            op, shapes = heads.index("op"), heads.index("shapes") if "shapes" in heads else -1
            rows = tuple(
                row for row in table.rows if label in {str(row[op]), f"{row[op]} {row[shapes]}" if shapes >= 0 else ""}
            )
            return DataTable("", table.columns, rows) if rows else None
    return None


def _links(longest: tuple[OpCall, ...], kernel: str) -> None:
    """Link to the longest call of each of the slowest ranks, and to all calls of the op's main kernel."""
    with st.container(horizontal=True, gap="small"):
        for call in longest:
            where = {
                "at": f"{call.start_ns}-{call.start_ns + call.dur_ns}", "picked": f"{call.rank}.{call.event}",
                "only": str(call.rank), "show": "host,exposed",
            }  # fmt: skip
            step = f", step {call.step}" if call.step >= 0 else ""
            label = f"Rank {call.rank}{step}: {quantity(call.dur_ns, Unit.NS)}"
            page_link("timeline", label, where, help="longest call on the timeline")
        page_link("timeline", "All calls of its main kernel", {"find": literal(kernel)})


# The kernels of an op, and its longest calls on the timeline.


@dataclass(frozen=True, slots=True)
class OpCall:
    """One piece of device work of an op, in common time."""

    rank: int
    event: int
    step: int
    kernel: str
    start_ns: int
    dur_ns: int


@dataclass(frozen=True, slots=True)
class OpCalls:
    """The kernels of an op over all ranks and steps, by time; and the longest call of the slowest ranks."""

    kernels: DataTable
    longest: tuple[OpCall, ...]


def calls_of_op(tables: TableSet, selection: Selection, label: str) -> OpCalls | None:
    """Find the calls of an op by its label, "name" or "name shapes"; None if no rank has any."""
    durations_of: dict[str, list[np.ndarray]] = {}
    longest: list[OpCall] = []
    for rank in tables.ranks:
        if (selection.ranks is not None and rank not in selection.ranks) or not tables.has_device_work(rank):
            continue
        work = op_work_of(tables, rank, selection)
        is_op = np.array([label in {kind.name, f"{kind.name} {kind.dims}"} for kind in work.kinds] + [False])
        rows = np.flatnonzero(is_op[work.kind])  # a kind of -1 (no op is known) reads the False at the end
        if not len(rows):
            continue
        for code in np.unique(work.name[rows]).tolist():
            durations_of.setdefault(work.names[code], []).append(work.dur_ns[rows[work.name[rows] == code]])
        top = int(rows[work.dur_ns[rows].argmax()])
        event, step, dur = (int(column[top]) for column in (work.event, work.step, work.dur_ns))
        start = int(clock_of(tables).align(rank, work.start_ns[top]))
        longest.append(OpCall(rank, event, step, work.names[work.name[top]], start, dur))
    if not longest:
        return None
    durations_of_name = {name: np.concatenate(parts) for name, parts in durations_of.items()}
    cells = [(name, len(dur), int(dur.sum()), int(dur.max())) for name, dur in durations_of_name.items()]
    cells.sort(key=lambda row: (-row[2], row[0]))
    kernels = data_table("", KERNEL_COLUMNS, cells, most=MOST_LISTED)
    longest.sort(key=attrgetter("dur_ns"), reverse=True)
    return OpCalls(kernels, tuple(longest[:LONGEST]))
