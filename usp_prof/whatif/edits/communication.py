"""Communication edits: faster, hidden, gone, in fewer messages, or as on the peers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.rows import group_codes
from usp_prof.replay.graph import EdgeKind
from usp_prof.replay.node_work import OPTIMIZER, work_of
from usp_prof.replay.peers import as_peers
from usp_prof.whatif.edits.compute import scaled
from usp_prof.whatif.edits.kind import EditKind, Request
from usp_prof.whatif.network import network_of, talk

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from usp_prof.replay.graph import Flags, Graph, Ints

    Floats = NDArray[np.float64]


def comm_faster(graph: Graph, request: Request) -> Graph:
    """Let transfers take 1/value of their time; keys: axis, op. Waiting for late members stays."""
    rows, factor = talk(graph, request), request.positive()
    return graph.with_changes(
        duration=scaled(graph.duration, rows & ~graph.tied, factor),
        transfer=scaled(graph.transfer, rows & graph.tied, factor),
    )


def link_as_peers(graph: Graph, request: Request) -> Graph:
    """Let a group's transfers (or those of `all` slower groups) be as fast as other groups' of the same operation."""
    return graph.with_changes(transfer=as_peers(graph, request.tables, request.edit.value))


def comm_hidden(graph: Graph, request: Request) -> Graph:
    """Let only the optimizer and the next step wait for communication; keys: axis, op. What is left stays exposed."""
    rows, edges = talk(graph, request), graph.edges
    stepping = np.append(work_of(request.tables).phase == OPTIMIZER, np.zeros(graph.added, dtype=bool))
    gone = (edges.kind == EdgeKind.WAIT) & rows[edges.source] & ~stepping[edges.target]
    return graph.with_changes(edges=edges.take(~gone))


def comm_removed(graph: Graph, request: Request) -> Graph:
    """Take communication out: no transfer, no waiting for each other; keys: axis, op."""
    rows = talk(graph, request)
    return graph.with_changes(duration=np.where(rows, 0, graph.duration), tied=graph.tied & ~rows)


def bucketed(graph: Graph, request: Request) -> Graph:
    """Put small collectives (below value bytes) into buckets of that size; keys: axis, op.

    They then move at the bandwidth that the run's large ones reach; where it has none, a bucket pays one latency, if
    messages of different sizes show that it is latency that they pay.
    """
    rows = talk(graph, request) & graph.tied
    found = network_of(request.tables)
    size = found.spread(graph, found.bytes.astype(np.float64), -1.0)
    limit = request.edit.number(default=1e6)
    known = rows & (size > 0) & (graph.transfer > 0)
    large = known & (size >= limit)
    small = known & (size < limit)
    if not small.any():
        return graph
    if not large.any():
        if not _hardly_depends_on_size(size[small], graph.transfer[small]):
            return graph
        return graph.with_changes(transfer=_with_one_latency(graph, request, small, size, limit))
    rate = float(np.median(size[large] / graph.transfer[large]))
    if request.cautious:  # the slower quarter of the large ones
        rate = float(np.quantile(size[large] / graph.transfer[large], 0.25))
    ideal = np.minimum((size / rate).astype(np.int64), graph.transfer)
    return graph.with_changes(transfer=np.where(small, ideal, graph.transfer))


def _hardly_depends_on_size(size: Floats, transfer: Ints) -> bool:
    """Say whether messages of very different sizes take alike, so that it is latency that they pay."""
    least, most = size.min(), size.max()
    if most < 16 * least:
        return False
    short, long = (float(np.median(transfer[rows])) for rows in (size <= 4 * least, size >= most / 4))
    return long <= 2 * short


def _with_one_latency(graph: Graph, request: Request, small: Flags, size: Floats, limit: float) -> Ints:
    """Give transfers where the calls of a rank's step share their latencies, one for each bucket that they fill."""
    nodes, found = graph.nodes, network_of(request.tables)
    rows = np.flatnonzero(small)
    cell = group_codes(nodes.rank[rows], nodes.step[rows])
    calls, filled = np.bincount(cell), np.ceil(np.bincount(cell, size[rows]) / limit)
    saved = found.latency(graph)[rows] * (1 - np.maximum(filled, 1) / calls)[cell]
    if request.cautious:
        saved = saved / 2
    transfer = graph.transfer.copy()
    transfer[rows] -= np.rint(saved).astype(np.int64)
    return transfer


_WHERE = ("axis", "op")
EDITS = (
    EditKind("link_as_peers", "link_as_peers=all", (), link_as_peers),
    EditKind("comm_faster", "comm_faster=2,axis=dp", _WHERE, comm_faster),
    EditKind("comm_hidden", "comm_hidden,axis=dp", _WHERE, comm_hidden),
    EditKind("comm_removed", "comm_removed,axis=tp", _WHERE, comm_removed),
    EditKind("bucketed", "bucketed=1e6,axis=dp", _WHERE, bucketed, modelled=True),
)
