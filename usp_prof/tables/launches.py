"""Table of launches: host calls that put work on the device, and how long the work waited."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from usp_prof.model.schema import DURATION, EVENT, RANK, START, STEP, Schema, flag, integer, text
from usp_prof.tables.build import table
from usp_prof.tables.completeness.device_work import Promises
from usp_prof.tables.events.frame import EventFrame, compact
from usp_prof.tables.events.host_calls import BLOCKING, CALL_KINDS, LOST_KINDS, kind_of
from usp_prof.tables.events.links import Links
from usp_prof.tables.steps import Steps

SCHEMA = Schema(
    "launches",
    "Runtime and driver calls of the host: launches, copies, synchronizations.",
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
        text("lost", "communication, memcpy or compute for a call whose device work is missing; empty for all others."),
        STEP,
    ),
)


def build(frame: EventFrame, links: Links, promised: Promises, steps: Steps) -> pa.Table:
    """Build the table: every runtime and driver call, in order of start."""
    rows = links.calls
    count, delay = _work_of_each(frame, links)
    columns = {
        **frame.event_columns(rows),
        "name": frame.text("name", rows),
        "kind": compact(frame.by_name(rows, lambda name: CALL_KINDS.index(kind_of(name)), np.int64), list(CALL_KINDS)),
        "thread": frame.text("thread", rows),
        "correlation": frame.ints("correlation", rows),
        "kernels": count,
        "delay_ns": delay,
        "blocking": frame.by_name(rows, lambda name: BLOCKING.search(name) is not None),
        "lost": compact(promised.lost_kind, list(LOST_KINDS)),
        "step": steps.of_host(frame.start[rows]),
    }
    return table(SCHEMA, columns, len(rows))


def _work_of_each(frame: EventFrame, links: Links) -> tuple[np.ndarray, np.ndarray]:
    """Count the device events of each call, and the delay of its first one; earlier times count as 0."""
    place_of_row = np.full(len(frame) + 1, -1, np.int64)
    place_of_row[links.calls] = np.arange(len(links.calls))
    linked = links.call >= 0
    place, start = place_of_row[links.call[linked]], frame.start[links.work[linked]]
    count = np.bincount(place, minlength=len(links.calls))
    first = np.full(len(links.calls), np.iinfo(np.int64).max)
    first[place[::-1]] = start[::-1]  # sorted by start: the first one is written last
    delay = np.where(count > 0, np.maximum(first - frame.start[links.calls], 0), -1)
    return count, delay
