"""Ranks page: the straggler, its place in the mesh, and what fills each rank's time."""

from __future__ import annotations

import streamlit as st

from usp_prof.report.document import Document

from .. import data, state
from ..answers import pictures, verdicts
from ..components.blocks import page_link
from ..components.choices import choose_word
from ..components.findings import with_peers
from ..components.rank_wall import LATE, MESH, late_order, mesh_heads, mesh_order, rank_wall, wall_legend
from ..state import Page, Room, View
from ..work import wait
from .sections import folds, key_figures, lacking, opened, picture

RANKS_SECTIONS = ("stragglers", "step_time", "critical_path", "clock")


def draw() -> None:
    """Draw the page."""
    view, document = opened(RANKS)
    if RANKS.lacks(document):
        return
    if cause := verdicts.larger_cause(document):
        st.caption(state.plain(cause))
    rank = document.verdict.straggler
    if rank is not None:
        key_figures(document, "stragglers")
    picture("ranks", view, lambda: pictures.lateness(document))
    if rank is not None:
        shown = with_peers({rank}, data.open_numbered(view.run).tables.ranks)
        where = {"only": state.format_ranks(shown), "focus": str(rank), "show": "exposed"}
        with st.container(horizontal=True, gap="medium"):
            page_link("timeline", f"Rank {rank} on the timeline", where)
            page_link("whatif", f"What repairing rank {rank} saves", {"edits": f"rank_as_peers={rank}"})
    _wall(view, document)
    folds(document, RANKS_SECTIONS, figures_of="stragglers" if rank is not None else "")


def _wall(view: View, document: Document) -> None:
    """Show what fills each rank's time; dragging over ranks offers to open them in the timeline."""
    store, layout = wait(data.ask_timeline(view.run)), data.open_numbered(view.run).tables.topology
    left, right = st.columns([3, 1.4], vertical_alignment="bottom")
    left.markdown("**What fills each rank's time**: one row per rank, colored by the largest part, blank while idle")
    offered = (MESH, LATE)
    by = MESH
    if len(store.ranks) > 1:
        without_mesh = {} if layout.axes else {MESH: "by rank"}
        by = choose_word(
            "Ranks", "wall", offered, place=right, label_visibility="collapsed",
            format_func=lambda order: without_mesh.get(order, order),
        )  # fmt: skip
    if by == MESH:
        order = mesh_order(store.ranks, layout)
        heads = mesh_heads(order, layout)
    else:
        order = late_order(store.ranks, document)
        heads = [(row, f"rank {rank}") for row, rank in enumerate(order)]
    wall_legend(store)
    chosen = rank_wall(view.run, order, heads)
    if chosen:
        words = state.format_ranks(tuple(sorted(chosen)))
        page_link("timeline", f"Show ranks {words} on the timeline", {"only": words})
    elif len(store.ranks) > 1:
        st.caption("Drag over rows to open their ranks in the timeline.")


RANKS = Page("Ranks", "ranks", draw, Room.DIAGNOSE, lacking(RANKS_SECTIONS, "No figures differ between ranks."))
