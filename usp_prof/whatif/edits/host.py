"""Host edits: no launch gaps, the next batch always there, no pauses."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.replay.graph import EdgeKind, NodeKind
from usp_prof.replay.host_gaps import holds_thought, lane_before, loading, loads_data, overlap, pauses, thinks
from usp_prof.tables import clock
from usp_prof.whatif.edits.kind import EditKind, Request

if TYPE_CHECKING:
    from usp_prof.replay.graph import Graph, Ints

GRAPH_GAP_NS = 1_000
"""Between kernels of a CUDA graph about a microsecond passes."""
UNCAPTURED = 0.5
"""A cautious reading leaves the host this share of what its launches and the thinking before them take: fewer and
larger kernels, as a compiler makes them, in place of graphs."""
SURE = 0.9
"""A cautious reading takes this share of a pause or of the data loader's time out."""


def no_launch_gaps(graph: Graph, request: Request) -> Graph:
    """Let the device run without waiting for launches, as CUDA graphs do; the host's waits and pauses stay.

    The host no longer thinks before each launch either: one that is always behind would hold up each step as before.
    A cautious reading captures nothing, and leaves the host `UNCAPTURED` of the time that its launches take.
    """
    device = np.isin(graph.nodes.kind, (NodeKind.COMPUTE, NodeKind.COPY, NodeKind.COMMUNICATION))
    begins = np.zeros(len(device), dtype=bool)  # a graph is launched after the host has waited, loaded or paused
    begins[pauses(graph, request.tables)] = True
    begins |= loads_data(graph, request.tables) | np.roll(graph.nodes.kind == NodeKind.RETURN, 1)
    begins[graph.edges.target[graph.edges.kind == EdgeKind.SYNC]] = True
    launch = graph.edges.kind == EdgeKind.LAUNCH
    gone = launch & (device & ~graph.nodes.first_of_lane)[graph.edges.target] & ~begins[graph.edges.source]
    launching = np.zeros(len(device), dtype=bool)
    launching[graph.edges.source[gone]] = True
    launching[graph.edges.source[launch & ~gone]] = False
    share = UNCAPTURED if request.cautious else 0.0
    gap = np.where(launching & (graph.gap > 0), (share * graph.gap).astype(np.int64), graph.gap)
    duration = np.where(launching, (share * graph.duration).astype(np.int64), graph.duration)
    if request.cautious:
        return graph.with_changes(gap=gap, duration=duration)
    gap = np.where(device, np.minimum(gap, GRAPH_GAP_NS), gap)
    return graph.with_changes(gap=gap, duration=duration, edges=graph.edges.take(~gone))


def no_input_wait(graph: Graph, request: Request) -> Graph:
    """Let the next batch always be there: what the host spends in the data loader takes no time."""
    gap, duration, lag = graph.gap.copy(), graph.duration.copy(), graph.edges.lag.copy()
    clocks = clock.of(request.tables)
    before, thinking, edges = lane_before(graph), thinks(graph), graph.edges
    late = thinking[edges.target] & (edges.kind != EdgeKind.LAUNCH) & (lag > 0)
    for rank in request.tables.ranks:
        begin, end = (clocks.align(rank, when) for when in loading(request.tables, rank))
        if not len(begin):
            continue
        rows = graph.nodes.of_rank(rank)
        rows = rows[thinking[rows]]
        covered = overlap(begin, end, before[rows], graph.nodes.start[rows])
        gap[rows] -= np.minimum(covered, np.maximum(gap[rows], 0))
        covered = overlap(begin, end, graph.nodes.start[rows], graph.nodes.end[rows])
        duration[rows] -= np.minimum(covered, duration[rows])
        waits = np.flatnonzero(late & (graph.nodes.rank[edges.target] == rank))
        till = graph.nodes.start[edges.target[waits]]
        lag[waits] -= np.minimum(overlap(begin, end, till - lag[waits], till), lag[waits])
    return graph.with_changes(
        gap=_taken(graph.gap, gap, request),
        duration=_taken(graph.duration, duration, request),
        edges=replace(edges, lag=_taken(edges.lag, lag, request)),
    )


def no_pauses(graph: Graph, request: Request) -> Graph:
    """Take out pauses of the host (garbage collection, preemption): think times far beyond the rank's ordinary ones."""
    paused = np.zeros(len(graph.nodes), dtype=bool)
    paused[pauses(graph, request.tables)] = True
    edges = graph.edges
    lag = np.where(paused[edges.target] & holds_thought(edges), 0, edges.lag)
    gap = np.where(paused, np.minimum(graph.gap, 0), graph.gap)
    return graph.with_changes(
        gap=_taken(graph.gap, gap, request), edges=replace(edges, lag=_taken(edges.lag, lag, request))
    )


def _taken(before: Ints, after: Ints, request: Request) -> Ints:
    """Give the times after; cautiously a part of what was taken out stays."""
    return after if not request.cautious else after + np.rint((before - after) * (1 - SURE)).astype(np.int64)


EDITS = (
    EditKind("no_launch_gaps", "no_launch_gaps", (), no_launch_gaps, modelled=True),
    EditKind("no_input_wait", "no_input_wait", (), no_input_wait, modelled=True),
    EditKind("no_pauses", "no_pauses", (), no_pauses, modelled=True),
)
