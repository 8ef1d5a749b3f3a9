"""Which pipeline action ran when? (stage, kind, micro-batch) from whatever marks the trace has."""

from __future__ import annotations

from usp_prof.model.schema import DURATION, EVENT, RANK, START, STEP, Schema, integer, text

SCHEMA = Schema(
    "actions",
    "Pipeline actions: forward, full backward, input-gradient and weight-gradient of one micro-batch on one stage.",
    (
        RANK,
        EVENT,
        text("kind", "F, B, I or W."),
        integer("stage", "Pipeline stage (virtual stages counted through)."),
        integer("micro_batch", "Micro-batch number."),
        START,
        DURATION,
        integer("device_start_ns", "First device activity launched inside; the start itself on CPU.", "ns"),
        integer("device_end_ns", "Last device activity launched inside ends; the end itself on CPU.", "ns"),
        text("source", "mark (ours), torch, megatron, deepspeed or inferred."),
        STEP,
    ),
)
