"""Edits: each is one function from graph to graph, listed in `EDITS`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.model.errors import unknown_name
from usp_prof.replay.host_gaps import loading_ns, pauses, think_times
from usp_prof.whatif.edits import (
    balance,
    communication,
    compute,
    degrees,
    device,
    host,
    overlap,
    pipeline,
    recompute,
    sharding,
)
from usp_prof.whatif.edits.kind import EditKind, Lean, Request
from usp_prof.whatif.edits.pipeline import PIPELINE_EDITS, PipelineEdit

if TYPE_CHECKING:
    from usp_prof.model.edit import Edit
    from usp_prof.replay.graph import Graph

EDITS: tuple[EditKind, ...] = (
    *compute.EDITS,
    *communication.EDITS,
    *host.EDITS,
    *balance.EDITS,
    *host.BLOCKING_EDITS,
    *compute.FUSED_EDITS,
    *compute.OP_EDITS,
    *overlap.EDITS,
    *communication.LINK_EDITS,
    *recompute.EDITS,
    *sharding.EDITS,
    *pipeline.PASS_EDITS,
    *degrees.EDITS,
    *device.PRECISION_EDITS,
    *device.EDITS,
    *balance.IDEAL_EDITS,
)
"""The edits of the graph. Another schedule is no edit of the graph but of the order of actions: `schedule.py`."""


def kind_of(edit: Edit) -> EditKind:
    """Find an edit's kind, and refuse keys that it does not take."""
    known = {kind.name: kind for kind in EDITS}
    if edit.name not in known:
        raise unknown_name("edit", edit.name, [*known, *(pipeline_kind.name for pipeline_kind in PIPELINE_EDITS)])
    known[edit.name].check(edit)
    return known[edit.name]


def overrules(edit: Edit, before: Edit) -> bool:
    """Say whether an edit stands in place of one made before it; edits of the pipeline's order are made together."""
    return any(kind.overrules(edit, before) for kind in EDITS if kind.name == edit.name)


def turn(edit: Edit) -> int:
    """Say when an edit is made; those of the pipeline's order are made together, behind all others."""
    return next((kind.turn for kind in EDITS if kind.name == edit.name), 0)


def apply(graph: Graph, request: Request) -> Graph:
    """Make one edit."""
    return kind_of(request.edit).apply(graph, request)


__all__ = [
    "EDITS",
    "PIPELINE_EDITS",
    "EditKind",
    "Lean",
    "PipelineEdit",
    "Request",
    "apply",
    "kind_of",
    "loading_ns",
    "overrules",
    "pauses",
    "think_times",
    "turn",
]
