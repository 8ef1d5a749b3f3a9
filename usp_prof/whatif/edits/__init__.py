"""Which changes can be made to a run? Each edit is one function from graph to graph, listed in `EDITS`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.model.errors import unknown_name
from usp_prof.whatif.edits import communication, compute, host
from usp_prof.whatif.edits.kind import EditKind, Request
from usp_prof.whatif.thought import loading_ns, pauses, think_times

if TYPE_CHECKING:
    from usp_prof.model.edit import Edit
    from usp_prof.whatif.graph import Graph

EDITS: tuple[EditKind, ...] = (*compute.EDITS, *communication.EDITS, *host.EDITS)
"""The edits of the graph. Another schedule is no edit of the graph but of the order of actions: `schedule.py`."""


def kind_of(edit: Edit) -> EditKind:
    """Find an edit's kind, and refuse keys that it does not take."""
    known = {kind.name: kind for kind in EDITS}
    if edit.name not in known:
        raise unknown_name("edit", edit.name, [*known, "schedule", "balance_stages"])
    known[edit.name].check(edit)
    return known[edit.name]


def apply(graph: Graph, request: Request) -> Graph:
    """Make one edit."""
    return kind_of(request.edit).apply(graph, request)


__all__ = ["EDITS", "EditKind", "Request", "apply", "kind_of", "loading_ns", "pauses", "think_times"]
