"""What ran on the device, what kind of work was it, and who launched it?"""

from __future__ import annotations

from usp_prof.model.schema import DURATION, EVENT, RANK, START, STEP, Schema, flag, integer, real, text

SCHEMA = Schema(
    "kernels",
    "Device work: kernels, copies and memsets of GPU traces, linked to launch and CPU op where the trace tells.",
    (
        RANK,
        EVENT,
        text("name", "Kernel name."),
        text("kind", "compute, communication, memcpy or memset, by the classification table."),
        text("library", "Library of a communication kernel (nccl, rccl, deepep, nvshmem, multimem, ...)."),
        integer("device", "Device index."),
        integer("stream", "Stream."),
        integer("lane", "Lane within the stream: 0, and 1, 2, ... where kernels of one stream overlap."),
        START,
        DURATION,
        integer("correlation", "Correlation id."),
        integer("launch_event", "Event of the runtime or driver call that launched it; -1 when unlinked."),
        integer("op_event", "Event of the innermost CPU op around the launch; -1 when unlinked."),
        text("op", "Name of that CPU op."),
        integer("graph", "CUDA graph id when launched by a graph."),
        integer("bytes", "Bytes moved by a copy or memset.", "bytes"),
        real("occupancy", "Estimated achieved occupancy, as written.", "%"),
        integer("blocks", "Number of thread blocks in the grid."),
        integer("threads_per_block", "Threads in a block."),
        flag("before_window", "Launched before recording began: its launch is not in the trace."),
        STEP,
    ),
)
