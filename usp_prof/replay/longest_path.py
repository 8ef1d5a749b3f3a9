"""Longest path through a graph: when each node begins and ends, given all that it waits for.

The plan cuts lanes into segments that are entered only at their head, and orders segments and calls in rounds. Within a
segment

    start[n] = offset[n] + max over j <= n of (bound[j] - offset[j])

where `offset` adds up the durations and gaps before n, and `bound` is the earliest moment that the edges into n allow.
So one running maximum replays a segment; with offsets that drop behind each segment it replays all of a round at once.

Measured on 604,872 nodes with 423,084 edges (8 ranks of 200,000 events): 0.11 CPU s for the plan and 0.15 s for each
replay. One plain loop over the nodes took 0.49 s, and 0.17 s to make lists of the arrays first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.replay.graph import Timeline
from usp_prof.replay.plan import make_plan, span

if TYPE_CHECKING:
    from usp_prof.replay.graph import Flags, Graph, Ints
    from usp_prof.replay.plan import Plan

_REACH, _FARTHER = 16, 64


@dataclass(frozen=True, slots=True, eq=False)
class _Arrivals:
    """What nodes wait for, sorted by `target`: `bound[target]` is at least `moments[moment] + lag`."""

    target: Ints
    """Place of the waiting node in the plan's order."""
    moment: Ints
    """Place in `moments` (see `_replayed`)."""
    lag: Ints


def replay(graph: Graph, plan: Plan | None = None) -> Timeline:
    """Replay a graph; the plan of the unedited graph serves all its edits."""
    reach = _REACH
    plan = plan or make_plan(graph, reach)
    while (timeline := _replayed(graph, plan)) is None:  # an edit made the run longer than the plan has room for
        reach *= _FARTHER
        plan = make_plan(graph, reach)
    return timeline


def _replayed(graph: Graph, plan: Plan) -> Timeline | None:
    """Replay; `None` where the plan's room is too small to hold the segments of a round apart.

    All arrays but `graph`'s are in the plan's order, and their times are relative to the run's first start.
    """
    nodes, count = graph.nodes, len(graph.nodes)
    if not count:
        return Timeline(nodes.start, nodes.end)
    origin = int(nodes.start.min())
    duration = graph.duration.take(plan.nodes)
    offset = np.cumsum(duration + graph.gap.take(plan.nodes)) - duration - plan.drop
    earliest = np.maximum(graph.earliest.take(plan.nodes), origin - span(graph)) - origin
    bound = earliest - offset
    # Moments that others wait for: each node's start less its offset, then the end of each member of a call. They
    # begin as measured, which only shows where nodes wait for each other in a circle.
    members = plan.nodes[plan.members]
    moments = np.concatenate([nodes.start.take(plan.nodes) - origin - offset, nodes.end[members] - origin])
    start_less_offset, ends = moments[:count], moments[count:]
    is_tied = graph.tied[members]
    arrivals = _arrivals(graph, plan, offset, duration, is_tied)
    _take_rounds(plan, moments, bound, arrivals, offset[plan.members], graph.transfer[members])
    if (start_less_offset[plan.heads] != bound[plan.heads]).any():
        return None
    start = start_less_offset + offset + origin
    end = start + duration
    end[plan.members[is_tied]] = ends[is_tied] + origin
    return Timeline(start.take(plan.place), end.take(plan.place))


def _arrivals(graph: Graph, plan: Plan, offset: Ints, duration: Ints, is_tied: Flags) -> _Arrivals:
    """Bring edges into the plan's order, and with them the end of the lane's node before each segment."""
    edges = graph.edges
    follows = np.flatnonzero(plan.before >= 0)
    heads = plan.heads[follows]
    source = np.concatenate([plan.place[edges.source], plan.before[follows]])
    target = np.concatenate([plan.place[edges.target], heads])
    at_end = np.concatenate([edges.at_end, np.ones(len(heads), dtype=bool)])
    lag = np.concatenate([edges.lag, graph.gap[plan.nodes[heads]]])
    # Place in `moments` of the end of a tied member; -1 for other nodes, which end when their duration is over.
    end_of_tied = np.full(len(offset), -1, np.int64)
    end_of_tied[plan.members[is_tied]] = len(offset) + np.flatnonzero(is_tied)
    moment = np.where(at_end & (end_of_tied[source] >= 0), end_of_tied[source], source)
    is_start = moment < len(offset)
    lag = lag + np.where(is_start, offset[source] + np.where(at_end, duration[source], 0), 0) - offset[target]
    order = np.argsort(target, kind="stable")
    return _Arrivals(target[order], moment[order], lag[order])


def _take_rounds(
    plan: Plan, moments: Ints, bound: Ints, arrivals: _Arrivals, member_offset: Ints, transfer: Ints
) -> None:
    """Fill `moments` round by round; `member_offset` and `transfer` have an entry for each member of a call."""
    start_less_offset, ends = moments[: len(bound)], moments[len(bound) :]
    first_arrival = iter(np.searchsorted(arrivals.target, plan.bounds).tolist())
    low = next(first_arrival)
    for begin, end, first_member, last_member in plan.rounds:
        if first_member >= 0:  # calls: all members end `transfer` after the last of them began
            part = slice(first_member, last_member)
            begun = start_less_offset[plan.members[part]] + member_offset[part]
            last_begun = np.maximum.reduceat(begun, plan.first[begin:end])
            ends[part] = np.maximum(begun, last_begun[plan.call_of[part]] + transfer[part])
            continue
        high = next(first_arrival)
        if high > low:
            arrived = moments[arrivals.moment[low:high]] + arrivals.lag[low:high]
            np.maximum.at(bound, arrivals.target[low:high], arrived)
        low = high
        np.maximum.accumulate(bound[begin:end], out=start_less_offset[begin:end])
