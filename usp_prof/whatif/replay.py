"""When would everything have run? The longest path through a graph, round by round of segments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.whatif.graph import NEVER, Graph, Timeline
from usp_prof.whatif.plan import Plan, make_plan, span

if TYPE_CHECKING:
    from usp_prof.whatif.graph import Ints

_REACH, _FARTHER = 16, 64


def replay(graph: Graph, plan: Plan | None = None) -> Timeline:
    """Replay a graph; the plan of the unedited graph serves all its edits."""
    plan, reach = plan or make_plan(graph), _REACH
    while (timeline := _attempt(graph, plan)) is None:  # an edit made the run so much longer
        reach *= _FARTHER
        plan = make_plan(graph, reach)
    return timeline


@dataclass(frozen=True, slots=True, eq=False)
class _Arrivals:
    """What comes to the nodes of the plan from elsewhere, lane predecessors of heads too, sorted by target."""

    source: Ints
    """Of starts, then ends."""
    target: Ints
    lag: Ints


def _arrivals(graph: Graph, plan: Plan) -> _Arrivals:
    edges, lane, count = graph.edges, graph.nodes.lane, len(graph.nodes)
    head = plan.nodes[plan.heads]
    follows = head[(head > 0) & (lane[head] == lane[head - 1])]
    source = np.concatenate(
        [plan.place[edges.source] + np.where(edges.at_end, count, 0), plan.place[follows - 1] + count]
    )
    target = np.concatenate([plan.place[edges.target], plan.place[follows]])
    order = np.argsort(target, kind="stable")
    return _Arrivals(source[order], target[order], np.concatenate([edges.lag, graph.gap[follows]])[order])


def _attempt(graph: Graph, plan: Plan) -> Timeline | None:
    """Replay; `None` where the plan's room was too little to hold the segments of a round apart."""
    nodes, count = graph.nodes, len(graph.nodes)
    if not count:
        return Timeline(nodes.start, nodes.end)
    origin, arrivals = int(nodes.start.min()), _arrivals(graph, plan)
    moments = np.concatenate([nodes.start[plan.nodes], nodes.end[plan.nodes]]) - origin
    start, end = moments[:count], moments[count:]
    duration = graph.duration[plan.nodes]
    # A segment of nodes a..b: start[n] = offset[n] + max over j <= n of (bound[j] - offset[j]), where offset adds up
    # the durations and gaps before n.
    offset = np.cumsum(graph.gap[plan.nodes] + duration) - duration - plan.drop
    bound = np.maximum(graph.earliest[plan.nodes], origin - span(graph)) - origin
    tied, transfer = graph.tied[plan.nodes][plan.members], graph.transfer[plan.nodes][plan.members]
    edge = np.searchsorted(arrivals.target, plan.cuts).tolist()
    for each, (low, high) in zip(plan.rounds, edge, strict=True):
        if each.is_calls:
            part = slice(each.first_member, each.last_member)
            rows = plan.members[part]
            began = start[rows]
            last = np.maximum.reduceat(began, plan.first[each.begin : each.end] - each.first_member)
            done = np.maximum(began, last[plan.call_of[part] - each.begin] + transfer[part])
            end[rows] = np.where(tied[part], done, end[rows])
            continue
        here = slice(each.begin, each.end)
        if high > low:
            arrived = moments[arrivals.source[low:high]] + arrivals.lag[low:high]
            np.maximum.at(bound, arrivals.target[low:high], arrived)
        start[here] = np.maximum.accumulate(bound[here] - offset[here]) + offset[here]
        end[here] = start[here] + duration[here]
    if (start[plan.heads] != bound[plan.heads]).any():
        return None
    return Timeline(start[plan.place] + origin, end[plan.place] + origin)


__all__ = ["NEVER", "replay"]
