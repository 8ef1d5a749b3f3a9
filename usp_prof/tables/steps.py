"""When did each step run on this rank?"""

from __future__ import annotations

from usp_prof.model.schema import RANK, Schema, integer, text

SCHEMA = Schema(
    "steps",
    "Steps of each rank: contiguous windows of device time, and the host marks behind them.",
    (
        RANK,
        integer("step", "Step number as the trace counts it."),
        integer("start_ns", "Start of the device window, on this rank's clock.", "ns"),
        integer("end_ns", "End of the device window: the start of the next step's, or the last device activity.", "ns"),
        integer("host_start_ns", "Start of the host mark.", "ns"),
        integer("host_end_ns", "End of the host mark.", "ns"),
        text("source", "profiler_step, mark, annotation, pattern or window (the whole trace, no step known)."),
    ),
)
