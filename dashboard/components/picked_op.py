"""The op that was clicked on the Kernels page: its figures, its kernels, and its calls on the timeline."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import streamlit as st

from .. import data, state
from ..answers.op_calls import calls_of_op
from ..engine import DataTable, RankBars, RooflinePoints, Unit, quantity
from ..timeline.queries import literal
from ..work import wait
from .blocks import show

if TYPE_CHECKING:
    from ..answers.op_calls import OpCall
    from ..engine import Chart, Document
    from ..state import View


def keep_picked(label: str) -> None:
    """Write the op that was clicked into the address."""
    state.keep("op", label)


def picked_op(view: View, document: Document, chart: Chart) -> None:
    """Show the op that the address names, if it is one of the chart's."""
    offered = chart.data.label if isinstance(chart.data, RooflinePoints) else ()
    if isinstance(chart.data, RankBars):
        offered = chart.data.labels
    label = st.query_params.get("op", "")
    if label not in offered:
        st.caption("Click an op to see its figures, its kernels and its longest calls on the timeline.")
        return
    with st.container(border=True, key="picked-op"):
        st.markdown(f"**{state.plain(label)}**")
        rows = rows_of(document, label)
        if rows is not None:
            show(rows, "picked-op-figures", state.is_dark())
        tables = data.open_numbered(view.run).tables
        ask = partial(calls_of_op, tables, view.selection, label)
        calls = wait(data.worker.ask(("op calls", view.run, view.selection, label), ask))
        if calls is None:
            st.caption("The traces tie none of their kernels to this op.")
            return
        _links(view, calls.longest, str(calls.kernels.rows[0][0]))
        show(calls.kernels, "picked-op-kernels", state.is_dark())


def rows_of(document: Document, label: str) -> DataTable | None:
    """Give the rows of the report's table of ops that are of one op, by its label: its name, or its name and shapes."""
    for part in document.sections:
        for block in part.blocks:
            heads = [column.head for column in block.columns] if isinstance(block, DataTable) else []
            if part.id != "kernels" or "op" not in heads or not isinstance(block, DataTable):
                continue
            op, shapes = heads.index("op"), heads.index("shapes") if "shapes" in heads else -1
            rows = tuple(
                row for row in block.rows if label in {str(row[op]), f"{row[op]} {row[shapes]}" if shapes >= 0 else ""}
            )
            return DataTable("", block.columns, rows) if rows else None
    return None


def _links(view: View, longest: tuple[OpCall, ...], kernel: str) -> None:
    """Lead to the longest call of each of the slowest ranks, and to all calls of the op's main kernel."""
    timeline = st.session_state.get("pages", {}).get("timeline")
    if timeline is None:
        return
    run = {"run": str(view.run)} if view.run else {}
    with st.container(horizontal=True, gap="small"):
        for call in longest:
            where = {
                "at": f"{call.start_ns}-{call.start_ns + call.dur_ns}", "picked": f"{call.rank}.{call.event}",
                "ranks": str(call.rank), "show": "host,exposed",
            }  # fmt: skip
            step = f", step {call.step}" if call.step >= 0 else ""
            st.page_link(
                timeline,
                label=f"Rank {call.rank}{step}: {quantity(call.dur_ns, Unit.NS)}",
                help="its longest call on the timeline",
                query_params=run | where,
            )
        st.page_link(timeline, label="All calls of its main kernel", query_params=run | {"find": literal(kernel)})
