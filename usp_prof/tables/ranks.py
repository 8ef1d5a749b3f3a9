"""Table of ranks: the ranks of a run, where they ran, and the file of each."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa

from usp_prof.contract import Manifest
from usp_prof.model.schema import RANK, Schema, integer, text
from usp_prof.tables.build import table_from_rows
from usp_prof.tables.events.devices import device_kind, device_name, device_properties
from usp_prof.tables.events.frame import EventFrame

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
        integer("device_memory", "Memory of that device as recorded; -1 when unknown.", "bytes"),
        text(
            "device_kind",
            "cuda, rocm, mtia, xpu or cpu; unrecorded where the trace lacks the device's work.",
        ),
        integer("base_ns", "baseTimeNanoseconds of the file; 0 when missing.", "ns"),
        integer("first_ns", "First event's start.", "ns"),
        integer("last_ns", "Last event's end.", "ns"),
        integer("events", "Number of events."),
        integer("bytes", "Size of the file as JSON.", "bytes"),
        text("torch", "PyTorch version as recorded."),
        text("trace_id", "Trace id."),
        text("content", "Digest of the times of all events; equal on ranks whose traces are copies of each other."),
    ),
)


def build(frame: EventFrame, manifest: Manifest | None) -> pa.Table:
    """Build the table: one row."""
    top = frame.metadata
    info = distributed(top)
    recorded = info.get("rank")
    is_in_manifest = manifest is not None and str(frame.rank) in (manifest.hosts or manifest.coordinates)
    source = "distributedInfo" if recorded == frame.rank else "manifest" if is_in_manifest else "name"
    base = top.get("baseTimeNanoseconds")
    torch_of_manifest = manifest.software.get("torch", "") if manifest else ""
    row = {
        "rank": frame.rank,
        "file": frame.record.file,
        "rank_source": source,
        "world_size": _integer(info.get("world_size")),
        "host": str(top.get("host_name") or (manifest.hosts.get(str(frame.rank), "") if manifest else "")),
        "backend": str(info.get("backend") or ""),
        "device": device_name(frame),
        "device_memory": _integer(device_properties(frame).get("totalGlobalMem")),
        "device_kind": device_kind(frame),
        "base_ns": max(_integer(base), 0),
        "first_ns": int(frame.start.min()) if len(frame) else -1,
        "last_ns": int(frame.end.max()) if len(frame) else -1,
        "events": len(frame),
        "bytes": frame.record.json_bytes,
        "torch": str(top.get("pytorch_version") or top.get("torch_version") or torch_of_manifest or ""),
        "trace_id": str(top.get("trace_id") or ""),
        "content": _content(frame),
    }
    return table_from_rows(SCHEMA, [row])


_FEWEST_EVENTS = 100
"""Fewer events may agree by accident."""


def _content(frame: EventFrame) -> str:
    """Digest the times of all events, counted from the first, with their correlation ids; empty for few events."""
    if len(frame) < _FEWEST_EVENTS:
        return ""
    digest = blake2b(digest_size=8)
    for column in (frame.start - frame.start.min(), frame.duration, frame.ints("correlation")):
        digest.update(np.ascontiguousarray(column).data)
    return digest.hexdigest()


def distributed(top: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return `distributedInfo`, or nothing if it is missing or damaged."""
    info = top.get("distributedInfo")
    return info if isinstance(info, dict) else {}


def _integer(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else -1
