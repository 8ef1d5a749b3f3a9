"""When would everything have run? The longest path through a graph, segment by segment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from usp_prof.whatif.graph import NEVER, Graph, Timeline
from usp_prof.whatif.plan import Plan, make_plan

if TYPE_CHECKING:
    from usp_prof.whatif.graph import Ints


def replay(graph: Graph, plan: Plan | None = None) -> Timeline:
    """Replay a graph; the plan of the unedited graph serves all its edits."""
    plan = plan or make_plan(graph)
    start, end = graph.nodes.start.copy(), graph.nodes.end.copy()
    edges, lane = graph.edges, graph.nodes.lane.tolist()
    first_edge = np.searchsorted(edges.target, plan.begin).tolist()
    begin = plan.begin.tolist()
    run = graph.gap + graph.duration
    carried = np.cumsum(run)
    bound = graph.earliest.copy()
    # A segment of nodes a..b: start[n] = offset[n] + max over j <= n of (bound[j] - offset[j]), where offset adds up
    # the durations and gaps before n.
    offset = carried - graph.duration
    for piece in plan.order:
        if piece < 0:
            _finish_call(graph, plan.members[-1 - piece], start, end)
            continue
        a, b = begin[piece], begin[piece + 1]
        low, high = first_edge[piece], first_edge[piece + 1]
        if high > low:
            source = edges.source[low:high]
            arrived = np.where(edges.at_end[low:high], end[source], start[source]) + edges.lag[low:high]
            np.maximum.at(bound, edges.target[low:high], arrived)
        if a and lane[a] == lane[a - 1]:
            bound[a] = max(bound[a], end[a - 1] + graph.gap[a])
        if b - a == 1:
            start[a] = bound[a]
            end[a] = start[a] + graph.duration[a]
            continue
        here = offset[a:b]
        start[a:b] = np.maximum.accumulate(bound[a:b] - here) + here
        end[a:b] = start[a:b] + graph.duration[a:b]
    return Timeline(start, end)


def _finish_call(graph: Graph, rows: Ints, start: Ints, end: Ints) -> None:
    tied = rows[graph.tied[rows]]
    end[tied] = np.maximum(start[tied], start[rows].max() + graph.transfer[tied])


__all__ = ["NEVER", "replay"]
