"""Gloo transfers: durations of posted sends and receives, whose ranges end only when the rank calls wait.

A range that ends just as the rank's own compute ends says nothing about the link: the data had already arrived, and
the rank called wait only then. The same holds for a range that ends right after another one, because waits are called
in sequence and only the first one blocked. Such late waits get the median transfer time of real waits on their axis,
and nothing depends on them. Otherwise a rank's own compute would count as network time, which edits cannot shorten.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from usp_prof.columns.arrays import Flags, Ints
from usp_prof.replay.graph import NEVER, EdgeKind, Edges, Graph, NodeKind, Nodes
from usp_prof.tables.communication.posts import asked_late

OPENED_NS = 1_000_000
OPENED_SHARE = 0.1
"""Maximum delay between a post and the start of its range; on busy cores, a share of the range's duration."""


def with_asked_posts(graph: Graph) -> Graph:
    """Return the graph with shorter transfers for posted parts whose wait was called late.

    1. Ranges that seem to end just before the other side starts are tied to it (`_tied_although_early`).
    2. In a sequence of waits, nodes that waited for a later part wait for the first (`_waiting_for_the_first`).
    3. Late-waited parts get the median transfer of parts that blocked, and end accordingly.
    4. Their wait edges are dropped. The nodes that waited follow their lane or their post again.
    """
    if not _posted(graph).any():
        return graph
    recorded_end = graph.nodes.end
    graph = _tied_although_early(graph)
    is_asked_late, first_of_turn = _late_waits(graph, recorded_end)
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
    remaining = _reissued(edges.take(~is_gone), nodes, freed)
    # If no edge delays a freed node until its start, the time since the previous node of its lane is think time.
    gap = graph.gap.copy()
    goes_on = (freed > 0) & (nodes.lane[freed] == nodes.lane[freed - 1])
    inner = freed[goes_on]
    is_held = _reached(remaining, nodes)[inner] >= nodes.start[inner]
    inner = inner[~is_held]
    gap[inner] = nodes.start[inner] - nodes.end[inner - 1]
    duration = end - nodes.start
    return replace(
        graph,
        nodes=replace(nodes, duration=duration),
        gap=gap,
        edges=remaining,
        duration=np.where(is_asked_late, duration, graph.duration),
        transfer=transfer,
    )


def _waiting_for_the_first(graph: Graph, is_asked_late: Flags, first_of_turn: Ints) -> Edges:
    """Redirect edges from a late-waited part to the first part of its sequence, if that one blocked."""
    edges, end = graph.edges, graph.nodes.end
    first = first_of_turn[edges.source]
    turns = is_asked_late[edges.source] & ~is_asked_late[first]
    lag = np.where(turns, edges.lag + end[edges.source] - end[first], edges.lag)
    return replace(edges, source=np.where(turns, first, edges.source), lag=lag)


def _reissued(edges: Edges, nodes: Nodes, freed: Ints) -> Edges:
    """Make posts that no longer wait (`freed`) follow the compute before them as recorded."""
    is_issue = (edges.kind == EdgeKind.ISSUE) & np.isin(edges.target, freed)
    is_reached = _reached(edges, nodes)[edges.target] >= nodes.start[edges.target]
    arrived = np.where(edges.at_end, nodes.end[edges.source], nodes.start[edges.source])
    since_arrived = nodes.start[edges.target] - arrived
    return replace(edges, lag=np.where(is_issue & ~is_reached, since_arrived, edges.lag))


def _tied_although_early(graph: Graph) -> Graph:
    """Tie posted parts that seem to end just before the other side starts, because ranges open after the post."""
    nodes = graph.nodes
    opens_after = np.maximum(OPENED_NS, (OPENED_SHARE * nodes.duration).astype(np.int64))
    is_early = _posted(graph) & ~graph.tied & (nodes.call >= 0)
    is_early &= (graph.transfer < 0) & (graph.transfer >= -opens_after)
    if not is_early.any():
        return graph
    # By node: how much longer it lasts, so that it ends when the other side starts.
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
    """Mark the sends and receives posted by hosts without a device: each has its own lane."""
    nodes = graph.nodes
    is_posted = (nodes.kind == NodeKind.COMMUNICATION) & ~nodes.of_ranks_with(nodes.kind == NodeKind.HOST)
    if is_posted.any():
        nodes_of_lane = np.bincount(nodes.lane)
        is_posted &= nodes_of_lane[nodes.lane] == 1
    return np.asarray(is_posted)


def _late_waits(graph: Graph, recorded_end: Ints) -> tuple[Flags, Ints]:
    """Mark the posted parts that end right after the rank's own compute, or after the previous wait of a sequence.

    Also return, by node, the first part of its sequence of waits, or the node itself if there is no sequence.
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
    """Return for each node the median transfer of parts on its axis that blocked; 0 if there are none."""
    axis = graph.nodes.axis
    earnest = np.zeros(len(graph.nodes), np.int64)
    for code in np.unique(axis[is_asked_late]).tolist():
        on_axis = axis == code
        was_waited_for = on_axis & graph.tied & ~is_asked_late
        earnest[on_axis] = int(np.median(graph.transfer[was_waited_for])) if was_waited_for.any() else 0
    return earnest


def _reached(edges: Edges, nodes: Nodes) -> Ints:
    """Return when the last edge into each node was satisfied, as measured."""
    reached = np.full(len(nodes), NEVER)
    arrived = np.where(edges.at_end, nodes.end[edges.source], nodes.start[edges.source]) + edges.lag
    np.maximum.at(reached, edges.target, arrived)
    return reached
