"""How long does a posted transfer last? On CPU its range ends when somebody asks, which says nothing of the link.

A posted send or receive (gloo) that ends right when the rank's own compute ends was done before: the compute is what
its range waited for. Its transfer is then taken to be as short as those of its axis that were waited for in earnest,
and nothing waits for it; otherwise a rank's own compute would come back as network time that no edit can shorten.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.whatif.graph import NEVER, EdgeKind, NodeKind

if TYPE_CHECKING:
    from usp_prof.whatif.graph import Edges, Flags, Graph, Ints, Nodes

ASKED_NS = 300_000
"""Between the end of compute and the answer of a wait that need not wait, Python and gloo take up to this."""


def with_asked_posts(graph: Graph) -> Graph:
    """Shorten the posted transfers that were only asked for late."""
    asked = _asked(graph)
    if not asked.any():
        return graph
    nodes = graph.nodes
    transfer = np.where(asked, np.minimum(graph.transfer, _earnest(graph, asked)), graph.transfer)
    last = nodes.end - graph.transfer
    end = np.where(asked, np.maximum(nodes.start, last + transfer), nodes.end)
    edges = graph.edges
    gone = (edges.kind == EdgeKind.WAIT) & asked[edges.source]
    target = np.unique(edges.target[gone])
    kept = edges.take(~gone)
    gap = graph.gap.copy()
    inner = target[(target > 0) & (nodes.lane[target] == nodes.lane[target - 1])]
    inner = inner[_reached(kept, nodes)[inner] < nodes.start[inner]]
    gap[inner] = nodes.start[inner] - nodes.end[inner - 1]
    duration = end - nodes.start
    return replace(
        graph,
        nodes=replace(nodes, duration=duration),
        gap=gap,
        edges=kept,
        duration=np.where(asked, duration, graph.duration),
        transfer=transfer,
    )


def _asked(graph: Graph) -> Flags:
    """Mark the posted parts that end right after the rank's own compute, which ran while they were under way."""
    nodes = graph.nodes
    asked = np.zeros(len(nodes), dtype=bool)
    alone = np.bincount(nodes.lane)[nodes.lane] == 1
    hosted = np.unique(nodes.rank[nodes.kind == NodeKind.HOST])
    posted = alone & graph.tied & (nodes.kind == NodeKind.COMMUNICATION) & ~np.isin(nodes.rank, hosted)
    for rank in np.unique(nodes.rank[posted]).tolist():
        rows = np.flatnonzero(posted & (nodes.rank == rank))
        compute = np.flatnonzero((nodes.rank == rank) & (nodes.kind == NodeKind.COMPUTE))
        if not len(compute):
            continue
        ends = np.sort(nodes.end[compute])
        place = np.searchsorted(ends, nodes.end[rows], side="right") - 1
        before = ends[np.maximum(place, 0)]
        asked[rows] = (place >= 0) & (before > nodes.start[rows]) & (nodes.end[rows] - before <= ASKED_NS)
    return asked


def _earnest(graph: Graph, asked: Flags) -> Ints:
    """Give for each node the median transfer of its axis' parts that were waited for; 0 where there are none."""
    found = np.zeros(len(graph.nodes), np.int64)
    for axis in np.unique(graph.nodes.axis[asked]).tolist():
        mine = graph.nodes.axis == axis
        waited = mine & graph.tied & ~asked
        found[mine] = int(np.median(graph.transfer[waited])) if waited.any() else 0
    return found


def _reached(edges: Edges, nodes: Nodes) -> Ints:
    """Give when the last edge into each node was over, as measured."""
    reached = np.full(len(nodes), NEVER)
    arrived = np.where(edges.at_end, nodes.end[edges.source], nodes.start[edges.source]) + edges.lag
    np.maximum.at(reached, edges.target, arrived)
    return reached
