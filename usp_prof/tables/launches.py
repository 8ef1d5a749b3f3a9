"""Which host calls put work on the device, and how long did the work wait?"""

from __future__ import annotations

from usp_prof.model.schema import DURATION, EVENT, RANK, START, STEP, Schema, flag, integer, text

SCHEMA = Schema(
    "launches",
    "Runtime and driver calls of the host: launches, copies, synchronisations.",
    (
        RANK,
        EVENT,
        text("name", "Name of the call."),
        text("kind", "launch, graph_launch, memcpy, memset, sync, event, malloc or other."),
        text("thread", "Host thread."),
        START,
        DURATION,
        integer("correlation", "Correlation id."),
        integer("kernels", "Number of device events it started (more than one for graphs)."),
        integer("delay_ns", "From the start of the call to the start of its first device work; -1 without any.", "ns"),
        flag("blocking", "The call waits for the device."),
        STEP,
    ),
)
