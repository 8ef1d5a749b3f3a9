"""Extra waits: calls in which one rank's host waits for its device more often than its peers do.

Examples are rank 0, which reads the loss to log it, and a rank whose allocator frees memory within the step.
"""

from __future__ import annotations

from collections.abc import Collection
from math import ceil
from statistics import median

import numpy as np

from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.rows import group_codes, lookup, occurrence, rows_of
from usp_prof.replay.graph import EdgeKind, Graph, NodeKind, events_of
from usp_prof.replay.host_gaps import lane_before
from usp_prof.replay.peers import peer_groups
from usp_prof.tables.table_set import TableSet
from usp_prof.whatif.peer_steps import HostSteps


def without_extra_waits(graph: Graph, tables: TableSet, hosts: HostSteps, ranks: Collection[int]) -> Graph:
    """Return the graph in which the ranks' hosts wait for the device as often as the median peer."""
    is_extra, edges = extra_waits(graph, tables, hosts, ranks), graph.edges
    return graph.with_changes(edges=edges.without((edges.kind == EdgeKind.SYNC) & is_extra[edges.target]))


def extra_waits(graph: Graph, tables: TableSet, hosts: HostSteps, ranks: Collection[int]) -> Flags:
    """Mark the returns from waits of these ranks beyond those of the median peer in the same step.

    Calls are counted by name. If a rank has more calls than its peers, those at places where it has more are extra
    first, and of these the ones that lasted longest. A place is between two launches.
    """
    waits, place, lasted = _waits_by_call(graph, tables), _places(graph), wait_times(graph)
    is_extra = np.zeros(len(graph.nodes), dtype=bool)
    for group in peer_groups(tables, graph):
        for (rank, step, name), rows in waits.items():
            of_peers = [
                np.array(waits.get((peer, step, name), ()), np.int64)
                for peer in group
                if peer != rank and step in hosts.get(peer, ())
            ]
            if rank in ranks and rank in group and of_peers:
                usual = ceil(median(len(of_peer) for of_peer in of_peers))
                if len(rows) <= usual:
                    continue
                ordered = np.array(sorted(rows, key=lambda row: -lasted[row]))
                surplus = _surplus(place[ordered], [place[of_peer] for of_peer in of_peers])
                ordered = np.append(ordered[surplus], ordered[~surplus])
                is_extra[ordered[: len(rows) - usual]] = True
    return is_extra


def _surplus(place: Ints, of_peers: list[Ints]) -> Flags:
    """Mark the first calls at each place, as many as the rank has there beyond the median peer.

    places 5, 5, 8; peers 5 and 5      marks the first call and the last one
    """
    own_count, *peer_counts = (
        np.count_nonzero(place[:, np.newaxis] == of_rank, axis=1) for of_rank in (place, *of_peers)
    )
    return np.asarray(occurrence(place) < own_count - np.median(peer_counts, axis=0))


def _places(graph: Graph) -> Ints:
    """Return a number for the names of the work that the last launch before each host node and the next one start."""
    nodes, edges, count = graph.nodes, graph.edges, len(graph.nodes)
    launch = np.flatnonzero(edges.kind == EdgeKind.LAUNCH)[::-1]  # the first activity of a call is written last
    name = np.full(count + 1, -1)
    name[edges.source[launch]] = nodes.name[edges.target[launch]]
    row, launches = np.arange(count), name[:-1] >= 0
    before = np.maximum.accumulate(np.where(launches, row, -1))
    behind = np.minimum.accumulate(np.where(launches, row, count)[::-1])[::-1]
    lane = np.append(nodes.lane, -1)
    around = [name[np.where(lane[other] == nodes.lane, other, count)] for other in (before, behind)]
    return group_codes(*around)


def wait_times(graph: Graph) -> Ints:
    """Return how long each call that waits has lasted, by the node of its return."""
    return graph.nodes.start - lane_before(graph)


def _waits_by_call(graph: Graph, tables: TableSet) -> dict[tuple[int, int, str], list[int]]:
    """Return the nodes at which hosts return from waits, by rank, step and name of the call."""
    nodes, events = graph.nodes, events_of(graph)
    waits: dict[tuple[int, int, str], list[int]] = {}
    for rank in tables.ranks:
        rows = nodes.of_rank(rank)
        rows = rows[(nodes.kind[rows] == NodeKind.RETURN) & (nodes.step[rows] >= 0)]
        launches = tables.columns("launches", rank)
        code, names = launches.codes("name")
        of_call = lookup(code, rows_of(launches["event"], events[rows]), missing=-1)
        for row, place in zip(rows.tolist(), of_call.tolist(), strict=True):
            if place >= 0:
                waits.setdefault((rank, int(nodes.step[row]), names[place]), []).append(row)
    return waits
