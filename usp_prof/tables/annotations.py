"""Which ranges did people and libraries mark?"""

from __future__ import annotations

from usp_prof.model.schema import DURATION, EVENT, RANK, START, STEP, Schema, flag, text

SCHEMA = Schema(
    "annotations",
    "User annotations of host and device, and Python function events are not among them.",
    (
        RANK,
        EVENT,
        text("name", "Name of the range."),
        text("thread", "Host thread or device stream."),
        flag("on_device", "The range's projection onto the device (gpu_user_annotation)."),
        START,
        DURATION,
        text("area", "Area of a mark of our grammar (pp, cp, ep, dp, train, pace, fault); empty for others."),
        text("what", "What the mark says (F, B, ring_wait, optimizer, ...)."),
        STEP,
    ),
)
