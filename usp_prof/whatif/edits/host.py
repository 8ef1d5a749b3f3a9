"""Host edits: no launch gaps or pauses, no waits for data, the device or the allocator, a host as fast as its peers.

The graph stores host time in three places, and an edit removes it from each one that applies:

    gap       think time since the previous node of the same thread
    duration  the call itself, or the compute on a CPU trace
    lag       of an edge: think time that started only when a wait had ended (see `holds_thought`)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.intervals import union
from usp_prof.columns.rows import last_of_run, lookup, rows_of
from usp_prof.model.errors import UsageError
from usp_prof.replay.graph import NEVER, EdgeKind, Graph, NodeKind, events_of
from usp_prof.replay.host_gaps import (
    TAKES_MEMORY,
    allocating,
    holds_thought,
    hosts_seen,
    lane_before,
    loading,
    loads_data,
    overlap,
    thinks,
)
from usp_prof.replay.pauses import PausePlace, long_thinking, pauses
from usp_prof.replay.peers import peer_groups
from usp_prof.replay.rank_clocks import rank_clocks
from usp_prof.tables.table_set import TableSet
from usp_prof.whatif.edits.kind import EditKind, Request, no_peers
from usp_prof.whatif.host_times import with_repaired_hosts

GRAPH_GAP_NS = 1_000
"""Gap between kernels of a CUDA graph, about a microsecond."""
UNCAPTURED = 0.5
"""Share of launch and think time that remains in the cautious model: fewer and larger kernels, as from a compiler,
instead of CUDA graphs."""
SURE = 0.9
"""Share of a pause or of data loading that the cautious model removes."""
PINNED_BYTES_PER_NS = 20.0
"""Bandwidth of a PCIe 4.0 x16 link from pinned memory."""
COPY_NS = 1_000
"""Minimum duration of a copy."""
_COPY_OPS = ("aten::copy_", "aten::_to_copy", "aten::to")
_READS = ("aten::item", "aten::_local_scalar_dense")
_VALUE_BYTES = 4_096
"""Maximum size of a collective whose values the host reads: losses, norms, counts."""


def no_launch_gaps(graph: Graph, request: Request) -> Graph:
    """Run the device without waiting for launches, as with CUDA graphs; waits and pauses of the host stay.

    Host think time before launches disappears too, because otherwise a host that is behind would still delay each
    step. The cautious estimate assumes that half of the launch time remains.
    """
    nodes, edges = graph.nodes, graph.edges
    on_device = np.isin(nodes.kind, (NodeKind.COMPUTE, NodeKind.COPY, NodeKind.COMMUNICATION))
    is_launch = edges.kind == EdgeKind.LAUNCH
    # The first work of a stream, and work launched after a wait, data loading or a pause, starts a CUDA graph.
    begins_graph = (
        _waits_before(graph, request.tables)[edges.source] | ~(on_device & ~nodes.first_of_lane)[edges.target]
    )
    captured = is_launch & ~begins_graph
    # Host calls cost nothing if all of their launches are captured.
    only_launches = np.zeros(len(nodes), dtype=bool)
    only_launches[edges.source[captured]] = True
    only_launches[edges.source[is_launch & ~captured]] = False
    share = UNCAPTURED if request.cautious else 0.0
    gap = np.where(only_launches & (graph.gap > 0), (share * graph.gap).astype(np.int64), graph.gap)
    duration = np.where(only_launches, (share * graph.duration).astype(np.int64), graph.duration)
    if request.cautious:
        return graph.with_changes(gap=gap, duration=duration)
    gap = np.where(on_device, np.minimum(gap, GRAPH_GAP_NS), gap)
    return graph.with_changes(gap=gap, duration=duration, edges=edges.without(captured))


def _waits_before(graph: Graph, tables: TableSet) -> Flags:
    """Mark the nodes before which the host had paused, loaded data, or waited for the device."""
    nodes, edges = graph.nodes, graph.edges
    waits = np.zeros(len(nodes), dtype=bool)
    waits[long_thinking(graph, tables)] = True
    waits[pauses(graph, tables).node] = True
    waits[edges.target[edges.kind == EdgeKind.SYNC]] = True
    after_return = np.roll(nodes.kind == NodeKind.RETURN, 1)
    return np.asarray(waits | loads_data(graph, tables) | after_return)


def no_input_wait(graph: Graph, request: Request) -> Graph:
    """Remove the host's time in the data loader: the next batch is always ready; keys: rank."""
    nodes, edges = graph.nodes, graph.edges
    gap, duration, lag = graph.gap.copy(), graph.duration.copy(), edges.lag.copy()
    earliest = graph.earliest.copy()
    clocks, before, thinking = rank_clocks(request.tables), lane_before(graph), thinks(graph)
    holds_late = thinking[edges.target] & (edges.kind != EdgeKind.LAUNCH) & (lag > 0)
    for rank in request.ranks_of_key():
        begin, end = (clocks.align_host(rank, when) for when in loading(request.tables, rank))
        if not len(begin):
            continue
        rows = nodes.of_rank(rank)
        rows = rows[thinking[rows]]
        # The first node of the rank waits for the data loading before it.
        opens = rows[nodes.first_of_lane[rows] & (earliest[rows] > NEVER)]
        earliest[opens] -= overlap(begin, end, np.full(len(opens), begin[0]), nodes.start[opens])
        # Data loading within the think time before a node, within the node, and within an edge's lag.
        covered = overlap(begin, end, before[rows], nodes.start[rows])
        gap[rows] -= np.minimum(covered, np.maximum(gap[rows], 0))
        covered = overlap(begin, end, nodes.start[rows], nodes.end[rows])
        duration[rows] -= np.minimum(covered, duration[rows])
        late = np.flatnonzero(holds_late & (nodes.rank[edges.target] == rank))
        until = nodes.start[edges.target[late]]
        lag[late] -= np.minimum(overlap(begin, end, until - lag[late], until), lag[late])
    return graph.with_changes(
        earliest=_removed(graph.earliest, earliest, request),
        gap=_removed(graph.gap, gap, request),
        duration=_removed(graph.duration, duration, request),
        edges=replace(edges, lag=_removed(edges.lag, lag, request)),
    )


