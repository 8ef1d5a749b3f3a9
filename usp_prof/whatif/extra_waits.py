"""Extra waits: calls in which one rank's host waits for its device more often than its peers do.

Examples are rank 0, which reads the loss to log it, and a rank whose allocator frees memory within the step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import numpy as np

from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.rows import lookup, rows_of
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

    Calls are counted by name. If a rank has more calls than its peers, those that lasted longest are extra.
    """
    waits = _waits_by_call(graph, tables)
    count = Counter({call: len(rows) for call, rows in waits.items()})
    lasted = wait_times(graph)
    is_extra = np.zeros(len(graph.nodes), dtype=bool)
    for group in peer_groups(tables, graph):
        for (rank, step, name), rows in waits.items():
            peers = [peer for peer in group if peer != rank and step in hosts.get(peer, ())]
            if rank in ranks and rank in group and peers:
                usual = np.ceil(np.median([count[peer, step, name] for peer in peers]))
                extra = max(len(rows) - int(usual), 0)
                is_extra[sorted(rows, key=lambda row: -lasted[row])[:extra]] = True
    return is_extra


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
