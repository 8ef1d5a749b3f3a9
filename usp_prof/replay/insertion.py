"""Insertion: calls that were never made, as nodes behind all others, on lanes of their own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.rows import first_of_run
from usp_prof.replay.graph import NEVER, EdgeKind, Edges, NodeKind, Nodes

if TYPE_CHECKING:
    from usp_prof.columns.arrays import Ints
    from usp_prof.replay.graph import Graph


@dataclass(frozen=True, slots=True, eq=False)
class Added:
    """Collectives to put in. Entries of one rank stand in the order in which its lane runs them.

    A part begins when the lane's part before it has ended and `after` has happened: its end, or its start where
    `at_start` says so. `before` waits for the part.
    """

    rank: Ints
    call: Ints
    """Number of the call, counted from 0 among those put in: members have one number."""
    transfer: Ints
    after: Ints
    at_start: np.ndarray
    asked_ns: Ints
    """When each would have been asked for in the run as measured: tells which step it belongs to."""
    before: Ints
    axis: str
    name: str
    stands_for: Ints | None = None
    """The measured node that each entry takes the place of, and whose event it becomes; without, all are new."""


def with_calls(graph: Graph, added: Added) -> Graph:
    """Put collectives in; an `after` or `before` of -1 is none."""
    count, nodes = len(added.rank), graph.nodes
    if not count:
        return graph
    order = np.lexsort((np.arange(count), added.rank))
    rank, after, before = added.rank[order], added.after[order], added.before[order]
    anchor = np.where(after >= 0, after, before)
    first_lane = int(nodes.lane.max(initial=-1)) + 1
    lane = first_lane + np.searchsorted(np.unique(rank), rank)
    axes, axis = _code(graph.axes, added.axis)
    names, name = _code(graph.names, added.name)
    start = added.asked_ns[order]
    # What stands for a measured node was measured there, and has its event; the node itself has none any longer.
    event = None if nodes.event is None else np.append(nodes.event, np.full(count, -1))
    replaced = None if added.stands_for is None else added.stands_for[order]
    if replaced is not None and event is not None:
        event[len(nodes) :] = event[replaced]
        event[replaced] = -1
    first_call = int(nodes.call.max(initial=-1)) + 1
    new = Nodes(
        np.append(nodes.rank, rank),
        np.append(nodes.lane, lane),
        np.append(nodes.kind, np.full(count, int(NodeKind.COMMUNICATION))),
        np.append(nodes.start, start),
        np.append(nodes.duration, np.zeros(count, np.int64) if replaced is None else nodes.duration[replaced]),
        np.append(nodes.step, nodes.step[anchor]),
        np.append(nodes.axis, np.full(count, axis)),
        np.append(nodes.name, np.full(count, name)),
        np.append(nodes.call, first_call + added.call[order]),
        event,
    )
    own = len(nodes) + np.arange(count)
    opens = first_of_run(lane)
    zeros = np.zeros(count, np.int64)
    return replace(
        graph,
        nodes=new,
        gap=np.append(graph.gap, zeros),
        earliest=np.append(graph.earliest, np.where(opens & (after < 0), start, NEVER)),
        edges=with_edges(
            with_edges(graph.edges, after, own, at_end=~added.at_start[order], kind=EdgeKind.ISSUE),
            own,
            before,
            at_end=np.ones(count, dtype=bool),
            kind=EdgeKind.WAIT,
        ),
        duration=np.append(graph.duration, zeros),
        transfer=np.append(graph.transfer, added.transfer[order]),
        tied=np.append(graph.tied, np.ones(count, dtype=bool)),
        axes=axes,
        names=names,
        added=graph.added + count,
        rewired=True,
    )


def with_edges(edges: Edges, source: Ints, target: Ints, *, at_end: np.ndarray, kind: EdgeKind) -> Edges:
    """Let targets wait for sources too; pairs with a -1 are none."""
    good = (source >= 0) & (target >= 0)
    count = int(good.sum())
    joined = np.append(edges.target, target[good])
    order = np.argsort(joined, kind="stable")
    return Edges(  # column by column: what one needs on the way serves the next
        np.append(edges.source, source[good]).take(order),
        np.append(edges.at_end, at_end[good]).take(order),
        joined.take(order),
        np.append(edges.lag, np.zeros(count, np.int64)).take(order),
        np.append(edges.kind, np.full(count, int(kind))).take(order),
    )


def _code(texts: tuple[str, ...], wanted: str) -> tuple[tuple[str, ...], int]:
    known = texts if wanted in texts else (*texts, wanted)
    return known, known.index(wanted)