def no_pauses(graph: Graph, request: Request) -> Graph:
    """Remove pauses of the host, such as garbage collection: gaps and launches far longer than usual.

    Keys: rank.
    """
    nodes, edges = graph.nodes, graph.edges
    of_ranks = pauses(graph, request.tables).of_ranks(graph, request.ranks_of_key())
    before, within = of_ranks.by_node(graph, PausePlace.BEFORE_CALL), of_ranks.by_node(graph, PausePlace.WITHIN_CALL)
    of_thought = np.where(holds_thought(edges), before[edges.target], 0)
    lag = edges.lag - np.minimum(of_thought, np.maximum(edges.lag, 0))
    gap = graph.gap - np.minimum(before, np.maximum(graph.gap, 0))
    duration = graph.duration - np.minimum(within, graph.duration)
    # All threads of a host that starts earlier do.
    late_by = np.zeros(int(nodes.rank.max(initial=0)) + 1, np.int64)
    np.maximum.at(late_by, nodes.rank, of_ranks.by_node(graph, PausePlace.BEFORE_FIRST_CALL))
    opens = nodes.of_host & nodes.first_of_lane & (graph.earliest > NEVER)
    earliest = np.where(opens, graph.earliest - late_by[nodes.rank], graph.earliest)
    return graph.with_changes(
        earliest=_removed(graph.earliest, earliest, request),
        gap=_removed(graph.gap, gap, request),
        duration=_removed(graph.duration, duration, request),
        edges=replace(edges, lag=_removed(edges.lag, lag, request)),
    )


def _removed(before: Ints, after: Ints, request: Request) -> Ints:
    """Return the reduced times; in the cautious model, a part of the reduction is undone."""
    return after if not request.cautious else after + np.rint((before - after) * (1 - SURE)).astype(np.int64)


def no_blocking(graph: Graph, request: Request) -> Graph:
    """Remove the host's waits for the device except one read per step; with `=copies`, only waits for copies.

    Without a device, remove the waits for values that all ranks compute together.
    """
    copies_only = request.edit.value == "copies"
    edges = graph.edges
    is_dropped = _sync_edges(graph, blocks(graph, request.tables, copies_only=copies_only))
    if not copies_only:
        is_dropped |= (edges.kind == EdgeKind.WAIT) & read_values(graph, request.tables)[edges.source]
    return graph.with_changes(edges=edges.without(is_dropped))


