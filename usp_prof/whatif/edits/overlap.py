"""Overlap edit: each gradient bucket is reduced as soon as it is complete, not after backward.

1. In each step of a rank, get the gradient reductions (buckets) sorted by start, and the compute of the last backward.
   Gradients of all micro-batches are complete only there.
2. Move the buckets that started after the end of backward. The last one cannot overlap with anything and stays.
3. A moved bucket starts when the compute that completes it has ended, and after the bucket before it, because buckets
   share the link.
4. If several buckets overlap in the trace, each took longer because of the others. Alone, a bucket takes its fair
   share: two buckets from 0 to 4 ms take 2 ms each.
5. Backward no longer waits for any bucket, but the optimizer still does.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.rows import distinct, lookup, rows_by_code
from usp_prof.replay.backward import accumulated
from usp_prof.replay.graph import EdgeKind, Graph, NodeKind
from usp_prof.replay.insertion import with_edges
from usp_prof.replay.node_work import BACKWARD, FORWARD, NodeWork, work_of
from usp_prof.tables.table_set import TableSet
from usp_prof.whatif.edits.kind import WHERE, EditKind, Request
from usp_prof.whatif.edits.where import communication_of

_REDUCES = ("all_reduce", "reduce_scatter")


def sync_overlapped(graph: Graph, request: Request) -> Graph:
    """Overlap gradient reductions with backward, so that only the optimizer waits for them; keys: axis."""
    work, nodes = work_of(request.tables), graph.nodes
    is_bucket = communication_of(graph, request) & (nodes.step >= 0) & _reduces(graph, request)
    in_backward = np.zeros(len(nodes), dtype=bool)
    is_moved = np.zeros(len(nodes), dtype=bool)
    transfer = graph.transfer.copy()
    # New edges: what a moved bucket waits for, and the bucket.
    sources, targets = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for buckets, backward in _steps(graph, is_bucket, graph.spread(work.phase, missing=0)):
        in_backward[backward] = True
        is_late = nodes.start[buckets] >= nodes.end[backward[-1]]
        is_late[-1:] = False  # the last to be ready cannot overlap with anything
        if not is_late.any():
            continue
        is_moved[buckets[is_late]] = True
        before, following = buckets[:-1][is_late[:-1]], buckets[1:][is_late[:-1]]
        sources += [_completed_by(graph, request.tables, work, buckets, backward)[is_late], before]
        targets += [buckets[is_late], following]
        is_alone = is_late | np.append(False, is_late[:-1])
        shares = fair_shares(nodes.end[buckets] - graph.transfer[buckets], nodes.end[buckets])
        transfer[buckets[is_alone]] = shares[is_alone]
    if not in_backward.any():
        return graph

    edges = graph.edges
    backward_waits = is_bucket[edges.source] & (edges.kind == EdgeKind.WAIT) & in_backward[edges.target]
    if not is_moved.any() and not backward_waits.any():
        return graph
    old_begins = is_moved[edges.target] & np.isin(edges.kind, (EdgeKind.ISSUE, EdgeKind.LAUNCH, EdgeKind.WAIT))
    edges = edges.without(backward_waits | old_begins)
    source, target = np.concatenate(sources), np.concatenate(targets)
    edges = with_edges(edges, source, target, at_end=np.ones(len(target), dtype=bool), kind=EdgeKind.ISSUE)
    gap = np.where(is_moved, np.minimum(graph.gap, 0), graph.gap)
    return graph.with_changes(edges=edges, gap=gap, transfer=transfer)


def _steps(graph: Graph, is_bucket: Flags, phase: Ints) -> Iterator[tuple[Ints, Ints]]:
    """Yield for each step of a rank its buckets sorted by start, and the compute of its last backward, in order."""
    nodes = graph.nodes
    is_compute = (nodes.kind == NodeKind.COMPUTE) & (nodes.step >= 0)
    cell = nodes.rank * (int(nodes.step.max(initial=0)) + 1) + nodes.step  # one number per rank and step
    compute_rows, bucket_rows = np.flatnonzero(is_compute), np.flatnonzero(is_bucket)
    compute_of_cell = {code: compute_rows[rows] for code, rows in rows_by_code(cell[compute_rows]).items()}
    for code, rows in rows_by_code(cell[bucket_rows]).items():
        buckets = bucket_rows[rows]
        backward = _last_backward(graph, compute_of_cell.get(code, compute_rows[:0]), phase)
        if len(backward):
            yield buckets[np.argsort(nodes.start[buckets], kind="stable")], backward


def fair_shares(start: Ints, end: Ints) -> Ints:
    """Return the time of each transfer if overlapping transfers share the link equally at each moment.

    fair_shares([0, 2], [4, 4]) == [3, 1]
    """
    moments = distinct(np.concatenate([start, end]))
    # Number of active transfers between adjacent moments: those started minus those ended.
    begun = np.searchsorted(np.sort(start), moments[:-1], "right")
    ended = np.searchsorted(np.sort(end), moments[:-1], "right")
    share = np.diff(moments) / np.maximum(begun - ended, 1)
    passed = np.append(0.0, np.cumsum(share))
    at_start, at_end = passed[np.searchsorted(moments, start)], passed[np.searchsorted(moments, end)]
    return np.asarray(np.rint(at_end - at_start).astype(np.int64))


def _reduces(graph: Graph, request: Request) -> Flags:
    """Mark the nodes that reduce over ranks: all-reduces and reduce-scatters."""
    nodes = graph.nodes
    is_reducing = np.zeros(len(nodes), dtype=bool)
    if nodes.event is None:
        return is_reducing
    for rank in request.tables.ranks:
        parts, work = request.tables.columns("collectives", rank), request.tables.columns("activities", rank)
        part_of_work = work["collective"]  # -1 if the activity is not communication
        is_reduce = lookup(parts.matches("op", *_REDUCES), part_of_work, missing=False)
        rows = nodes.of_rank(rank)
        is_reducing[rows] = np.isin(nodes.event[rows], work["event"][(part_of_work >= 0) & is_reduce])
    return np.asarray(is_reducing & (nodes.kind == NodeKind.COMMUNICATION))


def _last_backward(graph: Graph, compute: Ints, phase: Ints) -> Ints:
    """Return the compute of a step's last backward in order, which is the backward after the last forward."""
    compute = compute[np.argsort(graph.nodes.start[compute], kind="stable")]
    forward = np.flatnonzero(phase[compute] == FORWARD)
    after_forward = compute[forward[-1] + 1 :] if len(forward) else compute
    return np.asarray(after_forward[phase[after_forward] == BACKWARD])


