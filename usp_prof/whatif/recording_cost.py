"""Recording cost: how much longer a step is because it is recorded, and gains of changes without that cost.

Recording slows the host, not the device. If the device waits for the host (for launches or for input), the recorded
step is longer, and a change that removes these waits would seem to save the recording cost too. So the cost is treated
as part of the time that the device waits for the host. It shrinks with that time, and the rest of it is subtracted from
the step after the change. The start of the profiler lengthens the first recorded step and is part of the cost.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from usp_prof.contract import Manifest
from usp_prof.model.edit import Edit
from usp_prof.replay.build import graph_of
from usp_prof.replay.graph import Graph
from usp_prof.replay.step_times import StepTimes, step_times, timeline_of, unedited
from usp_prof.tables.table_set import TableSet
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


def recording_cost(tables: TableSet) -> RecordingCost:
    """Return the recording cost, from steps that were timed before recording or, without these, from the ops.

    It is limited to the time that the device waits for launches or input. Any further difference has another cause,
    such as a pause in the recorded steps only.
    """
    return tables.memo("whatif recording cost", lambda: _recording_cost(tables))


def _recording_cost(tables: TableSet) -> RecordingCost:
    before = unedited(tables)
    of_device = [rank for rank in tables.ranks if len(tables.columns("kernels", rank))]
    manifest = tables.manifest or Manifest()
    if (
        not of_device or not len(before.step) or manifest.options.get("synthetic")
    ):  # a synthetic run has no recording cost
        return RecordingCost()
    recorded_ns = before.mean_measured_ns
    ops = sum(len(tables.columns("ops", rank)) / max(1, len(tables.columns("steps", rank))) for rank in of_device)
    host_ns = OP_NS * ops / len(of_device)
    times = [time for rank in tables.ranks if (time := manifest.unrecorded_step_ns.get(str(rank), 0.0)) > 0]
    cost_ns = max(0.0, recorded_ns - sum(times) / len(times)) if times else host_ns + _profiler_start_ns(before)
    waited_ns = max(0.0, recorded_ns - without_host(tables, graph_of(tables), layout_of(tables)))
    return RecordingCost(min(cost_ns, waited_ns), bool(times), waited_ns, host_ns)


def _profiler_start_ns(before: StepTimes) -> float:
    """Return how much the first recorded step, which may contain the start of the profiler, lengthens the mean step."""
    steps = np.unique(before.step[before.is_complete])
    if len(steps) < 2:
        return 0.0
    mean_ns = [before.measured_ns[before.step == step].mean() for step in steps.tolist()]
    return max(0.0, float(mean_ns[0] - np.median(mean_ns[1:]))) / len(steps)


def without_host(tables: TableSet, graph: Graph, layout: Layout) -> float:
    """Return the mean step of a graph whose device waits neither for launches nor for input.

    Recording cannot lengthen this step.
    """
    free = graph
    for kind in ("no_input_wait", "no_launch_gaps"):
        free = apply(free, Request(Edit(kind), tables, layout))
    return step_times(tables, free, timeline_of(tables, free)).mean_replayed_ns
