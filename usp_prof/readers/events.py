"""What happened, exactly as the file says it? One row for each complete or instant event of a trace."""

from __future__ import annotations

from usp_prof.model.schema import DURATION, RANK, START, Schema, integer, text

SCHEMA = Schema(
    "events",
    "Every duration and instant event of the traces, as written; nothing is dropped, merged or rounded.",
    (
        RANK,
        integer("event", "Place among the events of its file, from 0; other tables point here."),
        text("phase", "Chrome's phase: X (complete), i (instant), b/e, ...; flow and metadata events are not kept."),
        text("category", "Category in today's spelling (cpu_op, kernel, gpu_memcpy, cuda_runtime, ...)."),
        text("name", "Name as written."),
        text("process", "The trace's pid as text."),
        text("thread", "The trace's tid as text; for device events Kineto writes the stream here."),
        START,
        DURATION,
        integer("device", "Device index from the arguments."),
        integer("stream", "Stream from the arguments (also on Triton launchers, which are CPU ops)."),
        integer("correlation", "Correlation id that ties a launch to its device work."),
        integer("external_id", "External id that ties device work to a CPU op."),
        text("args", "The arguments as JSON text, as written."),
    ),
)
