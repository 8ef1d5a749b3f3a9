"""Which ranks are there, where did they run, and which file tells of each?"""

from __future__ import annotations

from usp_prof.model.schema import RANK, Schema, integer, text

SCHEMA = Schema(
    "ranks",
    "One row for each rank that was read.",
    (
        RANK,
        text("file", "File it was read from."),
        text("rank_source", "distributedInfo, manifest or name."),
        integer("world_size", "World size as recorded; -1 when unknown."),
        text("host", "Host name as recorded."),
        text("backend", "Communication backend."),
        text("device", "Device name as recorded; empty on CPU traces."),
        text("device_kind", "cuda, rocm, mtia, xpu or cpu."),
        integer("base_ns", "baseTimeNanoseconds of the file; 0 when missing.", "ns"),
        integer("first_ns", "First event's start.", "ns"),
        integer("last_ns", "Last event's end.", "ns"),
        integer("events", "Number of events."),
        integer("bytes", "Size of the file as JSON.", "bytes"),
        text("torch", "PyTorch version as recorded."),
        text("trace_id", "Trace id."),
    ),
)
