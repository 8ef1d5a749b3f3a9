"""Sharding edits: another ZeRO stage, and earlier or later weight gathers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.rows import lookup
from usp_prof.model.edit import Edit
from usp_prof.model.errors import UsageError
from usp_prof.replay.graph import EdgeKind, Graph, NodeKind
from usp_prof.replay.insertion import Added, with_calls
from usp_prof.replay.node_work import BACKWARD, FORWARD, OPTIMIZER, work_of
from usp_prof.whatif.edits.communication import without_communication
from usp_prof.whatif.edits.kind import Again, EditKind, Request
from usp_prof.whatif.edits.where import on_axis
from usp_prof.whatif.edits.zero_messages import (
    SLOWER,
    TOGETHER,
    gathers_of_layers,
    gathers_of_weights,
    reductions,
    reductions_beside_backward,
)
from usp_prof.whatif.fitted_times import kernel_times, network_of, over_gloo, resized
from usp_prof.whatif.layout import Layout

SHARDED_GRADIENTS, SHARDED_WEIGHTS = 2, 3
LONGER = 1.1
"""Cautious factor on the time of an all-reduce that is predicted from a reduce-scatter."""
DOUBT = 0.2
"""Share of the effect of prefetch that may not materialize. In two recorded pairs, switching it on saved what was
predicted (2% of the effect); switching it off cost less (16 and 17% of the effect)."""


def zero(graph: Graph, request: Request) -> Graph:
    """Change the ZeRO stage (0 to 3): what data-parallel ranks shard, and therefore what they send and when."""
    now = request.layout.zero
    wanted = int(request.edit.number())
    if wanted not in range(4) or request.edit.number() != wanted:
        raise UsageError(f"edit {request.edit}: ZeRO has stages 0 to 3", hint="zero=3")
    if now < 0:
        raise UsageError(f"edit {request.edit}: the run's ZeRO stage was not recorded", hint="record a manifest")
    is_gloo = over_gloo(request.tables)
    if wanted == now or (not is_gloo and {wanted, now} == {1, 2}):
        return graph
    # Over gloo, stages 0 and 1 send several messages concurrently, stages 2 and 3 one at a time.
    is_regrouped = is_gloo and (now >= SHARDED_GRADIENTS) != (wanted >= SHARDED_GRADIENTS)
    own_reductions = reductions(graph, request, slower=TOGETHER if is_regrouped else SLOWER)
    if is_regrouped and request.cautious:
        longer = graph.transfer * TOGETHER
        graph = graph.with_changes(transfer=np.where(own_reductions.rows, longer, graph.transfer).astype(np.int64))
    gathers = _gathers(graph, request)
    phase = graph.spread(work_of(request.tables).phase, missing=0)
    if min(wanted, now) == 0:
        if not is_gloo:
            graph = _reduced(graph, request, own_reductions.rows, 0.5 if now == 0 else 2.0)
        graph = _optimizing(graph, request, phase == OPTIMIZER, shrink=now == 0)
    # Weights are gathered after the optimizer or before the next forward; with ZeRO-3, only in passes.
    graph = without_communication(
        graph, gathers & np.isin(phase, (FORWARD, BACKWARD)) if now == SHARDED_WEIGHTS else gathers
    )
    if is_gloo and now >= SHARDED_GRADIENTS > wanted:
        graph = with_calls(
            without_communication(graph, own_reductions.rows),
            reductions_beside_backward(graph, request, own_reductions),
        )
    if wanted == 0:
        return graph
    if wanted == 1 or (wanted == SHARDED_GRADIENTS and not is_gloo):
        return with_calls(graph, gathers_of_weights(graph, request, own_reductions))
    return with_calls(graph, gathers_of_layers(graph, request, own_reductions, keep=wanted == SHARDED_GRADIENTS))


def prefetch(graph: Graph, request: Request) -> Graph:
    """Gather each layer's weights while the previous layer computes (on), or when needed (off); needs ZeRO-3."""
    if request.edit.value not in ("on", "off"):
        raise UsageError(f"edit {request.edit}: prefetch is on or off", hint="prefetch=on")
    phase = graph.spread(work_of(request.tables).phase, missing=0)
    rows = np.flatnonzero(_gathers(graph, request) & np.isin(phase, (FORWARD, BACKWARD)) & graph.tied)
    if not len(rows):
        raise UsageError(
            f"edit {request.edit}: no weights are gathered in forward or backward",
            hint="edit zero=3 first, or record it",
        )
    consumer = _consumers(graph, rows)
    # Gathers of a pass through a stage, sorted by time: one follows another if all keys are equal.
    work = work_of(request.tables)
    stage, micro_batch = (graph.spread(of_work, missing=-1)[rows] for of_work in (work.stage, work.micro_batch))
    pass_keys = (phase[rows], stage, micro_batch, graph.nodes.step[rows], graph.nodes.rank[rows])
    order = np.lexsort((graph.nodes.start[rows], *pass_keys))
    rows, consumer = rows[order], consumer[order]
    follows = np.append(False, np.all([key[order][1:] == key[order][:-1] for key in pass_keys], axis=0))
    later = np.flatnonzero(follows & (consumer >= 0) & (np.roll(consumer, 1) >= 0))
    moved = rows[later]
    on = request.edit.value == "on"
    gathers = Added(
        graph.nodes.rank[moved],
        np.unique(graph.nodes.call[moved], return_inverse=True)[1].ravel(),
        np.rint(graph.transfer[moved] * (SLOWER if request.cautious else 1.0)).astype(np.int64),
        consumer[later - 1] if on else consumer[later] - 1,  # start or end of the previous layer
        np.full(len(later), on),
        graph.nodes.start[moved],
        consumer[later],
        "dp",
        "all_gather",
        stands_for=moved,
    )
    is_moved = np.zeros(len(graph.nodes), dtype=bool)
    is_moved[moved] = True
    # Moved gathers get lanes of their own, because they would wait for other messages than in the recording.
    edges = graph.edges.without(is_moved[graph.edges.source] & (graph.edges.kind == EdgeKind.WAIT))
    return with_calls(without_communication(graph, is_moved).with_changes(edges=edges), gathers)


