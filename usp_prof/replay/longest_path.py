"""Longest path: start and end time of every node in the replay graph.

A loop over the nodes would work. For speed, it is replaced with a few array operations per round of the plan:

  1. A segment is replayed in one operation. `offset` is the sum of the durations and gaps before each node, and `bound`
     is the earliest start that its edges allow:

         start[n] = offset[n] + max over j <= n of (bound[j] - offset[j])

         durations 3 2 4    offset 0 3 5    bound 0 6 7    bound - offset 0 3 2, its running maximum 0 3 3
         so the nodes start at 0 6 8

  2. One running maximum replays all segments of a round. From one segment to the next, offsets drop by `room`, which
     exceeds the length of the run. This raises `bound - offset` above all earlier values.
  3. All members of a call end `transfer` after the last one starts.
  4. Graphs with the same dependencies are replayed in one pass, as the columns of each array. A round has few nodes, so
     its cost is that of calling NumPy, for one graph or for several.

Measured on 467,712 nodes with 408,948 edges in 18,720 rounds: 0.09 CPU s for the plan, 0.09 s for one graph and 0.02 s
for each further one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from usp_prof.columns.arrays import Ints
from usp_prof.replay.graph import Graph, Timeline
from usp_prof.replay.plan import Block, Plan, make_plan, span

_REACH, _FARTHER = 16, 64


def replay(graph: Graph, plan: Plan | None = None) -> Timeline:
    """Replay a graph; `plan` may be that of any graph with the same dependencies."""
    return replay_together([graph], plan)[0]


def replay_together(graphs: Sequence[Graph], plan: Plan | None = None) -> list[Timeline]:
    """Replay graphs with the same nodes and dependencies in one pass."""
    reach = _REACH
    plan = plan or make_plan(graphs[0], reach)
    while (timelines := _replayed(graphs, plan)) is None:  # an edit made the run longer than the plan has room for
        reach *= _FARTHER
        plan = make_plan(graphs[0], reach)
    return timelines


def _replayed(graphs: Sequence[Graph], plan: Plan) -> list[Timeline] | None:
    """Return the replayed times, or `None` if the plan's room is too small to keep the segments of a round apart."""
    nodes, members = graphs[0].nodes, plan.nodes[plan.members]
    if not len(nodes):
        return [Timeline(nodes.start, nodes.end) for _ in graphs]
    origin = int(nodes.start.min())
    # Times that other nodes wait for, relative to the run's first start: the start of each of the plan's nodes, then
    # the end of each call member, with one column per graph. They are initialized with measured values, which matters
    # only if nodes wait for each other in a cycle.
    measured = np.concatenate([nodes.start.take(plan.nodes), nodes.end[members]]) - origin
    moments = np.repeat(measured[:, np.newaxis], len(graphs), axis=1)
    transfer = np.stack([graph.transfer[members] for graph in graphs], axis=1)
    least = -span(graphs[0])
    for block in plan.blocks:
        offset, bound, lags = _prepared(graphs, block, origin, least)
        _take_rounds(plan, block, moments, (offset, bound, lags, transfer))
        start_of_head = moments[block.first :].take(block.heads, axis=0)
        if (start_of_head - offset[block.heads] != bound[block.heads]).any():
            return None
    return [_timeline(graph, plan, column + origin) for graph, column in zip(graphs, moments.T, strict=True)]


def _prepared(graphs: Sequence[Graph], block: Block, origin: int, least: int) -> tuple[Ints, Ints, Ints]:
    """Return the offset and the first bound (at least `least`) of each node of a block, and each dependency's lag."""
    arrivals, columns = block.arrivals, []
    by_edge, after_end = np.flatnonzero(arrivals.edge >= 0), np.flatnonzero(arrivals.ended >= 0)
    edge, ended = arrivals.edge[by_edge], arrivals.ended[after_end]
    for graph in graphs:
        duration, gap = graph.duration.take(block.nodes), graph.gap.take(block.nodes)
        offset = np.cumsum(duration + gap) - duration - block.drop
        bound = np.maximum(graph.earliest.take(block.nodes) - origin, least) - offset
        # From a moment to the bound of the waiting node, less the node's offset.
        lags = gap.take(arrivals.target)
        lags[by_edge] = graph.edges.lag.take(edge)
        lags[after_end] += graph.duration.take(ended)
        columns.append((offset, bound, lags - offset.take(arrivals.target)))
    offset, bound, lags = (np.stack(arrays, axis=1) for arrays in zip(*columns, strict=True))
    return offset, bound, lags


def _take_rounds(plan: Plan, block: Block, moments: Ints, prepared: tuple[Ints, Ints, Ints, Ints]) -> None:
    """Fill `moments` round by round; `prepared` has the block's offsets, bounds and lags, and all transfers."""
    (offset, bound, lags, transfer), source, graph_count = prepared, block.arrivals.moment, moments.shape[1]
    start, ends = moments[block.first :], moments[len(plan.nodes) :]
    # NumPy's `maximum.at` is fast for flat arrays only.
    flat_bound = bound.reshape(-1)
    flat_target = (block.arrivals.target[:, np.newaxis] * graph_count + np.arange(graph_count)).reshape(-1)
    for is_call, begin, end, low, high in block.rounds:
        if is_call:  # all members end `transfer` after the last one starts
            starts = moments.take(plan.members[low:high], 0)
            last_starts = np.maximum.reduceat(starts, plan.first[begin:end])
            ended = last_starts.take(plan.call_of[low:high], 0)
            ended += transfer[low:high]
            np.maximum(starts, ended, out=ends[low:high])
            continue
        if high > low:
            arrived = moments.take(source[low:high], 0)
            arrived += lags[low:high]
            np.maximum.at(flat_bound, flat_target[low * graph_count : high * graph_count], arrived.reshape(-1))
        np.add(np.maximum.accumulate(bound[begin:end]), offset[begin:end], out=start[begin:end])


def _timeline(graph: Graph, plan: Plan, moments: Ints) -> Timeline:
    """Return the times of a graph's nodes in the graph's order."""
    start = moments.take(plan.place)
    end = start + graph.duration
    end[plan.nodes[plan.members[plan.ends]]] = moments[len(plan.nodes) :][plan.ends]
    return Timeline(start, end)
