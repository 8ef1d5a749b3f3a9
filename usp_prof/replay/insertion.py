"""Inserted collectives: calls that the run never made, appended as nodes on lanes of their own."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.rows import first_of_run, numbered
from usp_prof.replay.graph import NEVER, EdgeKind, Edges, Graph, NodeKind, Nodes


@dataclass(frozen=True, slots=True, eq=False)
class Added:
    """Collectives to insert. Entries of one rank are in the order in which its lane runs them.

    A part starts when the previous part of its lane and node `after` have ended (or `after` has started, if `at_start`
    is set). Node `before` waits for the part.
    """

    rank: Ints
    call: Ints
    """Number of the call, counted from 0 among the inserted calls; all members have the same number."""
    transfer: Ints
    after: Ints
    at_start: Flags
    asked_ns: Ints
    """When each part would have been issued in the measured run, which determines its step."""
    before: Ints
    axis: str
    name: str
    stands_for: Ints | None = None
    """The measured node that each entry replaces, and whose event it takes over; `None` if all entries are new."""

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self.rank)

    def by_rank(self) -> Added:
        """Return the entries sorted by rank, in their order within each rank."""
        order = np.argsort(self.rank, kind="stable")
        return Added(
            self.rank[order],
            self.call[order],
            self.transfer[order],
            self.after[order],
            self.at_start[order],
            self.asked_ns[order],
            self.before[order],
            self.axis,
            self.name,
            None if self.stands_for is None else self.stands_for[order],
        )


def with_calls(graph: Graph, added: Added) -> Graph:
    """Return the graph with collectives inserted; -1 in `after` or `before` means none.

    Each entry becomes a node at the end, on one new lane per rank. Example for a graph of 10 nodes on lanes 0 and 1:

        entries of ranks 3, 5, 3     nodes 10 and 11 on lane 2 (rank 3), node 12 on lane 3 (rank 5)
    """
    if not len(added):
        return graph
    added = added.by_rank()
    axes, axis = _code(graph.axes, added.axis)
    names, name = _code(graph.names, added.name)
    nodes = _with_nodes(graph.nodes, added, axis, name)
    own = len(graph.nodes) + np.arange(len(added))  # the node of each entry
    # If the first part of a lane waits for nothing, it starts when it would have been issued.
    is_free = first_of_run(nodes.lane[own]) & (added.after < 0)
    edges = with_edges(graph.edges, added.after, own, at_end=~added.at_start, kind=EdgeKind.ISSUE)
    edges = with_edges(edges, own, added.before, at_end=np.ones(len(added), dtype=bool), kind=EdgeKind.WAIT)
    zeros = np.zeros(len(added), np.int64)
    return replace(
        graph,
        nodes=nodes,
        gap=np.append(graph.gap, zeros),
        earliest=np.append(graph.earliest, np.where(is_free, added.asked_ns, NEVER)),
        edges=edges,
        duration=np.append(graph.duration, zeros),
        transfer=np.append(graph.transfer, added.transfer),
        tied=np.append(graph.tied, np.ones(len(added), dtype=bool)),
        axes=axes,
        names=names,
        added=graph.added + len(added),
    )


def _with_nodes(nodes: Nodes, added: Added, axis: int, name: int) -> Nodes:
    """Append one node per entry; entries are sorted by rank."""
    count = len(added)
    first_lane = int(nodes.lane.max(initial=-1)) + 1
    first_call = int(nodes.call.max(initial=-1)) + 1
    # A part belongs to the step of the node it waits for or, without one, of the node that waits for it.
    step_source = np.where(added.after >= 0, added.after, added.before)
    duration = np.zeros(count, np.int64) if added.stands_for is None else nodes.duration[added.stands_for]
    return Nodes(
        rank=np.append(nodes.rank, added.rank),
        lane=np.append(nodes.lane, first_lane + numbered(added.rank)[1]),
        kind=np.append(nodes.kind, np.full(count, int(NodeKind.COMMUNICATION))),
        start=np.append(nodes.start, added.asked_ns),
        duration=np.append(nodes.duration, duration),
        step=np.append(nodes.step, nodes.step[step_source]),
        axis=np.append(nodes.axis, np.full(count, axis)),
        name=np.append(nodes.name, np.full(count, name)),
        call=np.append(nodes.call, first_call + added.call),
        event=_events(nodes, added),
    )


def _events(nodes: Nodes, added: Added) -> Ints | None:
    """Return the event of each node; an entry that replaces a measured node takes over its event."""
    if nodes.event is None:
        return None
    event = np.append(nodes.event, np.full(len(added), -1))
    if added.stands_for is not None:
        event[len(nodes) :] = event[added.stands_for]
        event[added.stands_for] = -1
    return event


def with_edges(edges: Edges, source: Ints, target: Ints, *, at_end: Flags, kind: EdgeKind) -> Edges:
    """Return the edges with one more per pair of source and target; pairs with -1 are skipped."""
    edges = edges.take(edges.kind != EdgeKind.REMOVED)
    is_pair = (source >= 0) & (target >= 0)
    count = int(is_pair.sum())
    targets = np.append(edges.target, target[is_pair])
    order = np.argsort(targets, kind="stable")
    return Edges(
        np.append(edges.source, source[is_pair]).take(order),
        np.append(edges.at_end, at_end[is_pair]).take(order),
        targets.take(order),
        np.append(edges.lag, np.zeros(count, np.int64)).take(order),
        np.append(edges.kind, np.full(count, int(kind))).take(order),
    )


def _code(texts: tuple[str, ...], text: str) -> tuple[tuple[str, ...], int]:
    extended = texts if text in texts else (*texts, text)
    return extended, extended.index(text)
