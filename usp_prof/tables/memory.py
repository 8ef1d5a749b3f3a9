"""Table of memory: bytes in use after each allocator event."""

from __future__ import annotations

import pyarrow as pa

from usp_prof import limits
from usp_prof.model.schema import EVENT, RANK, START, STEP, Schema, integer
from usp_prof.tables.build import table
from usp_prof.tables.events.arguments import Field
from usp_prof.tables.events.frame import EventFrame
from usp_prof.tables.steps import Steps

SCHEMA = Schema(
    "memory",
    "Allocator events: each allocation and release with the totals after it.",
    (
        RANK,
        EVENT,
        START,
        integer("device_type", "0 for CPU, 1 for CUDA, as PyTorch numbers them."),
        integer("device", "Device index."),
        integer("address", "Address."),
        integer("bytes", "Bytes allocated; negative when freed.", "bytes"),
        integer("allocated_bytes", "Total allocated afterwards.", "bytes"),
        integer("reserved_bytes", "Total reserved afterwards.", "bytes"),
        STEP,
    ),
)

_FIELDS = (
    Field("device_type", "Device Type"),
    Field("device", "Device Id"),
    Field("address", "Addr"),
    Field("bytes", "Bytes", within=limits.CHANGE),
    Field("allocated_bytes", "Total Allocated", within=limits.COUNT),
    Field("reserved_bytes", "Total Reserved", within=limits.COUNT),
)


def build(frame: EventFrame, steps: Steps) -> pa.Table:
    """Build the table: allocator events in order of time."""
    rows = frame.rows("cpu_instant_event")
    rows = frame.in_order_of_time(rows[frame.by_name(rows, lambda name: name == "[memory]")])
    columns = {
        "rank": frame.rank,
        "event": frame.event[rows],
        "start_ns": frame.start[rows],
        "step": steps.of_host(frame.start[rows]),
        **frame.arguments(rows, _FIELDS),
    }
    return table(SCHEMA, columns, len(rows))
