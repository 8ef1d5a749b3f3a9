"""What comes to the nodes of a plan from elsewhere? Edges and the ends of lane predecessors, in the plan's order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from usp_prof.replay.graph import Graph, Ints
    from usp_prof.replay.plan import Plan


@dataclass(frozen=True, slots=True, eq=False)
class Arrivals:
    """Entries by target in the plan's order; a moment is a start, or behind all starts an end."""

    source: Ints
    target: Ints
    lag: Ints


def arrivals_of(graph: Graph, plan: Plan) -> Arrivals:
    """Bring a graph's edges into the plan's order.

    Edges lie sorted by target in the graph, and a segment's nodes lie together there as in the plan: all that changes
    is the order of segments, so that nothing needs to be sorted.
    """
    edges, count = graph.edges, len(graph.nodes)
    target = plan.place[edges.target]
    segment = plan.segment[target]
    if (edges.target[1:] < edges.target[:-1]).any():
        order = np.argsort(edges.target, kind="stable")
        edges, target, segment = edges.take(order), target[order], segment[order]
    number = np.bincount(segment, minlength=len(plan.heads))
    follows = plan.before >= 0
    filled = number + follows
    begin = np.cumsum(filled) - filled
    opens = np.flatnonzero(np.append(True, segment[1:] != segment[:-1])[: len(segment)])
    within = np.arange(len(segment)) - np.repeat(opens, np.diff(np.append(opens, len(segment))))
    at_edge, at_head = (begin + follows)[segment] + within, begin[follows]
    size = len(target) + int(follows.sum())
    found = Arrivals(*(np.empty(size, np.int64) for _ in range(3)))
    found.source[at_edge] = plan.place[edges.source] + np.where(edges.at_end, count, 0)
    found.target[at_edge], found.lag[at_edge] = target, edges.lag
    found.source[at_head] = plan.before[follows] + count
    found.target[at_head], found.lag[at_head] = plan.heads[follows], graph.gap[plan.nodes[plan.heads[follows]]]
    return found


def side_by_side(each: Sequence[Arrivals], plan: Plan) -> tuple[Arrivals, Ints]:
    """Join the arrivals of graphs that are replayed at once, round by round; gives also where each round begins.

    Every graph has all its moments behind those of the one before, and all its nodes behind that one's nodes.
    """
    begins = [np.searchsorted(found.target, plan.bounds) for found in each]
    if len(each) == 1:
        return each[0], begins[0]
    number = [np.diff(begin) for begin in begins]
    begin = np.append(0, np.cumsum(np.sum(number, axis=0)))
    joined, at, count = Arrivals(*(np.empty(begin[-1], np.int64) for _ in range(3))), begin[:-1], len(plan.nodes)
    for k, found in enumerate(each):
        place = np.repeat(at - begins[k][:-1], number[k])
        place += np.arange(len(place))
        joined.source[place], joined.target[place] = found.source + 2 * k * count, found.target + k * count
        joined.lag[place] = found.lag
        at = at + number[k]
    return joined, begin
