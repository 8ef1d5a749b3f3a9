"""Table of annotations: ranges marked by users and libraries."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from usp_prof.columns.rows import lookup
from usp_prof.contract import AREAS, parse_mark
from usp_prof.model.schema import DURATION, EVENT, RANK, START, STEP, Schema, flag, text
from usp_prof.tables.build import table
from usp_prof.tables.events.frame import EventFrame, compact
from usp_prof.tables.steps import Steps

SCHEMA = Schema(
    "annotations",
    "User annotations of host and device, without Python function events.",
    (
        RANK,
        EVENT,
        text("name", "Name of the range."),
        text("thread", "Host thread or device stream."),
        flag("on_device", "The range's projection onto the device (gpu_user_annotation)."),
        START,
        DURATION,
        text("area", "Area of a usp-prof mark (pp, cp, ep, dp, train, pace, fault); empty for other annotations."),
        text("what", "Content of the mark (F, B, ring_wait, optimizer, ...)."),
        STEP,
    ),
)


def build(frame: EventFrame, steps: Steps) -> pa.Table:
    """Build the table: annotations of host and device in order of start, outer ones first."""
    rows = frame.rows("user_annotation", "gpu_user_annotation")
    rows = rows[np.lexsort((rows, -frame.duration[rows], frame.start[rows]))]
    codes, values = frame.codes("category")
    device = lookup([value == "gpu_user_annotation" for value in values], codes[rows], missing=False)
    areas, whats = ["", *AREAS], [""]

    def area(name: str) -> int:
        mark = parse_mark(name)
        return areas.index(mark.area) if mark else 0

    def word_code(name: str) -> int:
        mark = parse_mark(name)
        if mark is None:
            return 0
        if mark.what not in whats:
            whats.append(mark.what)
        return whats.index(mark.what)

    start = frame.start[rows]
    columns = {
        **frame.event_columns(rows),
        "name": frame.text("name", rows),
        "thread": frame.text("thread", rows),
        "on_device": device,
        "area": compact(frame.by_name(rows, area, np.int64), areas),
        "what": compact(frame.by_name(rows, word_code, np.int64), whats),
        "step": np.where(device, steps.of_device(start), steps.of_host(start)),
    }
    return table(SCHEMA, columns, len(rows))