def _consumers(graph: Graph, rows: Ints) -> Ints:
    """Return the compute that waits for each gather, from edges or as the first to start after its end; -1 if none.

    The first compute of a lane also counts as none, because there is no earlier layer in which to prefetch.
    """
    nodes = graph.nodes
    consumer = np.full(len(nodes), -1, np.int64)
    waits = graph.edges.take(graph.edges.kind == EdgeKind.WAIT)
    is_compute = nodes.kind == NodeKind.COMPUTE
    is_own = is_compute[waits.target] & (nodes.rank[waits.source] == nodes.rank[waits.target])
    consumer[waits.source[is_own][::-1]] = waits.target[is_own][::-1]  # of several, the first edge counts
    for rank in np.unique(nodes.rank[rows]).tolist():
        unnamed = rows[(nodes.rank[rows] == rank) & (consumer[rows] < 0)]
        compute = np.flatnonzero(is_compute & (nodes.rank == rank) & graph.measured)
        compute = compute[np.argsort(nodes.start[compute], kind="stable")]
        place = np.searchsorted(nodes.start[compute], nodes.end[unnamed])
        consumer[unnamed] = lookup(compute, place, missing=-1)
    begins_lane = lookup(nodes.first_of_lane, consumer[rows], missing=True)
    return np.where(begins_lane, -1, consumer[rows])


def _gathers(graph: Graph, request: Request) -> Flags:
    """Mark the gathers of weights: all-gathers over the data-parallel ranks."""
    return on_axis(graph, request, "dp") & network_of(request.tables).runs(graph, "all_gather")


def _reduced(graph: Graph, request: Request, rows: Flags, factor: float) -> Graph:
    """Return the graph with gradient reductions as reduce-scatters (half the traffic) or all-reduces (twice)."""
    latency = network_of(request.tables).latency(graph)
    cautiously = LONGER if request.cautious and factor > 1 else 1.0
    changed = resized(graph, latency, volume=factor * cautiously)
    return graph.with_changes(transfer=np.where(rows, np.rint(changed), graph.transfer).astype(np.int64))


def _optimizing(graph: Graph, request: Request, rows: Flags, *, shrink: bool) -> Graph:
    """Return the graph with each rank's optimizer updating a part of the weights (`shrink`) or all of them."""
    size = request.layout.dp
    times = kernel_times(request.tables).scaled(
        graph.duration, np.zeros(len(graph.nodes)), 1 / size if shrink else float(size), cautious=request.cautious
    )
    return graph.with_changes(duration=np.where(rows & (graph.nodes.kind == NodeKind.COMPUTE), times, graph.duration))


def _relaid(layout: Layout, edit: Edit) -> Layout:
    return replace(layout, zero=int(edit.number()))


EDITS = (
    EditKind("zero", "zero=3", (), zero, _relaid, modelled=True, again=Again.REPLACES, turn=2),
    EditKind("prefetch", "prefetch=on", (), prefetch, modelled=True, doubt=DOUBT, again=Again.REPLACES, turn=2),
)
