"""Communication edits: faster, hidden, removed, bucketed or like the peers'; other links and algorithms."""

from __future__ import annotations

import numpy as np

from usp_prof.columns.arrays import Flags, Floats
from usp_prof.columns.rows import group_codes, lookup, rows_by_code
from usp_prof.model.errors import unknown_name
from usp_prof.replay.graph import EdgeKind, Graph, NodeKind
from usp_prof.replay.insertion import with_edges
from usp_prof.replay.node_work import OPTIMIZER, work_of
from usp_prof.whatif.edits.compute import scaled
from usp_prof.whatif.edits.kind import WHERE, Again, EditKind, Request
from usp_prof.whatif.edits.where import communication_of
from usp_prof.whatif.fitted_times import Algorithm, hops, network_of, over_gloo, resized, volume
from usp_prof.whatif.link_speeds import with_links_as_peers

DIFFERENT = 16
"""Minimum ratio of message sizes to determine the time per byte."""
SHORT = 4
"""Messages up to this multiple of the smallest size are short; those above the largest divided by it are long."""


def comm_faster(graph: Graph, request: Request) -> Graph:
    """Speed up transfers by this factor; keys: axis, op. Waiting for late ranks stays."""
    rows, factor = communication_of(graph, request), request.positive()
    return graph.with_changes(
        duration=scaled(graph.duration, rows & ~graph.tied, factor),
        transfer=scaled(graph.transfer, rows & graph.tied, factor),
    )


def link_as_peers(graph: Graph, request: Request) -> Graph:
    """Make a slow link as fast as others of its axis; the value is a group, a pair of ranks, or `all` slower ones.

    A pair sends and receives, as in a pipeline; its value is the group's name and two ranks, as in `2@0+1`.
    """
    return with_links_as_peers(graph, request.tables, request.edit.value)


def comm_hidden(graph: Graph, request: Request) -> Graph:
    """Hide communication: only the optimizer and the next step wait for it; keys: axis, op."""
    rows, edges = communication_of(graph, request), graph.edges
    of_optimizer = graph.spread(work_of(request.tables).phase == OPTIMIZER, missing=False)
    is_dropped = (edges.kind == EdgeKind.WAIT) & rows[edges.source] & ~of_optimizer[edges.target]
    return graph.with_changes(edges=edges.without(is_dropped))


def comm_removed(graph: Graph, request: Request) -> Graph:
    """Remove communication: no transfers, and no rank waits for another; keys: axis, op."""
    return without_communication(graph, communication_of(graph, request))


def without_communication(graph: Graph, rows: Flags) -> Graph:
    """Return the graph with communication that takes no time and for which no rank waits."""
    return graph.with_changes(duration=np.where(rows, 0, graph.duration), tied=graph.tied & ~rows)


def bucketed(graph: Graph, request: Request) -> Graph:
    """Combine collectives smaller than this many bytes into buckets of that size; keys: axis, op.

    A bucket runs at the bandwidth of the run's large collectives. Without large ones, a bucket takes as long as one
    message, if the run shows that the time does not depend on the size.
    """
    rows = communication_of(graph, request) & graph.tied
    network = network_of(request.tables)
    size = network.spread(graph, network.bytes.astype(np.float64), -1.0)  # bytes of each node's call; -1 if unknown
    limit = request.edit.number(default=1e6)
    is_known = rows & (size > 0) & (graph.transfer > 0)
    large, small = is_known & (size >= limit), is_known & (size < limit)
    if not small.any():
        return graph
    if not large.any():
        return _in_few_messages(graph, request, small, size, limit)
    rate = float(np.median(size[large] / graph.transfer[large]))
    if request.cautious:  # the slower quarter of the large ones
        rate = float(np.quantile(size[large] / graph.transfer[large], 0.25))
    ideal = np.minimum((size / rate).astype(np.int64), graph.transfer)
    return graph.with_changes(transfer=np.where(small, ideal, graph.transfer))


