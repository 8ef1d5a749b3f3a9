"""Blocking edits: the host is not held up by waits for the device, the allocator or copies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.intervals import union
from usp_prof.columns.rows import lookup, rows_of
from usp_prof.model.errors import UsageError
from usp_prof.replay.graph import EdgeKind, NodeKind, events_of
from usp_prof.replay.host_gaps import allocating, hosts_seen, lane_before, overlap
from usp_prof.tables import clock
from usp_prof.whatif.edits.kind import EditKind, Request
from usp_prof.whatif.host_times import of_others, with_usual_hosts

if TYPE_CHECKING:
    from usp_prof.replay.graph import Flags, Graph
    from usp_prof.tables.table_set import TableSet

PINNED_BYTES_PER_NS, COPY_NS = 20.0, 1_000
"""What a PCIe 4 link of 16 lanes moves from pinned memory, and what a copy takes however small it is."""
_COPY_OPS = ("aten::copy_", "aten::_to_copy", "aten::to")
_READS = ("aten::item", "aten::_local_scalar_dense")
_VALUE_BYTES = 4_096
"""A collective that is read on the host carries a few values: losses, norms, counts."""


def no_blocking(graph: Graph, request: Request) -> Graph:
    """Let the host go on instead of waiting for the device, but for one wait a step; of copies with `=copies`.

    Without a device: instead of waiting for values of all ranks.
    """
    copies_only = request.edit.value == "copies"
    freed, edges = blocks(graph, request.tables, copies_only=copies_only), graph.edges
    gone = (edges.kind == EdgeKind.SYNC) & freed[edges.target]
    if not copies_only:
        gone |= (edges.kind == EdgeKind.WAIT) & read_values(graph, request.tables)[edges.source]
    return graph.with_changes(edges=edges.take(~gone))


def read_values(graph: Graph, tables: TableSet) -> Flags:
    """Mark the small collectives of ranks without a device that the host reads at once; not the last of each step.

    The next op that the host runs after it has posted one is the read (`.item()`): until then it stands still.
    """
    nodes, events = graph.nodes, events_of(graph)
    found = np.zeros(len(nodes), dtype=bool)
    for rank in tables.ranks:
        mine = nodes.of_rank(rank)
        ops, parts = tables.columns("ops", rank), tables.columns("collectives", rank)
        if not len(ops) or not len(parts) or nodes.of_host[mine].any():
            continue
        by_start = np.argsort(ops["start_ns"], kind="stable")
        posted = rows_of(ops["event"], parts["op_event"])
        post_ends = lookup(ops["start_ns"] + ops["dur_ns"], posted, missing=0)
        place = np.searchsorted(ops["start_ns"][by_start], post_ends)
        following = lookup(by_start, np.where(place < len(ops), place, -1), missing=-1)
        is_read = lookup(ops.matches("name", *_READS), following, missing=False)
        is_value = (parts["in_bytes"] > 0) & (parts["in_bytes"] <= _VALUE_BYTES)
        reads = np.flatnonzero((posted >= 0) & is_read & is_value & (parts["step"] >= 0))
        reads = reads[np.lexsort((parts["start_ns"][reads], parts["step"][reads]))]
        # The last of each step stays: a loss has to be read some time.
        is_last = np.append(np.diff(parts["step"][reads]) != 0, True)[: len(reads)]
        talks = mine[nodes.kind[mine] == NodeKind.COMMUNICATION]
        found[talks] = np.isin(events[talks], parts["event"][reads[~is_last]])
    return found


def blocks(graph: Graph, tables: TableSet, *, copies_only: bool) -> Flags:
    """Mark the returns from calls that wait for the device; the last of each rank's step is none (a loss is read)."""
    nodes = graph.nodes
    back = np.flatnonzero((nodes.kind == NodeKind.RETURN) & (nodes.step >= 0))
    found = np.zeros(len(nodes), dtype=bool)
    if not len(back):
        return found
    last = np.ones(len(back), dtype=bool)
    last[:-1] = (nodes.rank[back][1:] != nodes.rank[back][:-1]) | (nodes.step[back][1:] != nodes.step[back][:-1])
    if copies_only:
        last &= ~_copying(graph, tables)[back]
    found[back[~last]] = True
    return found & _copying(graph, tables) if copies_only else found


