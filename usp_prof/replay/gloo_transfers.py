"""Transfers of gloo: how long a posted send or receive lasts, whose range ends only when somebody asks.

A range that ends right when the rank's own compute ends says nothing of the link: the data was there before, and the
rank asked for it only then. So it is with a range that ends right after another one: waits are asked for in turn, and
the first was what was waited for. Such a transfer is taken to be as short as those of its axis that were waited for in
earnest, and nothing waits for it; otherwise a rank's own compute would come back as network time that no edit can
shorten.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.replay.graph import NEVER, EdgeKind, NodeKind
from usp_prof.tables.communication.posts import asked_late

if TYPE_CHECKING:
    from usp_prof.columns.arrays import Flags, Ints
    from usp_prof.replay.graph import Edges, Graph, Nodes

OPENED_NS = 1_000_000
OPENED_SHARE = 0.1
"""The profiler opens a posted part's range up to so long after the post; on busy cores by a share of what it lasts."""


def with_asked_posts(graph: Graph) -> Graph:
    """Shorten the posted transfers that were only asked for late.

    1. Ranges that seem to end just before the other side begins are tied to it (`_tied_although_early`).
    2. Of parts waited for in turn, what waited for a later one waits for the first (`_waiting_for_the_first`).
    3. Parts that were asked for late get the transfer of those that were waited for in earnest, and end with it.
    4. Nothing waits for them any more: their wait edges go, and what waited follows its lane or its post again.
    """
    if not _posted(graph).any():
        return graph
    recorded_end = graph.nodes.end
    graph = _tied_although_early(graph)
    is_asked_late, first_of_turn = _asked(graph, recorded_end)
    if not is_asked_late.any():
        return graph
    nodes = graph.nodes
    edges = _waiting_for_the_first(graph, is_asked_late, first_of_turn)
    earnest = _earnest(graph, is_asked_late)
    transfer = np.where(is_asked_late, np.minimum(graph.transfer, earnest), graph.transfer)
    last_begun = nodes.end - graph.transfer
    end = np.where(is_asked_late, np.maximum(nodes.start, last_begun + transfer), nodes.end)
    is_gone = (edges.kind == EdgeKind.WAIT) & is_asked_late[edges.source]
    freed = np.unique(edges.target[is_gone])
    kept = _reissued(edges.take(~is_gone), nodes, freed)
    # Freed nodes that no edge holds until they begin keep the time since their lane's node before as think time.
    gap = graph.gap.copy()
    goes_on = (freed > 0) & (nodes.lane[freed] == nodes.lane[freed - 1])
    inner = freed[goes_on]
    is_held = _reached(kept, nodes)[inner] >= nodes.start[inner]
    inner = inner[~is_held]
    gap[inner] = nodes.start[inner] - nodes.end[inner - 1]
    duration = end - nodes.start
    return replace(
        graph,
        nodes=replace(nodes, duration=duration),
        gap=gap,
        edges=kept,
        duration=np.where(is_asked_late, duration, graph.duration),
        transfer=transfer,
    )


def _waiting_for_the_first(graph: Graph, is_asked_late: Flags, first_of_turn: Ints) -> Edges:
    """Let what waited for a part that was asked for late wait for the first of its turn, if that was in earnest."""
    edges, end = graph.edges, graph.nodes.end
    first = first_of_turn[edges.source]
    turns = is_asked_late[edges.source] & ~is_asked_late[first]
    lag = np.where(turns, edges.lag + end[edges.source] - end[first], edges.lag)
    return replace(edges, source=np.where(turns, first, edges.source), lag=lag)


def _reissued(edges: Edges, nodes: Nodes, freed: Ints) -> Edges:
    """Let posts that need not wait any more (`freed`) follow the compute before them as they did."""
    is_issue = (edges.kind == EdgeKind.ISSUE) & np.isin(edges.target, freed)
    is_reached = _reached(edges, nodes)[edges.target] >= nodes.start[edges.target]
    arrived = np.where(edges.at_end, nodes.end[edges.source], nodes.start[edges.source])
    since_arrived = nodes.start[edges.target] - arrived
    return replace(edges, lag=np.where(is_issue & ~is_reached, since_arrived, edges.lag))


def _tied_although_early(graph: Graph) -> Graph:
    """Tie the posted parts that seem to end just before the other side begins: ranges open a little after the post."""
    nodes = graph.nodes
    opens_after = np.maximum(OPENED_NS, (OPENED_SHARE * nodes.duration).astype(np.int64))
    is_early = _posted(graph) & ~graph.tied & (nodes.call >= 0)
    is_early &= (graph.transfer < 0) & (graph.transfer >= -opens_after)
    if not is_early.any():
        return graph
    # By node: how much longer it lasts, so that it ends when the other side begins.
    shift = np.where(is_early, -graph.transfer, 0)
    edges = graph.edges
    lag = edges.lag - np.where(edges.at_end, shift[edges.source], 0)
    return replace(
        graph,
        nodes=replace(nodes, duration=nodes.duration + shift),
        edges=replace(edges, lag=lag),
        duration=graph.duration + shift,
        transfer=np.where(is_early, 0, graph.transfer),
        tied=graph.tied | is_early,
    )


def _posted(graph: Graph) -> Flags:
    """Mark the sends and receives that a host without a device posted: each has a lane of its own."""
    nodes = graph.nodes
    is_posted = (nodes.kind == NodeKind.COMMUNICATION) & ~nodes.of_ranks_with(nodes.kind == NodeKind.HOST)
    if is_posted.any():
        nodes_of_lane = np.bincount(nodes.lane)
        is_posted &= nodes_of_lane[nodes.lane] == 1
    return np.asarray(is_posted)


def _asked(graph: Graph, recorded_end: Ints) -> tuple[Flags, Ints]:
    """Mark the posted parts that end right after the rank's own compute, or after another part waited for in turn.

    Gives also, by node, the part that was waited for first in its turn; the node itself where there is no turn.
    """
    nodes = graph.nodes
    is_asked_late = np.zeros(len(nodes), dtype=bool)
    first_of_turn = np.arange(len(nodes))
    is_posted = _posted(graph) & graph.tied
    for rank in np.unique(nodes.rank[is_posted]).tolist():
        of_rank = nodes.of_rank(rank)
        parts = of_rank[is_posted[of_rank]]
        compute = of_rank[nodes.kind[of_rank] == NodeKind.COMPUTE]
        if not len(compute):
            continue
        # `heads` are places in `parts`.
        is_late, heads = asked_late(
            nodes.start[parts], recorded_end[parts], recorded_end[compute], nodes.duration[parts]
        )
        is_asked_late[parts] = is_late
        first_of_turn[parts] = parts[heads]
    return is_asked_late, first_of_turn


def _earnest(graph: Graph, is_asked_late: Flags) -> Ints:
    """Give for each node the median transfer of its axis' parts that were waited for; 0 where there are none."""
    axis = graph.nodes.axis
    earnest = np.zeros(len(graph.nodes), np.int64)
    for code in np.unique(axis[is_asked_late]).tolist():
        on_axis = axis == code
        was_waited_for = on_axis & graph.tied & ~is_asked_late
        earnest[on_axis] = int(np.median(graph.transfer[was_waited_for])) if was_waited_for.any() else 0
    return earnest


def _reached(edges: Edges, nodes: Nodes) -> Ints:
    """Give when the last edge into each node was over, as measured."""
    reached = np.full(len(nodes), NEVER)
    arrived = np.where(edges.at_end, nodes.end[edges.source], nodes.start[edges.source]) + edges.lag
    np.maximum.at(reached, edges.target, arrived)
    return reached