def _completed_by(graph: Graph, tables: TableSet, work: NodeWork, buckets: Ints, backward: Ints) -> Ints:
    """Return the compute that completes each bucket, from accumulated gradients or the progress of backward."""
    is_known = buckets < len(work.bytes)  # nodes added by an edit have no bytes
    size = np.where(is_known, work.bytes[np.where(is_known, buckets, 0)], 0)
    size = size if (size > 0).all() else np.ones_like(size)
    # Share of the gradients that is ready when each bucket is complete: 1/3, 2/3, 1 for three equal buckets.
    share = np.cumsum(size) / size.sum()
    issued = work.issued_ns[backward]
    rank, step = int(graph.nodes.rank[backward[0]]), int(graph.nodes.step[backward[0]])
    completed_ns = accumulated(tables, rank).completed(share, step, int(issued[0]))
    if len(completed_ns):
        place = np.searchsorted(np.maximum.accumulate(issued), completed_ns, side="right") - 1
    else:
        done = np.cumsum(graph.duration[backward])
        place = np.searchsorted(done, np.rint(done[-1] * share))
    return np.asarray(backward[np.clip(place, 0, len(backward) - 1)])


EDITS = (EditKind("sync_overlapped", "sync_overlapped,axis=dp", WHERE, sync_overlapped),)
