"""Ranks page: the straggler, its place in the mesh, and what fills each rank's time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import streamlit as st

from .. import data, state
from ..answers import pictures, verdicts
from ..components.blocks import fold_sections, show, verdict
from ..components.findings import beside
from ..components.rank_wall import LATE, MESH, late_order, mesh_heads, mesh_order, rank_wall, wall_legend
from ..engine import KeyFigures
from ..state import Page, Room, View
from ..work import wait
from .sections import lacking

if TYPE_CHECKING:
    from ..engine import Document

WALL_PX = 260
"""Least height of the wall; it has at least one pixel per rank."""
RANKS_SECTIONS = ("stragglers", "step_time", "critical_path", "clock")


def draw() -> None:
    """Draw the page."""
    view = state.current()
    document = wait(data.ask_document(view.run, view.selection))
    verdict(verdicts.ranks(document))
    if why := RANKS.lacks(document):
        st.info(why)
        return
    for block in pictures.blocks_of(document, "stragglers") if document.verdict.late_ranks else ():
        if isinstance(block, KeyFigures):
            show(block, "key-stragglers", state.is_dark())
    chart = wait(data.ask_picture("ranks", view.run, view.selection, lambda: pictures.lateness(document)))
    if chart is not None:
        show(chart, "picture-ranks", state.is_dark())
    _next_steps(view, document)
    _wall(view, document)
    fold_sections(document, RANKS_SECTIONS)


def _next_steps(view: View, document: Document) -> None:
    """Link to the straggler on the timeline, and to the prediction of its repair."""
    rank, pages = document.verdict.straggler, st.session_state.get("pages", {})
    if rank is None or not pages:
        return
    shown = beside({int(rank)}, data.open_numbered(view.run).tables.ranks)
    timeline_query = {"only": state.format_ranks(shown), "focus": str(rank), "show": "exposed"}
    with st.container(horizontal=True, gap="medium"):
        st.page_link(
            pages["timeline"], label=f"Rank {rank} on the timeline", query_params=state.link("timeline", timeline_query)
        )
        edit = {"edits": f"rank_as_peers={rank}"}
        st.page_link(
            pages["whatif"], label=f"What repairing rank {rank} saves", query_params=state.link("whatif", edit)
        )


def _wall(view: View, document: Document) -> None:
    """Show what fills each rank's time; dragging over ranks offers to open them in the timeline."""
    store, layout = wait(data.ask_timeline(view.run)), data.open_numbered(view.run).tables.topology
    left, right = st.columns([3, 1.4], vertical_alignment="bottom")
    left.markdown("**What fills each rank's time**: one row per rank, colored by the largest part, blank while idle")
    offered = (MESH, LATE)
    by = MESH
    if len(store.ranks) > 1:
        by = right.selectbox("Ranks", offered, offered.index(state.word("wall", offered)), label_visibility="collapsed")
    state.keep("wall", by if by != MESH else None)
    if by == MESH:
        order = mesh_order(store.ranks, layout)
        heads = mesh_heads(order, layout)
    else:
        order = late_order(store.ranks, document)
        heads = [(row, f"rank {rank}") for row, rank in enumerate(order)]
    wall_legend(store)
    chosen = rank_wall(view.run, order, key="wall-ranks", height=WALL_PX, heads=heads)
    timeline_page = st.session_state.get("pages", {}).get("timeline")
    if chosen and timeline_page is not None:
        words = state.format_ranks(tuple(sorted(chosen)))
        query = state.link("timeline", {"only": words})
        st.page_link(timeline_page, label=f"Show ranks {words} on the timeline", query_params=query)
    elif len(store.ranks) > 1:
        st.caption("Drag over rows to open their ranks in the timeline.")


RANKS = Page("Ranks", "ranks", draw, Room.DIAGNOSE, lacking(RANKS_SECTIONS, "No figures differ between ranks."))
