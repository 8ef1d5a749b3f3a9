"""Host steps: what each rank's host did in a step.

A host's own time is its think time before each call (pauses, data loading, late launches) plus the calls themselves.
Waits for the device or for other ranks do not count.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from usp_prof.columns.arrays import Ints
from usp_prof.columns.rows import distinct, numbered, rows_by_code
from usp_prof.replay.graph import EdgeKind, Graph, NodeKind
from usp_prof.replay.host_gaps import hosts_seen, posts, think_times, thinks
from usp_prof.tables.table_set import TableSet
from usp_prof.whatif.peer_steps import RankStep


def own_times(graph: Graph) -> Ints:
    """Return each node's own host time: think time before it plus the call itself; 0 for device work."""
    return graph.memo(
        "own host times",
        lambda: think_times(graph) + np.where(graph.nodes.kind == NodeKind.HOST, graph.duration, 0),
    )


def host_steps(graph: Graph, tables: TableSet) -> dict[int, dict[int, RankStep]]:
    """Return the work of each host by rank and step; ranks whose host is not in the trace are left out."""
    own, label = own_times(graph), _labels(graph)
    communicates = label // (len(graph.axes) + 1) == NodeKind.COMMUNICATION
    # With a device, host calls count; on a CPU, compute and the communication it posts.
    counts = (thinks(graph) | posts(graph)) & graph.measured
    steps_of_rank: dict[int, dict[int, RankStep]] = {}
    for rank, is_seen in hosts_seen(graph, tables).items():
        rows = graph.nodes.of_rank(rank)
        rows = rows[counts[rows] & (graph.nodes.step[rows] >= 0)]
        if not is_seen or not len(rows):
            continue
        rows = rows[np.argsort(graph.nodes.start[rows], kind="stable")]
        steps, step = numbered(graph.nodes.step[rows])
        steps_of_rank[rank] = {}
        for place, within in rows_by_code(step).items():
            in_step = rows[within]
            steps_of_rank[rank][steps[place]] = RankStep(in_step, own[in_step], label[in_step], communicates[in_step])
    return steps_of_rank


def _labels(graph: Graph) -> Ints:
    """Return a code for the kind and axis of the work that each node starts; -1 if it starts nothing."""
    nodes = graph.nodes
    code = nodes.kind * (len(graph.axes) + 1) + nodes.axis + 1
    label = np.where(nodes.of_host, -1, code)
    launch = np.flatnonzero(graph.edges.kind == EdgeKind.LAUNCH)[
        ::-1
    ]  # reversed, so that a call's first activity is written last
    label[graph.edges.source[launch]] = code[graph.edges.target[launch]]
    return np.asarray(label)


def host_slowness(graph: Graph) -> dict[int, float]:
    """Return by rank its median time between launches divided by the median of the other ranks."""
    is_call = graph.nodes.kind == NodeKind.HOST
    median_ns = {}
    for rank in distinct(graph.nodes.rank[is_call]).tolist():
        rows = graph.nodes.of_rank(rank)
        rows = rows[is_call[rows]]
        between_launches = np.maximum(graph.gap[rows], 0) + graph.duration[rows]
        if len(between_launches) > 1:
            median_ns[rank] = float(np.median(between_launches))
    slowness = {}
    for rank, own in median_ns.items():
        peers_ns = [time for peer, time in median_ns.items() if peer != rank]
        if peers_ns and np.median(peers_ns) > 0:
            slowness[rank] = own / float(np.median(peers_ns))
    return slowness


def without_hosts(tables: TableSet, ranks: Iterable[int]) -> list[int]:
    """Return the given ranks for which only device activity was recorded."""
    return [
        rank
        for rank in ranks
        if tables.ran_on_gpu(rank)
        and not len(tables.columns("launches", rank))
        and not len(tables.columns("ops", rank))
    ]
