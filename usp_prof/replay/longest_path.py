"""When would everything have run? The longest path through a graph, round by round of segments.

Graphs of one plan are replayed at once, a column for each: a round costs hardly more for eight than for one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from usp_prof.replay.arrivals import Arrivals, arrivals_of, side_by_side
from usp_prof.replay.graph import NEVER, Graph, Timeline
from usp_prof.replay.plan import Plan, make_plan, span

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from usp_prof.replay.graph import Ints

_REACH, _FARTHER = 16, 64
_AT_ONCE = 8_000_000
"""Nodes of all graphs together that are replayed at once: a gigabyte."""


def replay(graph: Graph, plan: Plan | None = None) -> Timeline:
    """Replay a graph; the plan of the unedited graph serves all its edits."""
    plan, reach = plan or make_plan(graph), _REACH
    while (found := _attempt([graph], plan)) is None:  # an edit made the run so much longer
        reach *= _FARTHER
        plan = make_plan(graph, reach)
    return found[0]


def as_measured(graph: Graph) -> Timeline | None:
    """Give the measured timeline where a replay would give just that; `None` where it might not.

    It would where each node begins and ends as its own reasons have it, all others being where they were measured:
    whatever the order in which the replay takes the nodes, it then finds every one of them there.
    """
    nodes, edges = graph.nodes, graph.edges
    if not len(nodes):
        return None
    start, end = nodes.start, nodes.end
    begin = np.maximum(graph.earliest, int(start.min()) - span(graph))
    follows = np.flatnonzero(~nodes.first_of_lane)
    begin[follows] = np.maximum(begin[follows], end[follows - 1] + graph.gap[follows])
    np.maximum.at(begin, edges.target, np.where(edges.at_end, end[edges.source], start[edges.source]) + edges.lag)
    if not np.array_equal(begin, start):
        return None
    done = start + graph.duration
    members = np.flatnonzero(nodes.call >= 0)
    last = np.full(int(nodes.call.max()) + 1, NEVER)
    np.maximum.at(last, nodes.call[members], start[members])
    tied = members[graph.tied[members]]
    done[tied] = np.maximum(start[tied], last[nodes.call[tied]] + graph.transfer[tied])
    return Timeline(start, end) if np.array_equal(done, end) else None


def replay_all(graphs: Sequence[Graph], plan: Plan) -> list[Timeline]:
    """Replay graphs that one plan serves; as many at once as `at_once` says is reasonable."""
    found = _attempt(graphs, plan) if len(graphs) > 1 else None
    return found or [replay(graph, plan) for graph in graphs]


def at_once(graph: Graph) -> int:
    """Say how many graphs like this one are best replayed together."""
    return max(1, _AT_ONCE // max(1, len(graph.nodes)))


def _attempt(graphs: Sequence[Graph], plan: Plan) -> list[Timeline] | None:
    """Replay; `None` where the plan's room was too little to hold the segments of a round apart.

    A segment of nodes a..b: start[n] = offset[n] + max over j <= n of (bound[j] - offset[j]), where offset adds up the
    durations and gaps before n. So that a round is hardly more than that maximum, `reached` is start - offset: what
    lies between that and the moments that others wait for is part of their lags.
    """
    nodes, count, width = graphs[0].nodes, len(graphs[0].nodes), len(graphs)
    if not count:
        return [Timeline(nodes.start, nodes.end) for _ in graphs]
    origin, members = int(nodes.start.min()), plan.nodes[plan.members]
    duration, offset = _offsets(graphs, plan)
    bound = _rows([graph.earliest for graph in graphs], plan.nodes)
    np.maximum(bound, origin - max(span(graph) for graph in graphs), out=bound)
    bound -= origin
    bound -= offset
    tied, transfer = (_rows([getattr(graph, name) for graph in graphs], members) for name in ("tied", "transfer"))
    found = np.empty((width, count + len(members)), np.int64)
    reached, ends = found[:, :count], found[:, count:]
    np.subtract(nodes.start.take(plan.nodes) - origin, offset, out=reached)
    ends[:] = nodes.end[members] - origin
    arrivals, begin = side_by_side(_arrivals(graphs, plan), plan)
    source, lag = _reduced(arrivals, plan, offset, duration, tied)
    _take_rounds(plan, found, bound, offset[:, plan.members], transfer, Arrivals(source, arrivals.target, lag), begin)
    if (reached[:, plan.heads] != bound[:, plan.heads]).any():
        return None
    found += origin
    reached += offset
    duration += reached
    for k in range(width):
        duration[k, plan.members[tied[k]]] = ends[k, tied[k]]
    return [Timeline(reached[k].take(plan.place), duration[k].take(plan.place)) for k in range(width)]


def _offsets(graphs: Sequence[Graph], plan: Plan) -> tuple[NDArray[Any], NDArray[Any]]:
    """Give the nodes' durations, and what durations and gaps before them add up to, less their segment's drop."""
    duration = _rows([graph.duration for graph in graphs], plan.nodes)
    offset = _rows([graph.gap for graph in graphs], plan.nodes)
    offset += duration
    np.cumsum(offset, axis=1, out=offset)
    offset -= duration
    offset -= plan.drop
    return duration, offset


def _take_rounds(
    plan: Plan,
    found: NDArray[Any],
    bound: NDArray[Any],
    offset: NDArray[Any],
    transfer: NDArray[Any],
    arrivals: Arrivals,
    begin: Ints,
) -> None:
    """Fill `found`, round by round; `offset` and `transfer` are those of the calls' members, `begin` the rounds'."""
    width, count = bound.shape
    reached, ends, flat, earliest = found[:, :count], found[:, count:], found.reshape(-1), bound.reshape(-1)
    source, target, lag, edge = arrivals.source, arrivals.target, arrivals.lag, iter(begin.tolist())
    begun_at = plan.members + found.shape[1] * np.arange(width)[:, None]
    low = next(edge)
    for first, last, first_member, last_member in plan.rounds:
        if first_member >= 0:
            part = slice(first_member, last_member)
            begun = flat[begun_at[:, part]] + offset[:, part]
            arrived = np.maximum.reduceat(begun, plan.first[first:last], axis=1)
            np.maximum(begun, arrived.take(plan.call_of[part], axis=1) + transfer[:, part], out=ends[:, part])
            continue
        here, high = slice(first, last), next(edge)
        if high > low:
            np.maximum.at(earliest, target[low:high], flat[source[low:high]] + lag[low:high])
        low = high
        np.maximum.accumulate(bound[:, here], axis=1, out=reached[:, here])


def _reduced(
    arrivals: Arrivals, plan: Plan, offset: NDArray[Any], duration: NDArray[Any], tied: NDArray[Any]
) -> tuple[Ints, Ints]:
    """Say for arrivals where what they wait for is found, and by how much later they come than that.

    For each graph stand what its nodes have reached, then the ends of its calls' members, of which those count that
    are tied: all other nodes end when their duration is over.
    """
    width, count = offset.shape
    place = np.empty((width, 2, count), np.int64)
    place[:] = np.arange(count) + (count + len(plan.members)) * np.arange(width)[:, None, None]
    beyond = np.stack([offset, offset + duration], axis=1)
    graph, member = np.nonzero(tied)
    place[graph, 1, plan.members[member]] = graph * (count + len(plan.members)) + count + member
    beyond[graph, 1, plan.members[member]] = 0
    lag = arrivals.lag + beyond.reshape(-1).take(arrivals.source)
    lag -= offset.reshape(-1).take(arrivals.target)
    return place.reshape(-1).take(arrivals.source), lag


def _arrivals(graphs: Sequence[Graph], plan: Plan) -> list[Arrivals]:
    """Bring each graph's edges into the plan's order; most edits leave the edges as they are."""
    known: dict[tuple[int, int], Arrivals] = {}
    for graph in graphs:
        key = (id(graph.edges), id(graph.gap))
        if key not in known:
            known[key] = arrivals_of(graph, plan)
    return [known[id(graph.edges), id(graph.gap)] for graph in graphs]


def _rows(each: Sequence[NDArray[Any]], order: Ints) -> NDArray[Any]:
    """Set arrays of several graphs below each other, in the plan's order."""
    found = np.empty((len(each), len(order)), each[0].dtype)
    for k, values in enumerate(each):
        found[k] = found[k - 1] if k and values is each[k - 1] else values.take(order)
    return found


__all__ = ["NEVER", "as_measured", "at_once", "replay", "replay_all"]
