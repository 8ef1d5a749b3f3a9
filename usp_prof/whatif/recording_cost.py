"""Recording cost: by how much a step is longer for being recorded, and what a change saves of one that is not.

Recording slows the host, not the device. Where the device waits for launches a recorded step is longer, and a change
that frees it of the host seems to save that as well. So the cost is taken for a part of what the device waits for
launches: it shrinks as that does, and what is left of it is in no unrecorded step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from usp_prof.contract import Manifest
from usp_prof.model.edit import Edit
from usp_prof.replay.build import graph_of
from usp_prof.replay.step_times import step_times, timeline_of, unedited
from usp_prof.whatif.edits import Request, apply
from usp_prof.whatif.layout import layout_of

if TYPE_CHECKING:
    from usp_prof.replay.graph import Graph
    from usp_prof.tables.table_set import TableSet
    from usp_prof.whatif.layout import Layout


OP_NS = 5_000
"""What recording an op may cost the host, where nobody measured it: on an H200's host, of steps whose device waited for
launches, 2.6 to 7.3 us with shapes and allocations."""
LEAST = 0.005
"""A cost below this share of the step changes no figure that anybody reads."""


@dataclass(frozen=True, slots=True)
class RecordingCost:
    """What recording adds to the mean step: measured, or what it may be at most."""

    ns: float = 0.0
    is_known: bool = True
    waited_ns: float = 0.0
    """How much longer the recorded step is than if the device waited for no launch."""
    host_ns: float = 0.0
    """What it may add to the host's time, of which the step shows only what the device waits for."""

    def matters(self, before_ns: float) -> bool:
        """Whether it can be seen in a recorded step."""
        return self.ns > LEAST * before_ns

    def hidden_ns(self, after_ns: float, device_ns: float) -> float:
        """Give what a change may bring to light: where the device waits for launches more than before, by what cost."""
        return min(max(0.0, after_ns - device_ns - self.waited_ns), max(0.0, self.host_ns - self.ns))

    def taken_from(self, after_ns: float, device_ns: float) -> float:
        """Give the step after a change if nobody records it: of the cost as much is taken out as the device waits.

        `after_ns` is the recorded step after the change, `device_ns` the same if the device waited for no launch.
        """
        still_waits = min(1.0, max(0.0, after_ns - device_ns) / self.waited_ns)
        return after_ns - still_waits * self.ns


def recording_cost(tables: TableSet) -> RecordingCost:
    """Tell what recording costs: from the steps that the recorder timed before it began, else from the ops.

    It is no more than what the device waits for launches: recorded steps that are longer still hold something else, as
    a pause that those before had not.
    """
    return tables.memo("whatif recording cost", lambda: _recording_cost(tables))


def _recording_cost(tables: TableSet) -> RecordingCost:
    before = unedited(tables)
    of_device = [rank for rank in tables.ranks if len(tables.columns("kernels", rank))]
    manifest = tables.manifest or Manifest()
    if not of_device or not len(before.step) or manifest.options.get("synthetic"):  # a made-up run is not recorded
        return RecordingCost()
    recorded_ns = before.mean_measured_ns
    ops = sum(len(tables.columns("ops", rank)) / max(1, len(tables.columns("steps", rank))) for rank in of_device)
    host_ns = OP_NS * ops / len(of_device)
    times = [time for rank in tables.ranks if (time := manifest.unrecorded_step_ns.get(str(rank), 0.0)) > 0]
    cost_ns = max(0.0, recorded_ns - sum(times) / len(times)) if times else host_ns
    waited_ns = max(0.0, recorded_ns - without_launches(tables, graph_of(tables), layout_of(tables)))
    return RecordingCost(min(cost_ns, waited_ns), bool(times), waited_ns, host_ns)


def without_launches(tables: TableSet, graph: Graph, layout: Layout) -> float:
    """Give the mean step of a graph whose device waits for no launch: what recording cannot make longer."""
    free = apply(graph, Request(Edit("no_launch_gaps"), tables, layout))
    return step_times(tables, free, timeline_of(tables, free)).mean_replayed_ns
