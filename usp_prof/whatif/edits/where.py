"""Selection: the communication that an edit's keys name."""

from __future__ import annotations

import numpy as np

from usp_prof.columns.arrays import Flags
from usp_prof.model.errors import UsageError
from usp_prof.replay.graph import Graph
from usp_prof.whatif.edits.kind import Request
from usp_prof.whatif.fitted_times import network_of


def communication_of(graph: Graph, request: Request) -> Flags:
    """Mark the communication selected by an edit's keys `axis` and `op`; all of it without these keys."""
    axis, op = request.edit.place("axis"), request.edit.place("op")
    rows = on_axis(graph, request, axis)
    if not op:
        return rows
    network = network_of(request.tables)
    if op not in network.op:
        ops = ", ".join(sorted(network.op)) or "none whose members are known"
        raise UsageError(f"edit {request.edit}: the run has no {op}", hint=f"it has: {ops}")
    return np.asarray(rows & network.runs(graph, op))


def on_axis(graph: Graph, request: Request, axis: str) -> Flags:
    """Mark the communication of an axis and its parts (dp_shard is part of dp), or of all axes if `axis` is empty."""
    names = (
        [axis_name for axis_name in graph.axes if axis_name == axis or axis_name.startswith(f"{axis}_")]
        if axis
        else [""]
    )
    if not names:
        axes = ", ".join(sorted(axis_name for axis_name in graph.axes if axis_name)) or "none"
        raise UsageError(f"edit {request.edit}: the run has no communication of axis {axis}", hint=f"it has: {axes}")
    return np.asarray(np.any([graph.on_axis(name) for name in names], axis=0))
