"""Where in the timeline is a pattern seen? Rank, step and time of the place where it weighs most."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from usp_prof.model.finding import EMPTY, PlainMap

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from usp_prof.replay.graph import Flags, Graph


def longest(graph: Graph, rows: Flags, weight: NDArray[np.int64] | None = None) -> PlainMap:
    """Give rank, step, begin and end of the node that lasts (or weighs) most; times are on the common clock."""
    place = np.flatnonzero(rows & (graph.nodes.step >= 0))
    if not len(place):
        return EMPTY
    row = int(place[np.argmax((graph.nodes.duration if weight is None else weight)[place])])
    return spot(graph, row, int(graph.nodes.start[row]), int(graph.nodes.end[row]))


def spot(graph: Graph, row: int, start: int, end: int) -> PlainMap:
    """Give a node's rank and step, with a time range of one's own."""
    return {
        "at_rank": int(graph.nodes.rank[row]),
        "at_step": int(graph.nodes.step[row]),
        "start_ns": start,
        "end_ns": end,
    }


def slowest_step(graph: Graph, rows: Flags) -> PlainMap:
    """Give the rank and step in which these nodes last longest together, from the first begin to the last end."""
    place = np.flatnonzero(rows & (graph.nodes.step >= 0))
    if not len(place):
        return EMPTY
    pair = np.stack([graph.nodes.rank[place], graph.nodes.step[place]])
    distinct, group = np.unique(pair, axis=1, return_inverse=True)
    group = group.ravel()
    most = int(np.argmax(np.bincount(group, graph.nodes.duration[place])))
    mine = place[group == most]
    start, end = int(graph.nodes.start[mine].min()), int(graph.nodes.end[mine].max())
    return {"at_rank": int(distinct[0, most]), "at_step": int(distinct[1, most]), "start_ns": start, "end_ns": end}
