"""Table of launches: host calls that put work on the device, and how long the work waited."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.model.schema import DURATION, EVENT, RANK, START, STEP, Schema, flag, integer, text
from usp_prof.tables.build import table
from usp_prof.tables.events.frame import compact

if TYPE_CHECKING:
    import pyarrow as pa

    from usp_prof.tables.completeness.device_work import Promises
    from usp_prof.tables.events.frame import EventFrame
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

_KINDS = ("launch", "graph_launch", "memcpy", "memset", "sync", "event", "malloc", "other")
LOST_COMMUNICATION, LOST_COPY, LOST_COMPUTE = "communication", "memcpy", "compute"
LOST_KINDS = ("", LOST_COMMUNICATION, LOST_COPY, LOST_COMPUTE)
"""Kinds of device work that a call promised and the trace lacks; empty for a call that lacks none."""
LAUNCHING = ("launch", "graph_launch", "memcpy", "memset")
"""Kinds of calls that put work on the device."""
_PATTERNS = (
    ("sync", r"Synchronize|StreamWaitValue"),
    ("graph_launch", r"GraphLaunch"),
    ("event", r"Event|StreamWaitEvent"),
    ("memcpy", r"Memcpy|MemcpyWithStream|Copy"),
    ("memset", r"Memset"),
    ("malloc", r"Malloc|MemAlloc|HostAlloc|cudaFree|MemFree|hipFree|MemMap|MemCreate"),
    ("launch", r"Launch"),
)
_COMPILED = tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in _PATTERNS)
# A plain copy returns when it is done; an Async copy does not. Freeing device memory waits for the device too.
_BLOCKING = re.compile(
    r"(Stream|Device|Event|Ctx)Synchronize|Memcpy(?!.*(Async|Batch|Peer))|hipMemcpyWithStream|^(cuda|hip)Free$"
)


def kind_of(name: str) -> str:
    """Return the kind of a runtime or driver call, by its name."""
    return next((kind for kind, pattern in _COMPILED if pattern.search(name)), "other")


def build(frame: EventFrame, links: Links, promised: Promises, steps: Steps) -> pa.Table:
    """Build the table: every runtime and driver call, in order of start."""
    rows = links.calls
    count, delay = _work_of_each(frame, links)
    columns = {
        "rank": frame.rank,
        "event": frame.event[rows],
        "name": frame.text("name", rows),
        "kind": compact(frame.by_name(rows, lambda name: _KINDS.index(kind_of(name)), np.int64), list(_KINDS)),
        "thread": frame.text("thread", rows),
        "start_ns": frame.start[rows],
        "dur_ns": frame.duration[rows],
        "correlation": frame.ints("correlation", rows),
        "kernels": count,
        "delay_ns": delay,
        "blocking": frame.by_name(rows, lambda name: _BLOCKING.search(name) is not None),
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
