"""Table of device waits: who waits for which stream, as CUDA reports it.

PyTorch records these waits with `experimental_config=_ExperimentalConfig(enable_cuda_sync_events=True)`. In all other
traces the table is empty, and `replay` infers the waits from times.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from usp_prof.columns.rows import lookup, rows_of
from usp_prof.model.schema import EVENT, RANK, Schema, integer, text
from usp_prof.tables.build import table
from usp_prof.tables.events.arguments import Field
from usp_prof.tables.events.frame import EventFrame, compact
from usp_prof.tables.events.links import Links

STREAM_WAIT, EVENT_SYNC, STREAM_SYNC, DEVICE_SYNC = "stream_wait", "event_sync", "stream_sync", "device_sync"
_KINDS = {
    "Stream Wait Event": STREAM_WAIT,
    "Event Sync": EVENT_SYNC,
    "Stream Sync": STREAM_SYNC,
    "Context Sync": DEVICE_SYNC,
}
"""Kinds by the names that Kineto gives to synchronization events."""

SCHEMA = Schema(
    "device_waits",
    "Waits that the trace names: recorded with `enable_cuda_sync_events`, otherwise empty.",
    (
        RANK,
        EVENT,
        text("kind", f"{STREAM_WAIT} (a stream waits), {EVENT_SYNC}, {STREAM_SYNC} or {DEVICE_SYNC} (the host waits)."),
        integer("call_event", "The host call; -1 if it is not in the trace."),
        integer("device", "Device index."),
        integer("stream", "The stream that waits, or that the host waits for; -1 if there is none."),
        integer("awaited_stream", "The stream on which the awaited CUDA event was recorded; -1 if unknown."),
        integer("record_event", "The host call that recorded the CUDA event; -1 if it is not in the trace."),
    ),
)
_FIELDS = (
    Field("awaited_stream", "wait_on_stream"),
    Field("record", "wait_on_cuda_event_record_corr_id"),
)
_NO_STREAM = 2**32 - 1
"""Older versions of Kineto write this for a wait without a stream."""


def build(frame: EventFrame, links: Links) -> pa.Table:
    """Build the table: synchronization events in order of time."""
    rows = frame.in_order_of_time(frame.rows("cuda_sync"))
    arguments = frame.arguments(rows, _FIELDS)
    calls = links.calls
    # Calls are sorted by start, so a runtime call comes before the driver call inside it, which has the same id.
    id_of_call = frame.ints("correlation", calls)
    call, record = (
        lookup(calls, rows_of(id_of_call, ids), missing=-1)
        for ids in (frame.ints("correlation", rows), arguments["record"])
    )
    kinds = ["", *_KINDS.values()]
    stream = frame.ints("stream", rows)
    columns = {
        "rank": frame.rank,
        "event": frame.event[rows],
        "kind": compact(frame.by_name(rows, lambda name: kinds.index(_KINDS.get(name, "")), np.int64), kinds),
        "call_event": frame.event_at(call),
        "device": frame.ints("device", rows),
        "stream": np.where(stream == _NO_STREAM, -1, stream),
        "awaited_stream": arguments["awaited_stream"],
        "record_event": frame.event_at(record),
    }
    return table(SCHEMA, columns, len(rows))
