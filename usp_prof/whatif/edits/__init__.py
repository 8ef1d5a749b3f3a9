"""Edits: each is one function from graph to graph, listed in `EDITS`."""

from __future__ import annotations

from usp_prof.model.edit import Edit
from usp_prof.model.errors import unknown_name
from usp_prof.replay.graph import Graph
from usp_prof.replay.host_gaps import loading_per_step_ns, think_times
from usp_prof.replay.pauses import pauses
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
"""The edits of the graph. Edits of the pipeline's action order are in `PIPELINE_EDITS`."""


def kind_of(edit: Edit) -> EditKind:
    """Return an edit's kind; raise for keys that it does not take."""
    kinds = {kind.name: kind for kind in EDITS}
    if edit.name not in kinds:
        names = [*kinds, *(pipeline_kind.name for pipeline_kind in PIPELINE_EDITS)]
        raise unknown_name("edit", edit.name, names, list_command="usp-prof whatif PATH --list")
    kinds[edit.name].check(edit)
    return kinds[edit.name]


def overrules(edit: Edit, before: Edit) -> bool:
    """Return whether an edit replaces an earlier one; edits of the pipeline's order never do."""
    return any(kind.overrules(edit, before) for kind in EDITS if kind.name == edit.name)


def turn(edit: Edit) -> int:
    """Return the turn of an edit; edits of the pipeline's order are applied together after all others."""
    return next((kind.turn for kind in EDITS if kind.name == edit.name), 0)


def apply(graph: Graph, request: Request) -> Graph:
    """Return the graph with one edit applied."""
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
    "loading_per_step_ns",
    "overrules",
    "pauses",
    "think_times",
    "turn",
]
