"""What did the host run? CPU ops with shapes, nested."""

from __future__ import annotations

from usp_prof.model.schema import DURATION, EVENT, RANK, START, STEP, Schema, integer, text

SCHEMA = Schema(
    "ops",
    "CPU ops (aten, c10d, autograd, custom) with shapes and nesting.",
    (
        RANK,
        EVENT,
        text("name", "Op name."),
        text("thread", "Host thread."),
        START,
        DURATION,
        integer("self_ns", "Duration less that of the ops directly inside it.", "ns"),
        integer("depth", "How many ops of the same thread enclose it."),
        integer("parent", "Event of the op that directly encloses it; -1 at the top."),
        text("input_dims", "Shapes of the inputs as JSON text."),
        text("input_types", "Types of the inputs as JSON text."),
        text("concrete_inputs", "Scalar inputs as JSON text."),
        integer("external_id", "External id."),
        integer("sequence", "Autograd sequence number; ties a backward op to its forward op."),
        text("phase", "forward, backward, optimizer or empty, from marks, threads and names."),
        STEP,
    ),
)