def _sync_edges(graph: Graph, freed: Flags) -> Flags:
    """Mark the edges over which the freed returns waited for the device."""
    return np.asarray((graph.edges.kind == EdgeKind.SYNC) & freed[graph.edges.target])


def blocks(graph: Graph, tables: TableSet, *, copies_only: bool) -> Flags:
    """Mark the returns from calls that wait for the device, or only those from copies.

    The last wait of each rank's step in which the host may read a value is not marked, because the loss must be read;
    a plain sync reads nothing. Copies are always marked, and calls that free device memory never.
    """
    nodes = graph.nodes
    is_return = np.zeros(len(nodes), dtype=bool)
    is_wait = (nodes.kind == NodeKind.RETURN) & ~_in_allocator(graph, tables, tables.ranks)
    returns = np.flatnonzero(is_wait & (nodes.step >= 0))
    if not len(returns):
        return is_return
    if copies_only:
        is_return[returns] = True
        return is_return & _copying(graph, tables, *_COPY_OPS)
    is_return[returns] = True
    reads = returns[_copying(graph, tables, *_COPY_OPS, *_READS)[returns]]
    is_return[reads[last_of_run(nodes.rank[reads], nodes.step[reads])]] = False
    return is_return


def _copying(graph: Graph, tables: TableSet, *ops_that_copy: str) -> Flags:
    """Mark the host calls that copy, or that wait for a copy inside one of these ops, which launched it."""
    events, of_host = events_of(graph), graph.nodes.of_host
    is_copying = np.zeros(len(graph.nodes), dtype=bool)
    for rank in tables.ranks:
        launches, ops = tables.columns("launches", rank), tables.columns("ops", rank)
        is_copy_op = ops.matches("name", *ops_that_copy)
        begin, end = ops["start_ns"][is_copy_op], (ops["start_ns"] + ops["dur_ns"])[is_copy_op]
        is_copy = launches.matches("kind", "memcpy")
        waits = np.flatnonzero(launches.matches("kind", "sync"))
        is_copy[waits] = union(begin, end).holds(launches["start_ns"][waits])
        rows = graph.nodes.of_rank(rank)
        rows = rows[of_host[rows]]
        is_copying[rows] = np.isin(events[rows], launches["event"][is_copy])
    return is_copying


def read_values(graph: Graph, tables: TableSet) -> Flags:
    """Mark small collectives of ranks without a device that the host reads at once, except the last of each step.

    After posting such a collective, the next op of the host is the read (`.item()`), so the host waits in between.
    """
    nodes, events = graph.nodes, events_of(graph)
    is_read = np.zeros(len(nodes), dtype=bool)
    for rank in tables.ranks:
        of_rank = nodes.of_rank(rank)
        ops, parts = tables.columns("ops", rank), tables.columns("collectives", rank)
        if not len(ops) or not len(parts) or nodes.of_host[of_rank].any():
            continue
        # By collective: rows of the op that posted it and of the next op; -1 if there is none.
        post = rows_of(ops["event"], parts["op_event"])
        post_ends = lookup(ops["start_ns"] + ops["dur_ns"], post, missing=0)
        by_start = np.argsort(ops["start_ns"], kind="stable")
        place = np.searchsorted(ops["start_ns"][by_start], post_ends)
        following = lookup(by_start, np.where(place < len(ops), place, -1), missing=-1)

        is_followed_by_read = lookup(ops.matches("name", *_READS), following, missing=False)
        is_value = (parts["in_bytes"] > 0) & (parts["in_bytes"] <= _VALUE_BYTES)
        reads = np.flatnonzero((post >= 0) & is_followed_by_read & is_value & (parts["step"] >= 0))
        reads = reads[np.lexsort((parts["start_ns"][reads], parts["step"][reads]))]
        # The last read of each step stays, because the loss must be read.
        is_last = last_of_run(parts["step"][reads])
        communicates = of_rank[nodes.kind[of_rank] == NodeKind.COMMUNICATION]
        is_read[communicates] = np.isin(events[communicates], parts["event"][reads[~is_last]])
    return is_read


