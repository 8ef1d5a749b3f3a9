"""Unexplained time: device idle time, and waits in communication, whose cause the graph does not contain.

Device work starts when the work before it on its stream, its launch, and everything else that it waits for are over. If
it starts later than that, the cause is not in the trace: another process on the same device, a wait that was not
recorded, or a clock error. Communication whose other side is unknown may have waited for a late rank. A replay keeps
these times, whatever an edit changes, so an answer that depends on them is uncertain.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from usp_prof.columns.arrays import Ints
from usp_prof.columns.rows import group_codes, per_code
from usp_prof.replay.build import graph_of
from usp_prof.replay.graph import NEVER, Graph, NodeKind
from usp_prof.tables.table_set import TableSet, memoized

USUAL_NS = 50_000
"""A shorter delay is the latency of a launch or of a switch between streams: on 20 recorded GPU runs, three quarters of
the launches that found an idle device started within this time."""
NOTABLE = 0.05
"""Unexplained time is reported, and included in errors, from this share of a rank's steps on."""


def unexplained_times(tables: TableSet) -> Ints:
    """Return for each node of the unedited graph in a step by how much it started later than the graph explains."""
    return np.where(graph_of(tables).nodes.step >= 0, unexplained_delays(tables), 0)


@memoized("unexplained delays")
def unexplained_delays(tables: TableSet) -> Ints:
    """Return the same for all nodes, also those outside of steps."""
    graph = graph_of(tables)
    nodes, edges = graph.nodes, graph.edges
    ready = np.where(nodes.first_of_lane, NEVER, np.roll(nodes.end, 1))
    np.maximum.at(ready, edges.target, np.where(edges.at_end, nodes.end[edges.source], nodes.start[edges.source]))
    # CPU ranks have no device, so their idle time is the host's own; work without any known need is not judged.
    counts = ~nodes.of_host & nodes.of_ranks_with(nodes.of_host) & (ready > NEVER)
    delay = np.where(counts, nodes.start - np.where(counts, ready, 0), 0)
    return np.where(delay > USUAL_NS, delay, 0)


@memoized("unexplained shares")
def unexplained_shares(tables: TableSet) -> dict[int, float]:
    """Return by rank the share of its steps that is unexplained, for ranks with at least `NOTABLE` of it."""
    graph, shares = graph_of(tables), {}
    late_ns = np.bincount(graph.nodes.rank, unexplained_times(tables), max(tables.ranks, default=0) + 1)
    for rank in tables.ranks:
        wall_ns = _wall_ns(tables, rank)
        if wall_ns and late_ns[rank] >= NOTABLE * wall_ns:
            shares[rank] = min(1.0, float(late_ns[rank] / wall_ns))
    return shares


@memoized("unmatched waits")
def unmatched_waits(tables: TableSet) -> Ints:
    """Return for each communication whose other side is unknown how much longer it takes than the shortest of its kind.

    Zero for all if no rank spends at least `NOTABLE` of its steps in such waits.
    """
    graph = graph_of(tables)
    nodes, waits = graph.nodes, np.zeros(len(graph.nodes), np.int64)
    rows = np.flatnonzero((nodes.kind == NodeKind.COMMUNICATION) & (nodes.call < 0) & (nodes.step >= 0))
    if not len(rows) or len(tables.ranks) < 2:
        return waits
    kind = group_codes(nodes.name[rows], nodes.axis[rows])
    shortest = per_code(kind, nodes.duration[rows], np.minimum, int(kind.max()) + 1)
    waits[rows] = nodes.duration[rows] - shortest[kind]
    wait_ns = np.bincount(nodes.rank, waits, max(tables.ranks) + 1)
    is_notable = any(wait_ns[rank] >= NOTABLE * _wall_ns(tables, rank) > 0 for rank in tables.ranks)
    return waits if is_notable else np.zeros_like(waits)


def _wall_ns(tables: TableSet, rank: int) -> int:
    steps = tables.columns("steps", rank)
    return int((steps["end_ns"] - steps["start_ns"]).sum())


def without_unmatched_waits(graph: Graph, tables: TableSet) -> Graph:
    """Return a graph of the run, edited or not, in which communication whose other side is unknown does not wait."""
    return graph.with_changes(duration=np.maximum(graph.duration - graph.spread(unmatched_waits(tables), missing=0), 0))


def without_unexplained(graph: Graph, tables: TableSet) -> Graph:
    """Return a graph of the run, edited or not, whose device work starts as soon as the graph explains."""
    return shortened_before(graph, unexplained_times(tables))


def as_little_as_peers(graph: Graph, tables: TableSet, ranks: tuple[int, ...]) -> Graph:
    """Return the graph with the unexplained time of the given ranks reduced to the median of the others, or of all."""
    late = unexplained_times(tables)
    late_ns = np.bincount(graph_of(tables).nodes.rank, late, max(tables.ranks) + 1)
    other_ranks = [rank for rank in tables.ranks if rank not in ranks] or list(tables.ranks)
    usual_ns = float(np.median(late_ns[other_ranks]))
    share = np.zeros(len(late_ns))
    for rank in ranks:
        share[rank] = max(0.0, 1 - usual_ns / late_ns[rank]) if late_ns[rank] else 0.0
    return shortened_before(graph, np.rint(late * share[graph_of(tables).nodes.rank]).astype(np.int64))


def shortened_before(graph: Graph, by: Ints) -> Graph:
    """Return a graph of the run, edited or not, with less time before each node: in its gap and its edges' lags."""
    by = graph.spread(by, missing=0)
    edges = graph.edges
    gap = np.where(graph.gap > 0, np.maximum(graph.gap - by, 0), graph.gap)
    lag = np.where(edges.lag > 0, np.maximum(edges.lag - by[edges.target], 0), edges.lag)
    return graph.with_changes(gap=gap, edges=replace(edges, lag=lag))
