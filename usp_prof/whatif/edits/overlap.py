"""Overlap edit: each bucket of gradients is summed as soon as it is complete.

Buckets follow one another on the link. Where the trace has several under way at once, each took longer for the others:
it takes its fair share of that time when it runs alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.rows import lookup, rows_by_code
from usp_prof.replay.backward import accumulated
from usp_prof.replay.graph import EdgeKind, NodeKind
from usp_prof.replay.insertion import with_edges
from usp_prof.replay.node_work import BACKWARD, FORWARD, work_of
from usp_prof.whatif.edits.kind import EditKind, Request
from usp_prof.whatif.fitted_times import talk

if TYPE_CHECKING:
    from usp_prof.replay.graph import Graph, Ints
    from usp_prof.replay.node_work import Work
    from usp_prof.tables.table_set import TableSet

_REDUCES = ("all_reduce", "reduce_scatter")


def sync_overlapped(graph: Graph, request: Request) -> Graph:
    """Let each reduction of gradients begin in backward when its share is ready, and only the optimizer wait; axis."""
    work, nodes = work_of(request.tables), graph.nodes
    phase = np.append(work.phase, np.zeros(graph.added, np.int64))
    rows = talk(graph, request) & (nodes.step >= 0) & _reduces(graph, request)
    compute = (nodes.kind == NodeKind.COMPUTE) & (nodes.step >= 0)
    cell = nodes.rank * (int(nodes.step.max(initial=0)) + 1) + nodes.step
    reduces, computes = np.flatnonzero(rows), np.flatnonzero(compute)
    computed = {code: computes[each] for code, each in rows_by_code(cell[computes]).items()}
    moved, ready, before, behind = ([np.zeros(0, np.int64)] for _ in range(4))
    after, transfer = np.zeros(len(nodes), dtype=bool), graph.transfer.copy()
    for code, each in rows_by_code(cell[reduces]).items():
        mine = reduces[each]
        mine = mine[np.argsort(nodes.start[mine], kind="stable")]
        last = _last_backward(graph, computed.get(code, computes[:0]), phase)
        if not len(last):
            continue
        after[last] = True
        late = nodes.start[mine] >= nodes.end[last[-1]]
        late[-1:] = False  # the last to be ready has nothing to hide behind
        if not late.any():
            continue
        moved.append(mine[late])
        ready.append(_ready(graph, request.tables, work, mine, last)[late])
        before.append(mine[:-1][late[:-1]])
        behind.append(mine[1:][late[:-1]])
        queued = late | np.append(False, late[:-1])
        transfer[mine[queued]] = fair_shares(nodes.end[mine] - graph.transfer[mine], nodes.end[mine])[queued]
    if not after.any():
        return graph
    target, at, first, second = (np.concatenate(each) for each in (moved, ready, before, behind))
    parts = np.zeros(len(nodes), dtype=bool)
    parts[target] = True
    edges = graph.edges
    held = rows[edges.source] & (edges.kind == EdgeKind.WAIT) & after[edges.target]  # backward waits no more
    posts = parts[edges.target] & np.isin(edges.kind, (EdgeKind.ISSUE, EdgeKind.LAUNCH, EdgeKind.WAIT))
    edges = edges.take(~(held | posts))
    source, waits = np.append(at, first), np.append(target, second)
    edges = with_edges(edges, source, waits, at_end=np.ones(len(waits), dtype=bool), kind=EdgeKind.ISSUE)
    gap = np.where(parts, np.minimum(graph.gap, 0), graph.gap)
    return graph.with_changes(edges=edges, gap=gap, transfer=transfer, rewired=True)


def fair_shares(start: Ints, end: Ints) -> Ints:
    """Divide what several took at the same time: each moment counts for each by how many were under way."""
    moments = np.unique(np.concatenate([start, end]))
    under_way = np.searchsorted(np.sort(start), moments[:-1], "right") - np.searchsorted(
        np.sort(end), moments[:-1], "right"
    )
    passed = np.append(0.0, np.cumsum(np.diff(moments) / np.maximum(under_way, 1)))
    place = [np.searchsorted(moments, each) for each in (start, end)]
    return np.asarray(np.rint(passed[place[1]] - passed[place[0]]).astype(np.int64))


def _reduces(graph: Graph, request: Request) -> np.ndarray:
    found = np.zeros(len(graph.nodes), dtype=bool)
    for rank in request.tables.ranks:
        parts, work = request.tables.columns("collectives", rank), request.tables.columns("activities", rank)
        row = work["collective"]
        hits = (row >= 0) & lookup(parts.matches("op", *_REDUCES), row, missing=False)
        if graph.nodes.event is not None:
            mine = graph.nodes.of_rank(rank)
            found[mine] = np.isin(graph.nodes.event[mine], work["event"][hits])
    return np.asarray(found & (graph.nodes.kind == NodeKind.COMMUNICATION))


def _last_backward(graph: Graph, compute: Ints, phase: Ints) -> Ints:
    """Give the compute of a step's last backward, in order: what lies behind the last forward."""
    compute = compute[np.argsort(graph.nodes.start[compute], kind="stable")]
    forward = np.flatnonzero(phase[compute] == FORWARD)
    behind = compute[forward[-1] + 1 :] if len(forward) else compute
    return np.asarray(behind[phase[behind] == BACKWARD])


def _ready(graph: Graph, tables: TableSet, work: Work, mine: Ints, last: Ints) -> Ints:
    """Give for each bucket the compute that completes it: by accumulated gradients, else by backward's course."""
    known = mine < len(work.bytes)  # what an edit put in has no bytes
    size = np.where(known, work.bytes[np.where(known, mine, 0)], 0)
    size = size if (size > 0).all() else np.ones_like(size)
    share = np.cumsum(size) / size.sum()
    issued = work.issued_ns[last]
    nodes = graph.nodes
    found = accumulated(tables, int(nodes.rank[last[0]])).completed(share, int(nodes.step[last[0]]), int(issued[0]))
    if len(found):
        place = np.searchsorted(np.maximum.accumulate(issued), found, side="right") - 1
    else:
        done = np.cumsum(graph.duration[last])
        place = np.searchsorted(done, np.rint(done[-1] * share))
    return np.asarray(last[np.clip(place, 0, len(last) - 1)])


EDITS = (EditKind("sync_overlapped", "sync_overlapped,axis=dp", ("axis", "op"), sync_overlapped),)