def _in_few_messages(graph: Graph, request: Request, small: Flags, size: Floats, limit: float) -> Graph:
    """Return the graph with the small messages of a rank's step merged into buckets, if size hardly matters.

    Messages of very different sizes determine the fixed time per message and the time per byte. If 1 kB takes 9 ms and
    64 kB takes 10 ms, a message takes 9 ms plus 0.016 ms per kB. 64 messages with 2,000 kB in total that fill two
    buckets then take 2 x 9 + 2,000 x 0.016 = 50 ms.
    """
    least, most = size[small].min(), size[small].max()
    short, long = small & (size <= SHORT * least), small & (size >= most / SHORT)
    short_ns, long_ns = (float(np.median(graph.transfer[rows])) for rows in (short, long))
    if most < DIFFERENT * least or long_ns > 2 * short_ns:
        return graph  # latency does not clearly dominate
    ns_per_byte = max(0.0, (long_ns - short_ns) / (float(np.median(size[long])) - float(np.median(size[short]))))
    # By cell (a step of one rank): its bytes, the buckets that they fill, and the remaining share of its time.
    rows = np.flatnonzero(small)
    cell = group_codes(graph.nodes.rank[rows], graph.nodes.step[rows])
    bytes_of_cell = np.bincount(cell, size[rows])
    buckets = np.maximum(np.ceil(bytes_of_cell / limit), 1)
    now = np.bincount(cell, graph.transfer[rows])
    share = np.minimum((buckets * short_ns + ns_per_byte * bytes_of_cell) / now, 1.0)
    if request.cautious:
        share = (1 + share) / 2
    transfer = graph.transfer.copy()
    transfer[rows] = np.rint(transfer[rows] * share[cell]).astype(np.int64)
    return graph.with_changes(transfer=transfer)


EDITS = (
    EditKind("link_as_peers", "link_as_peers=all", (), link_as_peers),
    EditKind("comm_faster", "comm_faster=2,axis=dp", WHERE, comm_faster, again=Again.MULTIPLIES),
    EditKind("comm_hidden", "comm_hidden,axis=dp", WHERE, comm_hidden),
    EditKind("comm_removed", "comm_removed,axis=tp", WHERE, comm_removed),
    EditKind("bucketed", "bucketed=1e6,axis=dp", WHERE, bucketed, modelled=True),
)


# Network edits: more bandwidth, less latency, another algorithm of collectives.

DOUBT = 1.5
"""A latency may be up to this multiple of the fitted one."""
GUESSED = 3.0
"""If all messages are large and of one size, the latency may be up to this multiple of a typical one."""


def bandwidth(graph: Graph, request: Request) -> Graph:
    """Multiply the bandwidth and keep the latency; keys: axis, op."""
    factor = request.positive()
    latency = _latency(graph, request) if factor >= 1 else _least_latency(graph, request)
    changed = latency + (graph.transfer - latency) / factor
    return with_transfer(graph, request, communication_of(graph, request), changed)


def latency(graph: Graph, request: Request) -> Graph:
    """Divide the latency by this factor and keep the bandwidth; keys: axis, op."""
    network = network_of(request.tables)
    own = network.latency(graph)
    if request.cautious:
        is_guessed = network.spread(graph, network.guessed, 0.0) > 0
        own = np.minimum(own * np.where(is_guessed, GUESSED, DOUBT), graph.transfer)
    return with_transfer(
        graph, request, communication_of(graph, request), graph.transfer - own + own / request.positive()
    )


def algorithm(graph: Graph, request: Request) -> Graph:
    """Use another collective algorithm: ring, tree or direct; keys: axis, op, now (the current one, default ring)."""
    wanted, now = (_algorithm(word) for word in (request.edit.value, request.edit.place("now", Algorithm.RING)))
    network = network_of(request.tables)
    # By kind of call (operation and group size): hops and bytes of the new algorithm relative to the current one.
    hop_ratios, byte_ratios = [], []
    for code, size in zip(network.op_code.tolist(), network.size.tolist(), strict=True):
        op, has_peers = network.op[code], size > 1
        hop_ratios.append(hops(op, size, wanted) / hops(op, size, now) if has_peers else 1.0)
        byte_ratios.append(volume(op, size, wanted) / volume(op, size, now) if has_peers else 1.0)
    hop_ratio, byte_ratio = (network.spread(graph, ratios, 1.0) for ratios in (hop_ratios, byte_ratios))
    changed = resized(graph, _latency(graph, request), hops=hop_ratio, volume=byte_ratio)
    return with_transfer(graph, request, communication_of(graph, request), changed)


