"""Rank wall: one row of pixels per rank, by mesh position or lateness; dragging over rows selects ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import streamlit as st

from usp_prof.model.topology import Topology
from usp_prof.report.document import Document
from usp_prof.report.figures import Figures
from usp_prof.timeline.assets import category_colors
from usp_prof.timeline.assets import script as timeline_script
from usp_prof.timeline.assets import style as timeline_style
from usp_prof.timeline.rows import CATEGORIES
from usp_prof.timeline.store import TimelineStore

from .. import data, served_runs, state
from .blocks import swatches

MESH, LATE = "by mesh position", "latest first"
_NOWHERE = 1 << 30
WALL_PX = 260
"""Least height of the wall; it has at least one pixel per rank."""


@cache
def _renderer() -> Callable[..., Any]:
    script = timeline_script("wall", "tiles", "wall_component")
    return st.components.v2.component(
        "usp_rank_wall", html='<div class="usp-wall"></div>', css=timeline_style(), js=script
    )


def mesh_order(ranks: Sequence[int], layout: Topology) -> list[int]:
    """Sort ranks by their coordinates, the mesh's first axis first; ranks without a place come last, by number."""
    coordinates_of = layout.coordinates

    def coordinates(rank: int) -> list[int]:
        return [coordinates_of[rank].get(axis, -1) for axis in layout.axes] if rank in coordinates_of else [_NOWHERE]

    return sorted(ranks, key=lambda rank: (coordinates(rank), rank))


def late_order(ranks: Sequence[int], document: Document) -> list[int]:
    """Sort ranks by how long the others wait for them per step."""
    cost = Figures(document.values).along("straggler_cost", "rank")
    cost_of_rank = {int(rank): value for rank, value in cost.items()}
    return sorted(ranks, key=lambda rank: (-cost_of_rank.get(rank, 0.0), rank))


def mesh_heads(order: Sequence[int], layout: Topology) -> list[tuple[int, str]]:
    """Label the first row of each block that shares the first axis; without a mesh, about eight rows."""
    first = next(iter(layout.axes), "")
    if not first or any(rank not in layout.coordinates for rank in order):
        stride = max(len(order) // 8, 1)
        return [(row, f"rank {order[row]}") for row in range(0, len(order), stride)]
    at = [layout.coordinates[rank].get(first, -1) for rank in order]
    begins = [0, *(row for row in range(1, len(order)) if at[row] != at[row - 1])]
    return [(row, f"{first} {at[row]}") for row in begins]


def place_words(ranks: Sequence[int], layout: Topology) -> dict[int, str]:
    """Return each rank's coordinates in words: "pp 1, tp 0"."""
    words = {}
    for rank in ranks:
        if rank in layout.coordinates:
            at = layout.coordinates[rank]
            words[rank] = ", ".join(f"{axis} {at[axis]}" for axis in layout.axes if axis in at)
    return words


def wall_legend(store: TimelineStore) -> None:
    """Show the legend of a wall."""
    color_of = dict(zip(CATEGORIES, category_colors(dark=state.is_dark()), strict=True))
    axes = {name.partition(" ")[2] for name in store.names if name.startswith("exposed ")}
    work = swatches([(color_of["compute"], "compute"), (color_of["memcpy"], "copies")])
    waits = swatches([(color_of[axis], axis) for axis in CATEGORIES if axis in axes])
    st.html(f"<div style='font-size:12px;line-height:1.6'>{work}{waits and 'exposed communication: '}{waits}</div>")


def rank_wall(
    index: int,
    order: Sequence[int],
    heads: Sequence[tuple[int, str]],
) -> list[int]:
    """Show all ranks of a run in an order, with labels next to rows; return the ranks that the reader selected last."""
    store = data.timeline_store(index)
    places = place_words(order, data.open_numbered(index).tables.topology)
    answer = _renderer()(
        data={
            "source": served_runs.source(index), "order": list(order), "range": [0, store.span_ns], "height": WALL_PX,
            "heads": heads, "places": [places.get(rank, "") for rank in order], "chosen": [],
            "parts": list(CATEGORIES), "colors": category_colors(dark=state.is_dark()),
            "steps": [{"number": step.number, "start_ns": step.start_ns} for step in store.steps],
        },
        key="wall-ranks", default={"chosen": []}, on_chosen_change=lambda: None,
    )  # fmt: skip
    return [int(rank) for rank in answer.chosen or []]
