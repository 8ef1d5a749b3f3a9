"""Timeline page: what ran when on every rank. The client component holds the whole state of the view."""

from __future__ import annotations

from usp_prof.report.document import Document
from usp_prof.timeline.store import TimelineStore

from .. import data, routes, served_runs, state
from ..components import findings
from ..components.blocks import verdict
from ..components.rank_wall import mesh_heads, mesh_order, place_words
from ..components.timeline import timeline
from ..state import Page, Room, View
from ..work import wait

FIRST_RANKS = 16
"""The number of ranks shown before the reader chooses others."""


def draw() -> None:
    """Draw the page."""
    view = state.current()
    store = wait(data.ask_timeline(view.run))
    document = wait(data.ask_document(view.run, view.selection))
    verdict(document.verdict.sentence)
    layout = data.open_numbered(view.run).tables.topology
    order = mesh_order(list(store.ranks), layout)
    places = place_words(order, layout)
    late = document.verdict.straggler
    timeline(
        served_runs.source(view.run), key="timeline", tall=True, ranks=_ranks(view, document),
        at=selected_range(store, view), focus=late if late in store.ranks else None,
        axes=list(layout.axes) if layout.coordinates else [],
        coordinates={rank: dict(at) for rank, at in layout.coordinates.items()},
        wall={
            "order": order, "heads": mesh_heads(order, layout), "places": [places.get(rank, "") for rank in order],
        } if len(order) > 1 else None,
        perfetto=routes.perfetto_pages() is not None,
    )  # fmt: skip


def _ranks(view: View, document: Document) -> list[int]:
    """Return the ranks to show: the selected ones, or all; outliers first if there are many."""
    ranks = data.open_numbered(view.run).tables.ranks
    if view.ranks is not None:
        return list(view.ranks)
    return list(ranks if len(ranks) <= FIRST_RANKS else findings.outliers_first(document, ranks)[:FIRST_RANKS])


def selected_range(store: TimelineStore, view: View) -> list[int] | None:
    """Return the range of the selected steps with a little room; None if no step is selected."""
    if view.first_step is None and view.last_step is None:
        return None
    chosen = [step for step in store.steps if view.selection.takes_step(step.number)]
    if not chosen:
        return None
    start, end = min(step.start_ns for step in chosen), max(step.end_ns for step in chosen)
    room = (end - start) // (20 * len(chosen))
    return [start - room, end + room]


TIMELINE = Page("Timeline", "timeline", draw, Room.TIMELINE)