def _algorithm(word: str) -> Algorithm:
    if word not in list(Algorithm):
        raise unknown_name("algorithm", word, list(Algorithm))
    return Algorithm(word)


def _latency(graph: Graph, request: Request) -> np.ndarray:
    """Return each node's latency; in the cautious model, a larger part of the transfer is latency."""
    own = network_of(request.tables).latency(graph)
    return np.asarray(np.minimum(own * (DOUBT if request.cautious else 1.0), np.maximum(graph.transfer, 0)))


def _least_latency(graph: Graph, request: Request) -> np.ndarray:
    """Return each node's latency; in the cautious model, a smaller part of the transfer, or 0 if it is uncertain.

    On shared cores, latencies include waits for a core. A small gloo message took 9 ms, of which 0.2 ms on the link.
    """
    network = network_of(request.tables)
    own = network.latency(graph)
    if not request.cautious:
        return own
    uncertain = over_gloo(request.tables) or network.spread(graph, network.guessed, 0.0) > 0
    return np.where(uncertain, 0.0, own / DOUBT)


def with_transfer(graph: Graph, request: Request, rows: Flags, transfer: Floats) -> Graph:
    """Return the graph with other transfers of the given calls; communication that is not tied keeps its time.

    In the cautious model, hidden gathers that get longer delay the next compute.
    """
    rows = rows & graph.tied & (graph.transfer > 0)
    longer = rows & (transfer > graph.transfer)
    changed = np.where(rows, np.rint(transfer), graph.transfer).astype(np.int64)
    if request.cautious and longer.any():
        graph = _awaited(graph, longer & network_of(request.tables).runs(graph, "all_gather"))
    return graph.with_changes(transfer=changed)


def _awaited(graph: Graph, gathers: Flags) -> Graph:
    """Make compute wait for hidden gathers: the next compute to start after each gather has ended.

    A gather that overlaps compute delays nothing, so the trace does not show which work needs its result. The next
    compute is the earliest work that can need it.
    """
    nodes, edges = graph.nodes, graph.edges
    compute = nodes.kind == NodeKind.COMPUTE
    seen = np.zeros(len(nodes), dtype=bool)
    is_waited_for = (edges.kind == EdgeKind.WAIT) & compute[edges.target]
    seen[edges.source[is_waited_for]] = True
    hidden = rows_by_code(np.where(gathers & ~seen, nodes.rank, -1))
    work = rows_by_code(np.where(compute, nodes.rank, -1))
    for rank in hidden.keys() & work.keys() - {-1}:
        by_start = work[rank][np.argsort(nodes.start[work[rank]], kind="stable")]
        place = np.searchsorted(nodes.start[by_start], nodes.end[hidden[rank]])
        target = lookup(by_start, np.where(place < len(by_start), place, -1), missing=-1)
        at_end = np.ones(len(target), dtype=bool)
        edges = with_edges(edges, hidden[rank], target, at_end=at_end, kind=EdgeKind.WAIT)
    return graph.with_changes(edges=edges)


LINK_EDITS = (
    EditKind("bandwidth", "bandwidth=2,axis=dp", WHERE, bandwidth, modelled=True, again=Again.MULTIPLIES),
    EditKind("latency", "latency=4,axis=tp", WHERE, latency, modelled=True, again=Again.MULTIPLIES, turn=1),
    EditKind("algorithm", "algorithm=tree,axis=dp", (*WHERE, "now"), algorithm, modelled=True, again=Again.REPLACES),
)