def pinned_copies(graph: Graph, request: Request) -> Graph:
    """Use pinned memory for copies: PCIe 4 speed, and the host does not wait."""
    bytes_per_ns = PINNED_BYTES_PER_NS / (2 if request.cautious else 1)
    events, is_pageable = events_of(graph), pageable(graph)
    duration = graph.duration.copy()
    for rank in request.tables.ranks:
        kernels = request.tables.columns("kernels", rank)
        rows = graph.nodes.of_rank(rank)
        rows = rows[is_pageable[rows]]
        size = lookup(kernels["bytes"], rows_of(kernels["event"], events[rows]), missing=-1)  # -1: not recorded
        pinned = COPY_NS + (size / bytes_per_ns).astype(np.int64)
        duration[rows] = np.where(size >= 0, np.minimum(duration[rows], pinned), duration[rows])
    is_dropped = _sync_edges(graph, blocks(graph, request.tables, copies_only=True))
    return graph.with_changes(duration=duration, edges=graph.edges.take(~is_dropped))


def pageable(graph: Graph) -> Flags:
    """Mark copies of pageable memory, according to their names."""
    is_pageable = lookup(["Pageable" in name for name in graph.names], graph.nodes.name, missing=False)
    return np.asarray(is_pageable & (graph.nodes.kind == NodeKind.COPY))


def host_as_peers(graph: Graph, request: Request) -> Graph:
    """Make a rank's host as fast as the median of its peers: think time, loading, pauses, launches, number of waits."""
    seen, ranks = hosts_seen(graph, request.tables), request.ranks()
    for rank in ranks:
        if not seen.get(rank):
            hint = f"one of {sorted(candidate for candidate, is_seen in seen.items() if is_seen)}"
            raise UsageError(f"the host of rank {rank} was not recorded or has no peers", hint=hint)
    with_peers = {rank for group in peer_groups(request.tables, graph) if len(group) > 1 for rank in group}
    for rank in ranks:
        if rank not in with_peers:
            raise no_peers(rank, with_peers)
    return with_repaired_hosts(graph, request.tables, ranks)


def no_allocator_calls(graph: Graph, request: Request) -> Graph:
    """Remove the host's time for allocating and freeing device memory, including waits for the device; keys: rank."""
    gap = graph.gap.copy()
    clocks, before = rank_clocks(request.tables), lane_before(graph)
    for rank in request.ranks_of_key():
        begin, end = (clocks.align_host(rank, when) for when in allocating(request.tables.columns("launches", rank)))
        rows = graph.nodes.of_rank(rank)
        rows = rows[graph.nodes.of_host[rows]]
        covered = overlap(begin, end, before[rows], graph.nodes.start[rows])
        gap[rows] -= np.minimum(covered, np.maximum(gap[rows], 0))
    freed = _in_allocator(graph, request.tables, request.ranks_of_key())
    return graph.with_changes(gap=gap, edges=graph.edges.without(_sync_edges(graph, freed)))


def _in_allocator(graph: Graph, tables: TableSet, ranks: Iterable[int]) -> Flags:
    """Mark the host's nodes of the ranks' calls that allocate or free device memory."""
    events, is_in_allocator = events_of(graph), np.zeros(len(graph.nodes), dtype=bool)
    for rank in ranks:
        launches = tables.columns("launches", rank)
        rows = graph.nodes.of_rank(rank)
        rows = rows[graph.nodes.of_host[rows]]
        calls = launches["event"][launches.satisfies("name", TAKES_MEMORY.search)]
        is_in_allocator[rows] = np.isin(events[rows], calls)
    return is_in_allocator


EDITS = (
    EditKind("no_launch_gaps", "no_launch_gaps", (), no_launch_gaps, modelled=True),
    EditKind("no_input_wait", "no_input_wait", ("rank",), no_input_wait, modelled=True),
    EditKind("no_pauses", "no_pauses", ("rank",), no_pauses, modelled=True),
)
BLOCKING_EDITS = (
    EditKind("no_blocking", "no_blocking=copies", (), no_blocking),
    EditKind("pinned_copies", "pinned_copies", (), pinned_copies, modelled=True),
    EditKind("host_as_peers", "host_as_peers=3", (), host_as_peers),
    EditKind("no_allocator_calls", "no_allocator_calls", ("rank",), no_allocator_calls),
)
