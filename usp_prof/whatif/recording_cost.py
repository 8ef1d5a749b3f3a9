"""Recording cost: how much longer a step is because it is recorded, and gains of changes without that cost.

Recording slows the host, not the device. If the device waits for the host (for launches or for input), the recorded
step is longer, and a change that removes these waits would seem to save the recording cost too. So a known cost is
treated as part of the time that the device waits for the host. It shrinks with that time, and the rest of it is
subtracted from the step after the change. The start of the profiler lengthens the first recorded step and is part of
the cost.

If the cost is unknown, the run is replayed, with and without the change, with hosts that spend less time on each op. A
pause of one host, for example, contains no ops and is no cost. Only if the devices of all ranks idle longer in their
first step, the cost may be in any of their waits, as a known one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from usp_prof.columns.arrays import Ints
from usp_prof.columns.intervals import union
from usp_prof.columns.rows import distinct
from usp_prof.contract import Manifest
from usp_prof.model.edit import Edit
from usp_prof.replay.build import graph_of
from usp_prof.replay.graph import Graph
from usp_prof.replay.host_gaps import holds_thought, think_times
from usp_prof.replay.rank_clocks import rank_clocks
from usp_prof.replay.step_times import StepTimes, step_times, timeline_of, unedited
from usp_prof.tables.table_set import TableSet, memoized
from usp_prof.whatif.edits import Request, apply
from usp_prof.whatif.layout import Layout, layout_of

OP_NS = 5_000
"""Assumed recording cost per op on the host if it was not measured. On an H200 host, in steps whose device waited for
launches, it was 2.6 to 7.3 us with shapes and allocations."""
LEAST = 0.005
"""A cost below this share of the step is ignored."""


@dataclass(frozen=True, slots=True)
class RecordingCost:
    """Time that recording adds to the mean step: measured, or an upper bound."""

    ns: float = 0.0
    is_known: bool = True
    waited_ns: float = 0.0
    """Time that the device waits for launches or input in the recorded step."""
    host_ns: float = 0.0
    """Time that recording may add to the host; the step shows only the part that the device waits for."""

    def matters(self, before_ns: float) -> bool:
        """Return whether the cost is noticeable in a recorded step."""
        return self.ns > LEAST * before_ns

    def hidden_ns(self, after_ns: float, device_ns: float) -> float:
        """Return the hidden cost that a change exposes because the device then waits longer for the host."""
        return min(max(0.0, after_ns - device_ns - self.waited_ns), max(0.0, self.host_ns - self.ns))

    def taken_from(self, after_ns: float, device_ns: float) -> float:
        """Return the step after a change without recording; the cost shrinks in proportion to waits for the host.

        `after_ns` is the recorded step after the change, `device_ns` the same if the device never waited for the host.
        """
        still_waits = min(1.0, max(0.0, after_ns - device_ns) / self.waited_ns)
        return after_ns - still_waits * self.ns


@memoized("whatif recording cost")
def recording_cost(tables: TableSet) -> RecordingCost:
    """Return the recording cost, from steps that were timed before recording or, without these, from the ops.

    It is limited to the time that the device waits for launches or input. Any further difference has another cause,
    such as a pause in the recorded steps only.
    """
    before = unedited(tables)
    of_device = list(filter(tables.ran_on_gpu, tables.ranks))
    manifest = tables.manifest or Manifest()
    if (
        not of_device or not len(before.step) or manifest.options.get("synthetic")
    ):  # a synthetic run has no recording cost
        return RecordingCost()
    recorded_ns = before.mean_measured_ns
    ops = sum(len(tables.columns("ops", rank)) / max(1, len(tables.columns("steps", rank))) for rank in of_device)
    host_ns = OP_NS * ops / len(of_device)
    if not host_ns:
        return RecordingCost()
    times = [time for rank in tables.ranks if (time := manifest.unrecorded_step_ns.get(str(rank), 0.0)) > 0]
    started_ns = _profiler_start_ns(tables, before)
    if not times and started_ns <= LEAST * recorded_ns:
        return RecordingCost(max(0.0, recorded_ns - unrecorded_ns(tables, graph_of(tables))), is_known=False)
    cost_ns = max(0.0, recorded_ns - sum(times) / len(times)) if times else host_ns + started_ns
    waited_ns = max(0.0, recorded_ns - without_host(tables, graph_of(tables), layout_of(tables)))
    return RecordingCost(min(cost_ns, waited_ns), bool(times), waited_ns, host_ns)


def unrecorded_ns(tables: TableSet, graph: Graph) -> float:
    """Return the mean step of a graph if recording cost each host as much as it may at most."""
    recorded = graph_of(tables)
    if graph is recorded:
        return tables.memo("whatif unrecorded step", lambda: _unrecorded_ns(tables, graph))
    return _unrecorded_ns(tables, graph)


def _unrecorded_ns(tables: TableSet, graph: Graph) -> float:
    cost = graph.spread(tables.memo("whatif recording cost by node", lambda: _cost_by_node(tables)), missing=0)
    edges = graph.edges
    lag = np.where(
        holds_thought(edges), np.maximum(edges.lag - cost[edges.target], np.minimum(edges.lag, 0)), edges.lag
    )
    gap = np.maximum(graph.gap - cost, np.minimum(graph.gap, 0))
    free = graph.with_changes(gap=gap, edges=replace(edges, lag=lag))
    return step_times(tables, free, timeline_of(tables, free)).mean_replayed_ns


def _cost_by_node(tables: TableSet) -> Ints:
    """Return how much of the think time before each node is at most the cost of recording the ops in it."""
    graph, clocks = graph_of(tables), rank_clocks(tables)
    nodes, think = graph.nodes, think_times(graph)
    cost = np.zeros(len(nodes), np.int64)
    for rank in tables.ranks:
        rows = nodes.of_rank(rank)
        rows = rows[think[rows] > 0]
        op_starts = np.sort(clocks.align_host(rank, tables.columns("ops", rank)["start_ns"]))
        began = nodes.start[rows] - think[rows]
        cost[rows] = OP_NS * (np.searchsorted(op_starts, nodes.end[rows]) - np.searchsorted(op_starts, began))
    return cost


def _profiler_start_ns(tables: TableSet, before: StepTimes) -> float:
    """Return how much the first recorded step, which may contain the start of the profiler, lengthens the mean step.

    The start keeps every rank's device idle, so it is no longer than on the device that idles the least longer in this
    step than in later ones. A device that waits in a collective for another rank is not idle.
    """
    nodes, clocks = graph_of(tables).nodes, rank_clocks(tables)
    steps = distinct(before.step[before.is_complete])
    if len(steps) < 2:
        return 0.0
    mean_ns = [float(before.measured_ns[before.step == step].mean()) for step in steps.tolist()]
    longer_ns = [mean_ns[0] - float(np.median(mean_ns[1:]))]
    for rank in distinct(before.rank).tolist():
        rows = nodes.of_rank(rank)
        rows = rows[~nodes.of_host[rows]]
        begin, end = (clocks.align_device(rank, tables.columns("steps", rank)[name]) for name in ("start_ns", "end_ns"))
        idle_ns = end - begin - union(nodes.start[rows], nodes.end[rows]).within(begin, end)
        if len(idle_ns) > 1:
            longer_ns.append(float(idle_ns[0] - np.median(idle_ns[1:])))
    return max(0.0, min(longer_ns)) / len(steps)


def without_host(tables: TableSet, graph: Graph, layout: Layout) -> float:
    """Return the mean step of a graph whose device waits neither for launches nor for input.

    Recording cannot lengthen this step.
    """
    free = graph
    for kind in ("no_input_wait", "no_launch_gaps"):
        free = apply(free, Request(Edit(kind), tables, layout))
    return step_times(tables, free, timeline_of(tables, free)).mean_replayed_ns
