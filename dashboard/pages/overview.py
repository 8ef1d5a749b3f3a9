"""What is wrong, in one screen? Findings first, then the figures that they rest on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import streamlit as st

from .. import data, state
from ..components import findings
from ..components.blocks import section, show
from ..components.findings import listed
from ..engine import (
    AxisCommunication,
    BreakdownRows,
    Chart,
    DataTable,
    Findings,
    Health,
    HeatMap,
    KeyFigures,
    Part,
    Stack,
)
from ..state import Page
from ..work import wait

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..engine import Block, Document, Topology

ORDERS = {"rank": "by rank", "slowest": "most compute first", "waiting": "longest idle first"}

BlockKind = TypeVar("BlockKind")


def draw() -> None:
    """Draw the page."""
    view = state.current()
    document = wait(data.ask_document(view.run, view.selection))
    dark = state.is_dark()
    _head(document)
    blocks = document.summary.blocks
    for block in _of(blocks, KeyFigures):
        show(block, "key-figures", dark)
    left, right = st.columns([1, 1], gap="large")
    with left:
        st.subheader("What is wrong", anchor="wrong")
        for found in _of(blocks, Findings):
            listed(found, view, brief=True)
        for doubt in _of(blocks, Health):
            show(doubt, "health", dark)
    with right:
        st.subheader("Where the step goes", anchor="where")
        for stack in _of(blocks, Stack):
            show(stack, "stack", dark)
        for chart in _charts(document, AxisCommunication):
            show(chart, "axes", dark)
    for chart in _charts(document, BreakdownRows):
        _by_rank(chart, document, data.open_numbered(view.run).tables.topology, dark=dark)
    for chart in _charts(document, HeatMap):
        show(chart, "heat-map", dark)
    _details(document, dark=dark)


def _details(document: Document, *, dark: bool) -> None:
    """Show the summary's tables, and what was wrong with the traces."""
    for number, other in enumerate(block for block in document.summary.blocks if isinstance(block, DataTable)):
        show(other, f"summary-{number}", dark)
    for part in document.sections:
        if part.id == "health":
            section(part, dark=dark)


def _head(document: Document) -> None:
    facts = document.run
    axes = " x ".join(f"{axis} {size}" for axis, size in facts.axes.items()) or "axes not known"
    said = [f"{len(facts.ranks)} of {facts.world_size or '?'} ranks", axes, ", ".join(facts.devices) or "CPU"]
    st.markdown(f"### {state.plain(facts.name)}")
    st.caption(
        state.plain(" · ".join(said)) + (" · **paced: compute is synthetic**" if facts.paced else ""), width="stretch"
    )


def _by_rank(chart: Chart, document: Document, layout: Topology, *, dark: bool) -> None:
    """Show each rank's step in the order that the reader chose; many ranks are the strangest and a mean."""
    axes = tuple(layout.axes) if len(layout.axes) > 1 and layout.coordinates else ()
    offered = ORDERS | {axis: f"by {axis}" for axis in axes}
    before = state.word("order", tuple(offered))
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="bottom"):
        st.subheader("Each rank's step", anchor="ranks", width="content")
        order = st.segmented_control(
            "Order", list(offered), default=before, format_func=offered.__getitem__, label_visibility="collapsed"
        )
    order = order or before
    state.keep("order", order if order != "rank" else None)
    rows = chart.data
    if isinstance(rows, BreakdownRows):
        placed = {f"rank {rank}": places[order] for rank, places in layout.coordinates.items() if order in places}
        show(Chart("", along(rows, order, placed) if placed else ordered(rows, order)), "by-rank", dark)
    strange = findings.outlier_ranks(document)
    if strange:
        named = ", ".join(f"{rank}" for rank in strange[:12]) + (" ..." if len(strange) > 12 else "")
        st.caption(f"Not like the others: {'rank' if len(strange) == 1 else 'ranks'} {named}")


def ordered(rows: BreakdownRows, order: str) -> BreakdownRows:
    """Sort rows: as they are, by most compute, or by most idle time."""
    roles = {"slowest": ("compute",), "waiting": ("idle",)}.get(order)
    if roles is None:
        return rows
    parts = [part for part in rows.parts if part.role.partition(":")[0] in roles]
    size = [sum(part.values_ns[place] for part in parts) for place in range(len(rows.labels))]
    return _taken(rows, sorted(range(len(rows.labels)), key=lambda place: -size[place]))


def along(rows: BreakdownRows, axis: str, placed: Mapping[str, int]) -> BreakdownRows:
    """Sort rows by their coordinate on an axis, which is named; those that have none come first."""
    order = sorted(range(len(rows.labels)), key=lambda place: placed.get(rows.labels[place], -1))
    taken = _taken(rows, order)
    named = (f"{axis} {placed[label]}, {label}" if label in placed else label for label in taken.labels)
    return replace(taken, labels=tuple(named))


def _taken(rows: BreakdownRows, places: Sequence[int]) -> BreakdownRows:
    return BreakdownRows(
        tuple(rows.labels[place] for place in places),
        tuple(Part(part.label, part.role, tuple(part.values_ns[place] for place in places)) for part in rows.parts),
    )


def _of(blocks: Sequence[Block], kind: type[BlockKind]) -> list[BlockKind]:
    return [block for block in blocks if isinstance(block, kind)]


def _charts(document: Document, kind: type) -> list[Chart]:
    return [
        block
        for part in document.sections
        for block in part.blocks
        if isinstance(block, Chart) and isinstance(block.data, kind)
    ]


OVERVIEW = Page("Overview", "overview", draw)
