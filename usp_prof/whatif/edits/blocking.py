"""How would the run be if the host were not held up? By waits for the device, by the allocator, by being slow."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.algebra.intervals import union
from usp_prof.model.errors import UsageError
from usp_prof.tables import clock
from usp_prof.whatif.edits.kind import EditKind, Request
from usp_prof.whatif.graph import EdgeKind, NodeKind
from usp_prof.whatif.sources import events_of, rows_of
from usp_prof.whatif.thought import lane_before, overlap

if TYPE_CHECKING:
    from usp_prof.tables.columns import Columns
    from usp_prof.tables.table_set import TableSet
    from usp_prof.whatif.graph import Flags, Graph, Ints

TAKES_MEMORY = re.compile(r"^(cuda|hip|cu)(Malloc|Free|MemAlloc|MemFree|MemCreate|MemMap|MemUnmap)(Async)?(_v\d)?$")
"""Calls that take or give back the device's memory, which the caching allocator makes when it has none left."""
PINNED_BYTES_PER_NS, COPY_NS = 20.0, 1_000
"""What a PCIe 4 link of 16 lanes moves from pinned memory, and what a copy takes however small it is."""
_COPY_OPS = ("aten::copy_", "aten::_to_copy", "aten::to")


def no_blocking(graph: Graph, request: Request) -> Graph:
    """Let the host go on instead of waiting for the device, but for one wait a step; of copies with `=copies`."""
    freed = blocks(graph, request.tables, copies_only=request.edit.value == "copies")
    edges = graph.edges
    return graph.with_changes(edges=edges.take(~((edges.kind == EdgeKind.SYNC) & freed[edges.target])))


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
    host = np.isin(graph.nodes.kind, (NodeKind.HOST, NodeKind.RETURN))
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
        size = np.append(kernels["bytes"], -1)[place]
        known = size >= 0
        pinned = COPY_NS + (size / rate).astype(np.int64)
        duration[rows] = np.where(known, np.minimum(duration[rows], pinned), duration[rows])
    return graph.with_changes(
        duration=duration, edges=edges.take(~((edges.kind == EdgeKind.SYNC) & freed[edges.target]))
    )


def pageable(graph: Graph) -> Flags:
    """Mark copies that Kineto says are of pageable memory."""
    named = np.array(["Pageable" in name for name in graph.names] + [False])[graph.nodes.name]
    return np.asarray(named & (graph.nodes.kind == NodeKind.COPY))


def host_as_peers(graph: Graph, request: Request) -> Graph:
    """Let a rank's host (the value) launch as fast as those of the other ranks do in the median."""
    found = host_slowness(graph)
    rank = int(request.edit.number())
    if rank not in found:
        raise UsageError(f"rank {rank} has no host to be compared with", hint=f"one of {sorted(found)}")
    ratio = max(1.0, found[rank])
    if request.cautious:
        ratio = 1 + (ratio - 1) * 0.9
    rows = _issuing(graph) & (graph.nodes.rank == rank)
    gap = np.where(rows & (graph.gap > 0), np.rint(graph.gap / ratio).astype(np.int64), graph.gap)
    return graph.with_changes(
        gap=gap, duration=np.where(rows, np.rint(graph.duration / ratio), graph.duration).astype(np.int64)
    )


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
        rows = rows[np.isin(graph.nodes.kind[rows], (NodeKind.HOST, NodeKind.RETURN))]
        covered = overlap(begin, end, before[rows], graph.nodes.start[rows])
        gap[rows] -= np.minimum(covered, np.maximum(gap[rows], 0))
    return graph.with_changes(gap=gap)


def allocating(launches: Columns) -> tuple[Ints, Ints]:
    """Give when a rank's host takes or gives back device memory, on its own clock."""
    codes, names = launches.codes("name")
    hits = np.array([TAKES_MEMORY.search(name) is not None for name in names] + [False])[codes]
    begin = launches["start_ns"][hits]
    order = np.argsort(begin, kind="stable")
    return begin[order], (begin + launches["dur_ns"][hits])[order]


def fused_optimizer(graph: Graph, request: Request) -> Graph:
    """Let the optimizer be one launch: its kernels follow each other, and the host issues them in no time."""
    nodes, inside = graph.nodes, optimizing(graph, request.tables)
    device = inside & (nodes.kind == NodeKind.COMPUTE)
    host = inside & np.isin(nodes.kind, (NodeKind.HOST, NodeKind.RETURN))
    first = _firsts(graph, device)
    kept = ~((graph.edges.kind == EdgeKind.LAUNCH) & (device & ~first)[graph.edges.target])
    loose = (host & ~_firsts(graph, host)) | (device & ~first)
    gap = np.where(loose, np.minimum(graph.gap, 0), graph.gap)
    duration = np.where(host & ~_firsts(graph, host), 0, graph.duration)
    changed = replace(graph, edges=graph.edges.take(kept))
    return changed.with_changes(gap=gap, duration=duration)


def optimizing(graph: Graph, tables: TableSet) -> Flags:
    """Mark what the optimizer's step issues: on the host inside its marks, on the device launched from there."""
    events, found = events_of(graph), np.zeros(len(graph.nodes), dtype=bool)
    for rank in tables.ranks:
        begin, end = optimizer_ranges(tables, rank)
        if not len(begin):
            continue
        launches = tables.columns("launches", rank)
        at, known = launches["start_ns"], launches["event"]
        inside = known[overlap(begin, end, at, at + 1) > 0]
        work = tables.columns("activities", rank)
        start = work["start_ns"]
        launched = np.isin(work["launch_event"], inside) & (work["launch_event"] >= 0)
        alone = (work["launch_event"] < 0) & (overlap(begin, end, start, start + 1) > 0)
        rows = graph.nodes.of_rank(rank)
        issued = np.isin(graph.nodes.kind[rows], (NodeKind.HOST, NodeKind.RETURN))
        by_host, by_device = np.isin(events[rows], inside), np.isin(events[rows], work["event"][launched | alone])
        found[rows] = np.where(issued, by_host, by_device)
    return found


def optimizer_ranges(tables: TableSet, rank: int) -> tuple[Ints, Ints]:
    """Give when a rank's host is inside the optimizer's step, on its own clock."""
    marks = tables.columns("annotations", rank)
    codes, names = marks.codes("name")
    hits = np.array([name.startswith(("Optimizer.step#", "train::optimizer")) for name in names] + [False])[codes]
    hits &= ~marks["on_device"]
    begin = marks["start_ns"][hits]
    order = np.argsort(begin, kind="stable")
    return begin[order], np.maximum.accumulate((begin + marks["dur_ns"][hits])[order]) if hits.any() else begin


def _firsts(graph: Graph, rows: Flags) -> Flags:
    """Mark the first of these nodes of each lane and step."""
    place = np.flatnonzero(rows)
    first = np.ones(len(place), dtype=bool)
    lane, step = graph.nodes.lane[place], graph.nodes.step[place]
    first[1:] = (lane[1:] != lane[:-1]) | (step[1:] != step[:-1])
    found = np.zeros(len(rows), dtype=bool)
    found[place[first]] = True
    return found


EDITS = (
    EditKind("no_blocking", "no_blocking=copies", (), no_blocking),
    EditKind("pinned_copies", "pinned_copies", (), pinned_copies, modelled=True),
    EditKind("host_as_peers", "host_as_peers=3", (), host_as_peers, modelled=True),
    EditKind("no_allocator_calls", "no_allocator_calls", (), no_allocator_calls),
    EditKind("fused_optimizer", "fused_optimizer", (), fused_optimizer),
)
