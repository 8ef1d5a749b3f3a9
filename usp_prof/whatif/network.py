"""Which communication is meant, and what would it take otherwise? Latency and bandwidth of the run's own calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from usp_prof.model.errors import UsageError
from usp_prof.whatif.graph import NodeKind
from usp_prof.whatif.links import calls_of

if TYPE_CHECKING:
    from usp_prof.whatif.edits.kind import Request
    from usp_prof.whatif.graph import Flags, Graph


def talk(graph: Graph, request: Request) -> Flags:
    """Mark the communication that an edit's keys `axis` and `op` name; all of it without them."""
    axis, op = request.edit.place("axis"), request.edit.place("op")
    if axis and axis not in graph.axes:
        there = ", ".join(sorted(each for each in graph.axes if each)) or "none"
        raise UsageError(f"edit {request.edit}: the run has no communication of axis {axis}", hint=f"it has: {there}")
    rows = graph.on_axis(axis)
    if not op:
        return rows
    codes, texts = calls_of(request.tables).codes("op")
    if op not in texts:
        there = ", ".join(sorted(texts)) or "none whose members are known"
        raise UsageError(f"edit {request.edit}: the run has no {op}", hint=f"it has: {there}")
    named = np.append(codes == texts.index(op), [False])
    return np.asarray(rows & named[graph.nodes.call] & (graph.nodes.kind == NodeKind.COMMUNICATION))