def _copying(graph: Graph, tables: TableSet) -> Flags:
    """Mark the host's calls that copy, or wait for a copy inside the op that made it."""
    events, found = events_of(graph), np.zeros(len(graph.nodes), dtype=bool)
    host = graph.nodes.of_host
    for rank in tables.ranks:
        launches = tables.columns("launches", rank)
        mine = graph.nodes.of_rank(rank)
        rows = mine[host[mine]]
        ops = tables.columns("ops", rank)
        copies = ops.matches("name", *_COPY_OPS)
        begin, end = ops["start_ns"][copies], (ops["start_ns"] + ops["dur_ns"])[copies]
        calls, waits = launches.matches("kind", "memcpy"), np.flatnonzero(launches.matches("kind", "sync"))
        calls[waits] = union(begin, end).holds(launches["start_ns"][waits])
        found[rows] = np.isin(events[rows], launches["event"][calls])
    return found


def pinned_copies(graph: Graph, request: Request) -> Graph:
    """Let copies come from pinned memory: as fast as PCIe 4 moves them, and the host goes on at once."""
    freed = blocks(graph, request.tables, copies_only=True)
    edges, rate = graph.edges, PINNED_BYTES_PER_NS / (2 if request.cautious else 1)
    duration, events, copied = graph.duration.copy(), events_of(graph), pageable(graph)
    for rank in request.tables.ranks:
        kernels = request.tables.columns("kernels", rank)
        mine = graph.nodes.of_rank(rank)
        rows = mine[copied[mine]]
        place = rows_of(kernels["event"], events[rows])
        size = lookup(kernels["bytes"], place, missing=-1)
        known = size >= 0
        pinned = COPY_NS + (size / rate).astype(np.int64)
        duration[rows] = np.where(known, np.minimum(duration[rows], pinned), duration[rows])
    return graph.with_changes(
        duration=duration, edges=edges.take(~((edges.kind == EdgeKind.SYNC) & freed[edges.target]))
    )


def pageable(graph: Graph) -> Flags:
    """Mark copies that Kineto says are of pageable memory."""
    named = lookup(["Pageable" in name for name in graph.names], graph.nodes.name, missing=False)
    return np.asarray(named & (graph.nodes.kind == NodeKind.COPY))


def host_as_peers(graph: Graph, request: Request) -> Graph:
    """Let a rank's host (the value) think, load, pause and launch as long as its peers' hosts do in the median."""
    seen, rank = hosts_seen(graph, request.tables), int(request.edit.number())
    if not seen.get(rank):
        hint = f"one of {sorted(each for each, known in seen.items() if known)}"
        raise UsageError(f"rank {rank} has no host to be compared with", hint=hint)
    return with_usual_hosts(graph, request.tables, [rank], of_others)


def host_slowness(graph: Graph) -> dict[int, float]:
    """Compare the hosts: time between their launches (the median of each) over the median of the other ranks'."""
    rows = _issuing(graph)
    usual = {}
    for rank in np.unique(graph.nodes.rank[rows]).tolist():
        mine = graph.nodes.of_rank(rank)
        mine = mine[rows[mine]]
        times = np.maximum(graph.gap[mine], 0) + graph.duration[mine]
        if len(times) > 1:
            usual[rank] = float(np.median(times))
    found = {}
    for rank, own in usual.items():
        others = [time for other, time in usual.items() if other != rank]
        if others and np.median(others) > 0:
            found[rank] = own / float(np.median(others))
    return found


def _issuing(graph: Graph) -> Flags:
    return np.asarray(graph.nodes.kind == NodeKind.HOST)


def no_allocator_calls(graph: Graph, request: Request) -> Graph:
    """Let the allocator hold what it needs: the host spends no time on taking or giving back device memory."""
    gap = graph.gap.copy()
    clocks, before = clock.of(request.tables), lane_before(graph)
    for rank in request.tables.ranks:
        begin, end = (clocks.align(rank, when) for when in allocating(request.tables.columns("launches", rank)))
        rows = graph.nodes.of_rank(rank)
        rows = rows[graph.nodes.of_host[rows]]
        covered = overlap(begin, end, before[rows], graph.nodes.start[rows])
        gap[rows] -= np.minimum(covered, np.maximum(gap[rows], 0))
    return graph.with_changes(gap=gap)


EDITS = (
    EditKind("no_blocking", "no_blocking=copies", (), no_blocking),
    EditKind("pinned_copies", "pinned_copies", (), pinned_copies, modelled=True),
    EditKind("host_as_peers", "host_as_peers=3", (), host_as_peers),
    EditKind("no_allocator_calls", "no_allocator_calls", (), no_allocator_calls),
)
