"""Recomputation edit: forward is recomputed inside backward, or no longer.

Existing recomputation is measured from the ops if they show it (`replay.backward`), and exactly that work is removed.
Otherwise it is the forward work given by the manifest, and its number of repetitions follows from the FLOP in backward.
New recomputation takes as long as the same work in forward.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from usp_prof.columns.arrays import Flags
from usp_prof.columns.rows import group_codes, lookup
from usp_prof.model.edit import Edit
from usp_prof.model.errors import UsageError
from usp_prof.replay import backward
from usp_prof.replay.graph import Graph, NodeKind
from usp_prof.replay.node_work import BACKWARD, FORWARD, WEIGHT_GRADIENT, Family, NodeWork, work_of
from usp_prof.whatif.edits.kind import Again, EditKind, Request
from usp_prof.whatif.layout import Layout

NONE, SELECTIVE, FULL = "none", "selective", "full"
DOUBT = 0.1
"""Recomputed work may take this share more or less time than in forward."""


def recompute(graph: Graph, request: Request) -> Graph:
    """Recompute activations in backward: none, selective (attention only) or full (every layer)."""
    wanted, now = request.edit.value, request.layout.recompute
    if wanted not in (NONE, SELECTIVE, FULL):
        raise UsageError(f"edit {request.edit}: recompute is {wanted!r}", hint="none, selective or full")
    if not now:
        raise UsageError(
            f"edit {request.edit}: whether activations are recomputed was not recorded",
            hint="record with a manifest that says so (recompute: none, selective or full)",
        )
    if wanted == now:
        return graph
    work = work_of(request.tables)
    again = _part(graph, work, wanted, request.layout).astype(np.float64)
    if backward.measured(request.tables) is not None:
        graph = _without(graph, backward.nodes_run_again(request.tables, graph.nodes))
    else:
        present = _part(graph, work, now, request.layout)
        again -= _repeats_by_flop(graph, work, present) * present
    doubt = 1 + DOUBT * (np.sign(again) if request.cautious else 0)
    return _with_backward(graph, work, again * doubt)


def _without(graph: Graph, left_out: Flags) -> Graph:
    """Return the graph with the given work, and the think time before it, taking no time."""
    return graph.with_changes(
        duration=np.where(left_out, 0, graph.duration),
        transfer=np.where(left_out, 0, graph.transfer),
        gap=np.where(left_out, np.minimum(graph.gap, 0), graph.gap),
    )


def _repeats_by_flop(graph: Graph, work: NodeWork, present: Flags) -> float:
    """Return how often forward is recomputed, from the FLOP of products; at least 1, also if FLOP are unknown.

    Each product has two of equal size in backward. All other FLOP there are recomputed forward.
    """
    flop = graph.spread(work.of_shapes([shape.flop for shape in work.shapes]), missing=0)
    phase = graph.spread(work.phase, missing=0)
    in_forward, in_backward = flop[phase == FORWARD].sum(), flop[phase == BACKWARD].sum()
    once = flop[present].sum()
    return max(1.0, float((in_backward - 2 * in_forward) / once)) if once else 1.0


def _part(graph: Graph, work: NodeWork, which: str, layout: Layout) -> Flags:
    """Mark the forward nodes that are recomputed."""
    forward = (graph.spread(work.phase, missing=0) == FORWARD) & _on_device(graph)
    forward &= ~_on_other_axes(graph)
    if which == NONE:
        return np.zeros_like(forward)
    if which == SELECTIVE:
        families = [shape.family is Family.ATTENTION for shape in work.shapes]
        return np.asarray(forward & (graph.spread(work.of_shapes(families), missing=0) > 0))
    vocabulary = layout.model.vocab // max(layout.tp, 1) if layout.model else 0
    head = [bool(vocabulary) and shape.family is Family.PRODUCT and vocabulary in shape.sizes for shape in work.shapes]
    return np.asarray(forward & ~(graph.spread(work.of_shapes(head), missing=0) > 0))


def _on_other_axes(graph: Graph) -> Flags:
    """Mark communication that recomputation does not repeat: between stages, and of gradients and weights."""
    is_repeated = lookup([axis in ("tp", "cp", "ep") for axis in graph.axes], graph.nodes.axis, missing=False)
    return np.asarray((graph.nodes.kind == NodeKind.COMMUNICATION) & ~is_repeated)


def _with_backward(graph: Graph, work: NodeWork, again: np.ndarray) -> Graph:
    """Return the graph with each stage's backward longer or shorter by the recomputed work.

    Compute and communication are changed separately. `again` holds the additional runs per node: 1 if it is newly
    recomputed, -1 if it no longer is.
    """
    is_backward = (graph.spread(work.phase, missing=0) == BACKWARD) & ~_on_other_axes(graph) & _on_device(graph)
    # If backward is split, the input gradient waits for the recomputation.
    is_backward &= graph.spread(work.kind, missing=-1) != WEIGHT_GRADIENT
    own_ns = np.where(graph.tied, graph.transfer, graph.duration).astype(np.float64)
    # Group code of a rank's stage: 0 for compute, 1 + axis for communication.
    talks = graph.nodes.kind == NodeKind.COMMUNICATION
    axis = np.where(talks, graph.nodes.axis + 1, 0)
    group = group_codes(graph.nodes.rank, graph.spread(work.stage, missing=-1), axis)
    now = np.bincount(group, np.where(is_backward, own_ns, 0.0))
    if not now.any():
        raise UsageError("no work of the run is known to be backward", hint="mark train::forward and train::backward")
    more = np.bincount(group, again * own_ns)
    factor_of_group = np.maximum(1 + more / np.maximum(now, 1.0), 0.0)
    factor = np.where(is_backward, factor_of_group[group], 1.0)
    return graph.with_changes(
        duration=np.where(graph.tied, graph.duration, np.rint(graph.duration * factor)).astype(np.int64),
        transfer=np.where(graph.tied, np.rint(graph.transfer * factor), graph.transfer).astype(np.int64),
    )


def _on_device(graph: Graph) -> Flags:
    return np.isin(graph.nodes.kind, (NodeKind.COMPUTE, NodeKind.COMMUNICATION))


def _relaid(layout: Layout, edit: Edit) -> Layout:
    return replace(layout, recompute=edit.value)


EDITS = (EditKind("recompute", "recompute=full", (), recompute, _relaid, modelled=True, again=Again.REPLACES),)
