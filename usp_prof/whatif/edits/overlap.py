"""How would the run be if gradients were summed while backward still runs? Each bucket as soon as it is complete."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from usp_prof.algebra.order import rows_by_code
from usp_prof.whatif.edits.kind import EditKind, Request
from usp_prof.whatif.graph import EdgeKind, NodeKind
from usp_prof.whatif.insertion import with_edges
from usp_prof.whatif.network import talk
from usp_prof.whatif.work import BACKWARD, FORWARD, work_of

if TYPE_CHECKING:
    from usp_prof.whatif.graph import Graph, Ints

_REDUCES = ("all_reduce", "reduce_scatter")


def sync_overlapped(graph: Graph, request: Request) -> Graph:
    """Let each reduction of gradients begin in backward when its share is ready, and only the optimizer wait; axis."""
    work, nodes = work_of(request.tables), graph.nodes
    phase = np.append(work.phase, np.zeros(graph.added, np.int64))
    rows = talk(graph, request) & (nodes.step >= 0) & _reduces(graph, request)
    compute = nodes.kind == NodeKind.COMPUTE
    moved, source, after = [], [], np.zeros(len(nodes), dtype=bool)
    cell = nodes.rank * (int(nodes.step.max(initial=0)) + 1) + nodes.step
    reduces, computes = (np.flatnonzero(each & (nodes.step >= 0)) for each in (rows, compute))
    computed = {code: computes[each] for code, each in rows_by_code(cell[computes]).items()}
    for code, each in rows_by_code(cell[reduces]).items():
        mine = reduces[each]
        mine = mine[np.argsort(nodes.start[mine], kind="stable")]
        last = _last_backward(graph, computed.get(code, computes[:0]), phase)
        if not len(last):
            continue
        after[last] = True
        ready = _ready(graph, last, len(mine))
        late = nodes.start[mine] > nodes.end[last[-1]]
        late[-1:] = False  # the last to be ready has nothing to hide behind
        moved.append(mine[late])
        source.append(ready[late])
    if not moved:
        return graph
    target, at = np.concatenate(moved), np.concatenate(source)
    parts = np.zeros(len(nodes), dtype=bool)
    parts[target] = True
    edges = graph.edges
    held = rows[edges.source] & (edges.kind == EdgeKind.WAIT) & after[edges.target]  # backward waits no more
    posts = parts[edges.target] & np.isin(edges.kind, (EdgeKind.ISSUE, EdgeKind.LAUNCH, EdgeKind.WAIT))
    edges = edges.take(~(held | posts))
    edges = with_edges(edges, at, target, at_end=np.ones(len(at), dtype=bool), kind=EdgeKind.ISSUE)
    gap = np.where(parts, np.minimum(graph.gap, 0), graph.gap)
    return graph.with_changes(edges=edges, gap=gap, rewired=True)


def _reduces(graph: Graph, request: Request) -> np.ndarray:
    found = np.zeros(len(graph.nodes), dtype=bool)
    for rank in request.tables.ranks:
        parts, work = request.tables.columns("collectives", rank), request.tables.columns("activities", rank)
        row = work["collective"]
        hits = (row >= 0) & np.append(parts.matches("op", *_REDUCES), False)[row]
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


def _ready(graph: Graph, last: Ints, count: int) -> Ints:
    """Give for each of so many equal buckets the compute that completes it."""
    done = np.cumsum(graph.duration[last])
    wanted = done[-1] * np.arange(1, count + 1) / count
    return np.asarray(last[np.minimum(np.searchsorted(done, wanted), len(last) - 1)])


EDITS = (EditKind("sync_overlapped", "sync_overlapped,axis=dp", ("axis", "op"), sync_overlapped),)
